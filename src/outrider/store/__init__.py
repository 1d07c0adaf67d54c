"""The store on disk: the journal in SQLite, long contents in files, and an index to search them."""

from outrider.store.open import open_store

__all__ = ["open_store"]
