"""One process among all, as far as it matters here."""

from msgspec import Struct


class Row(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    group: int
    started: int
    is_dead: bool
    """A zombie: it does nothing any more."""
