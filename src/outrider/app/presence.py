"""How a process is in a home. Light to import: a command that only joins another process needs no more of us."""

from typing import Literal

from msgspec import Struct

from outrider.store.lock import HomeLock


class OpenMode(Struct, frozen=True):
    """How a process is in a home."""

    label: str = "Python"
    """What others are told who find the home in use."""
    runs: Literal["all", "own", "none"] = "own"
    """Whose turns it carries when something happens to them: every session's, those it was asked for, or nobody's."""
    wait: float = 2.0
    """Seconds to wait for a home that is in use."""
    lock: HomeLock | None = None
    """The home, where it is held already."""


PYTHON_MODE = OpenMode()
