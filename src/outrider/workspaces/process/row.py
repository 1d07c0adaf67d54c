"""One process among all, as far as it matters here."""

from msgspec import Struct


class ProcessRow(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    group: int
    started: int
    is_zombie: bool
    """A zombie: it does nothing any more."""
