"""What the task supervisor and the output watcher depend on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from outrider.core.ports import Commands
from outrider.core.store_port import FullStore
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult


class Children(Protocol):
    """Child sessions, as the supervisor uses them."""

    async def open(self, task: Task) -> str:
        """The id of this task's child session, which is created and given its input if there is none."""
        ...

    async def outcome(self, child: str) -> TurnResult | None:
        """The result of its last turn; None while it has work."""
        ...

    async def stop(self, child: str) -> None: ...


class TaskServices(Struct, frozen=True):
    """What the supervisor depends on."""

    store: FullStore
    commands: Commands
    children: Children
    wake: Callable[[str], None]
    now: Callable[[], int]
    """Milliseconds since 1970."""
    can_deliver: Callable[[str], bool]
    """Whether a notice can still be delivered to this address after the turn."""
    match_lines: Callable[[str, Sequence[str]], Awaitable[Sequence[int] | None]]
    """The indexes of the lines that match a pattern; None when matching takes too long."""
    redact: Callable[[str], str] = str
    """Removes secrets from output."""
