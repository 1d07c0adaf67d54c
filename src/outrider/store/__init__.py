"""The store on disk: journals in SQLite, long contents in files, and a search index."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.store.sqlite import open_store

__all__ = ["open_store"]


def __getattr__(name: str) -> Any:
    """Import it on first use: a client of another process needs no store."""
    if name != "open_store":
        raise AttributeError(f"module 'outrider.store' has no attribute {name!r}")
    from outrider.store.sqlite import open_store

    return open_store
