"""What the engine needs from the world. Adapters implement these; nothing else crosses.

Ports for tasks: what is kept of them, how commands run, and what a tool may do with them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

from outrider.core.approvals import ApprovalRequest, Verdict
from outrider.core.delivery import Deliverability
from outrider.core.events import Answered, Asked, Body, Delta, Entry, Reply, Result, Started
from outrider.core.plan import State
from outrider.core.prompt import Prompt, Transcript
from outrider.core.store_port import Blobs, Session
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec
from outrider.core.types import Call, ModelTraits, RuntimeTraits, ToolSpec


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

    async def start(self, spec: TaskSpec) -> Task:
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


Emit = Callable[[Delta], None]


class Turn(Protocol):
    """All that a runtime may touch while it carries a turn."""

    session: Session

    def state(self) -> State: ...
    def transcript(self) -> Transcript: ...
    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        """Durable when it returns; None when the key is already there."""
        ...

    def emit(self, delta: Delta) -> None:
        """A hint; may be dropped."""
        ...

    async def refresh(self) -> None:
        """Take in what others appended meanwhile, say an input that was typed while the model wrote."""
        ...

    async def wait_for_entries(self) -> None:
        """Wait until others have appended something, and take it in."""
        ...


class Runtime(Protocol):
    """Carries a turn until nothing is left to do in it. Called again for the same turn after a crash."""

    traits: RuntimeTraits

    async def started_entry(self, turn: Turn) -> Started:
        """What to write down when a turn begins here. Raises nothing: what is amiss shows when it is carried."""
        ...

    async def run(self, turn: Turn) -> None:
        """Raises Refused or Unavailable to end the turn as failed, with that text."""
        ...


class Model(Protocol):
    """Answers a prompt. Raises Refused, ContextTooLong or Unavailable; never returns half a reply."""

    traits: ModelTraits

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        """`saw` is the prompt's; call ids are made with `call_id(prompt.saw, n)`."""
        ...


class WorkspaceItem(Struct, frozen=True):
    """A file or folder in a workspace."""

    path: str
    """From the root, with `/`; bytes that are no text are written `\\xNN`, and may be given back so."""
    kind: Literal["file", "folder", "link", "other"]
    size: int


class FileListing(Struct, frozen=True):
    """What a folder holds, as far as it was looked through."""

    items: Sequence[WorkspaceItem]
    """Sorted, each folder followed by what is in it."""
    cut: bool = False
    """Whether there is more than this."""


class Workspace(Protocol):
    """Where tools act. No path leads out of it. Every method blocks, and raises Refused with words for the model."""

    root: str

    def read(self, path: str) -> bytes:
        """All of a file; Refused when it is too long to hold whole."""
        ...

    def open_read(self, path: str) -> BinaryIO:
        """A file of any length, to be read in parts and closed."""
        ...

    def write(self, path: str, content: bytes, before: bytes | None = None) -> None:
        """All or nothing, parents made. With `before`, Refused unless the file still holds exactly that."""
        ...

    def list(self, path: str, depth: int = 1) -> FileListing:
        """Everything in this folder; deeper, what no one wants to read (`.git`, caches) is named but not entered."""
        ...

    def walk(self, path: str) -> FileListing:
        """The files below, or the one file this is, skipping what no one wants to search; bounded."""
        ...


class ToolContext(Struct, frozen=True):
    """Where and for whom a call runs."""

    session: Session
    workspace: Workspace
    blobs: Blobs
    call: str = ""
    """The id of the call."""
    tasks: Tasks | None = None
    address: str = ""
    """Where this turn answers to."""
    delivery: Deliverability = Deliverability(False, "nobody can be told later")
    """Whether that address can be told something when the turn is over."""
    granted: tuple[str, ...] = ()
    """What a person allowed this very call beyond the sandbox."""


class Tool(Protocol):
    spec: ToolSpec

    async def run(self, call: Call, context: ToolContext) -> Result:
        """A failure the model can react to is a result with `failed`; Refused is turned into one."""
        ...

    async def approval_request(self, call: Call, context: ToolContext) -> ApprovalRequest | None:
        """What this call wants beyond what every call may do; None when it stays within. Touches nothing."""
        ...

    async def reconcile(self, call: Call, context: ToolContext) -> Result | None:
        """After a crash between `Begun` and `Result`: what came of it, or None when that cannot be found out."""
        ...


class ToolEnvironment(Protocol):
    """What a loop needs to know about where a session's calls run."""

    async def tool_context(self, session: Session, state: State, call: Call) -> ToolContext: ...

    async def verdict(self, request: ApprovalRequest, session: Session) -> Verdict:
        """Whether rules and grants allow this, deny it, or leave it to a person."""
        ...

    def answer_unreachable(self, session: Session, questions: Sequence[Asked], address: str) -> Sequence[Answered]:
        """The turn waits for these. The answers that are certain now: a no where nobody can answer."""
        ...

    def redact(self, text: str) -> str:
        """The text without any secret that is known here."""
        ...

    async def running_tasks_note(self, session: Session) -> str:
        """Words for the end of this step's prompt, e.g. on the tasks that run now."""
        ...


Tools = Mapping[str, Tool]
Models = Callable[[str], Awaitable[Model]]
"""A model by the name people write; an empty name is the home's default."""
NATIVE = "native"
"""The runtime that is our own loop."""
Runtimes = Callable[[str], Awaitable[Runtime]]
"""A runtime by name, opened when it is first asked for. Raises Refused when it cannot be."""
Events = AsyncIterator[Entry | Delta]
