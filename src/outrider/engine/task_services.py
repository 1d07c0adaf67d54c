"""What keeping tasks stands on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from outrider.core.ports import Commands
from outrider.core.store_port import FullStore
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult


class Children(Protocol):
    """What the keeper needs of child sessions."""

    async def open(self, task: Task) -> str:
        """The child session of this task, begun now if there is none, with its work handed in; its id."""
        ...

    async def outcome(self, child: str) -> TurnResult | None:
        """What its last turn came to; None while it has something to do."""
        ...

    async def stop(self, child: str) -> None: ...


class TaskServices(Struct, frozen=True):
    """What the keeper stands on."""

    store: FullStore
    commands: Commands
    children: Children
    wake: Callable[[str], None]
    now: Callable[[], int]
    """Milliseconds since 1970."""
    can_deliver: Callable[[str], bool]
    """Whether this address can be told something later."""
    match_lines: Callable[[str, Sequence[str]], Awaitable[Sequence[int] | None]]
    """Which lines match a pattern; None when that takes too long to find out."""
    redact: Callable[[str], str] = str
    """Leaves secrets out of what commands wrote."""
