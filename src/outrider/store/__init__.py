"""The store on disk: the journal in SQLite, long contents in files, and an index to search them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.store.sqlite import open_store

__all__ = ["open_store"]


def __getattr__(name: str) -> Any:
    """Import it when it is first used: whoever only asks who holds a home does without."""
    if name != "open_store":
        raise AttributeError(f"module 'outrider.store' has no attribute {name!r}")
    from outrider.store.sqlite import open_store

    return open_store
