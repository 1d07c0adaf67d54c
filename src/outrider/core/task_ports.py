"""Ports for tasks: what is kept of them, how commands run, and what a tool may do with them."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from outrider.core.approve import Permission, PermissionScope
from outrider.core.events import Entry
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec, TaskState


class TaskEnd(Struct, frozen=True):
    """How a task ended."""

    state: TaskState
    exit_code: int | None
    why: str
    ended: int


class TaskStore(Protocol):
    """Tasks, and the answers and grants people gave. A write is durable when its call returns."""

    async def create_task(self, session: str, wish: TaskSpec, most: int) -> tuple[Task, bool]:
        """The task of this session's call `wish.call`, made now if it is new: `(task, whether it is new)`.

        Raises Refused when `most` tasks of this session are open already.
        """
        ...

    async def mark_task_started(self, task: str, mark: ProcessIdentity | None, child: str = "") -> Task:
        """It runs now: as this process, or as this child session."""
        ...

    async def detach_task(self, task: str, notify: Notify) -> Task:
        """Nobody waits for it any more: its end is told by a notice. A task that has ended already stays as it is."""
        ...

    async def end_task_and_notify(self, task: str, end: TaskEnd, notice: str) -> Task:
        """The task has ended; in the same transaction its session gets the notice as an input, where it is to be told.

        Whether it is to be told is decided by the row as it is now (`should_tell`). A task that has ended stays so.
        """
        ...

    async def update_task_and_notify(self, task: str, state: TaskState, notice: str, key: str) -> Task:
        """Something happened to a running task: its new state, and a notice to its session (once by this key)."""
        ...

    async def find_task(self, person: str, task: str) -> Task | None:
        """By id, or by six characters or more that the id of no other task of this person begins with."""
        ...

    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]:
        """Latest first."""
        ...

    async def open_tasks(self) -> Sequence[Task]:
        """Every task of every person that has not ended."""
        ...

    async def task_of_child(self, child: str) -> Task | None:
        """The open task whose body this session is."""
        ...

    async def answer(self, session: str, ask: str, answer: str, person: str) -> Entry | None:
        """Record an answer to an ask; None when it has been answered. Needs no claim, since it fences nobody out."""
        ...

    async def add_permission(self, person: str, scope: PermissionScope, place: str, need: str) -> Permission: ...
    async def list_permissions(self, person: str) -> Sequence[Permission]: ...
    async def revoke_permission(self, person: str, grant: str) -> bool: ...


class CommandEnd(Struct, frozen=True):
    """How a command ended, as far as the disk can tell."""

    code: int | None
    reason: Literal["exit", "signal", "output", "memory", "killed", "lost"]
    signal: int = 0
    at: int = 0
    """When, in milliseconds since 1970; 0 when that is not known."""


class Commands(Protocol):
    """Commands as they are on disk and in the process table. They go on whether or not anyone watches."""

    def check_grants(self, workspace: str, needs: Sequence[str]) -> None:
        """Raises Refused when a command that was granted these would be refused all the same. Touches nothing."""
        ...

    def prune(self, alive: Sequence[str]) -> None:
        """Throw away what is kept of tasks other than these, as far as it is more than is kept. Blocks."""
        ...

    def start(self, task: Task) -> ProcessIdentity:
        """Start it, detached. Blocks for some milliseconds. Raises Refused with words for the model."""
        ...

    def adopt(self, task: Task) -> ProcessIdentity | None:
        """Find a command whose start was not recorded; None when it never started, and then it never will."""
        ...

    def boot_time(self) -> int:
        """When this machine started, in milliseconds since 1970."""
        ...

    def has_ended(self, task: Task) -> bool:
        """Whether it has ended, by what is on disk now."""
        ...

    async def wait_for_end(self, task: Task) -> CommandEnd:
        """Wait for its end, without polling."""
        ...

    async def kill(self, task: Task) -> CommandEnd:
        """End it and everything it started; they are gone when this returns."""
        ...

    def interrupt(self, task: Task) -> None: ...
    def output_file(self, task: Task) -> str: ...
    def size(self, task: Task) -> int: ...
    def read(self, task: Task, start: int, most: int) -> bytes:
        """A part of its output; a negative start counts from the end."""
        ...

    def idle_seconds(self, task: Task) -> float:
        """Seconds since it last wrote something."""
        ...

    def write(self, task: Task, content: bytes, *, close: bool = False) -> None:
        """Give it something to read. Never blocks; raises Refused when it does not read."""
        ...

    def save_number(self, task: Task, name: str, value: int) -> None:
        """Keep a number beside its output."""
        ...

    def load_number(self, task: Task, name: str) -> int: ...


class TaskTraits(Struct, frozen=True):
    """What tasks may use here."""

    timeout: float = 30.0
    """Seconds a command is waited for before it goes on by itself."""
    ceiling: float = 86_400.0
    """Seconds after which a task is ended."""
    has_sandbox: bool = False
    has_network: bool = False
    """Whether every command may use the network."""
    refusal: str = ""
    """Why no command may run here at all; empty when they may."""
    depth: int = 2
    """How deep child sessions may be nested."""
    children: int = 5
    """How many child sessions of one session may run at once."""


class Tasks(Protocol):
    """What a tool may do with its own session's tasks. Another session's are as good as none."""

    commands: Commands

    async def traits(self) -> TaskTraits:
        """What tasks may use here. Takes a moment when it is first asked for."""
        ...

    async def start(self, wish: TaskSpec) -> Task:
        """Begin it, or take up the one this call has begun. Raises Refused with words for the model."""
        ...

    async def wait(self, task: Task, seconds: float) -> Task:
        """Wait for its end, at most so long; the task as it is then."""
        ...

    async def detach(self, task: Task, notify: Notify) -> Task:
        """Stop waiting for it: its end will be told by a notice, if it has not ended by now."""
        ...

    async def find(self, name: str) -> Task:
        """By id. Raises Refused when this session has no such task."""
        ...

    async def list(self) -> Sequence[Task]:
        """Latest first."""
        ...

    async def kill(self, task: Task) -> Task:
        """End it and all it started; it has ended when this returns."""
        ...

    async def last_message(self, task: Task) -> str:
        """The last words of the child session that is this task's body."""
        ...

    async def depth(self) -> int:
        """How many sessions this one is a child below; 0 for one that a person began."""
        ...
