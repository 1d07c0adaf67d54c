"""Ports: the protocols that adapters implement for runtimes, models, tools, workspaces and tasks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

from outrider.core.approvals import AccessDecision, ApprovalRequest
from outrider.core.delivery import Deliverability
from outrider.core.events import Answered, Asked, Body, Bound, Delta, Entry, Input, Reply, Result, Started
from outrider.core.plan import State
from outrider.core.prompt import Prompt, Transcript
from outrider.core.store_port import Blobs, Session
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec
from outrider.core.types import Call, ModelTraits, RuntimeTraits, ToolSpec


class CommandEnd(Struct, frozen=True):
    """How a command ended, as far as its files say."""

    code: int | None
    reason: Literal["exit", "signal", "output", "memory", "killed", "lost"]
    signal: int = 0
    at: int = 0
    """Milliseconds since 1970; 0 when unknown."""
    note: str = ""
    """What was done about its effects, for people and the model; empty for nothing."""


class UsageCheck(Struct, frozen=True):
    """Which running commands use more than they may."""

    exceeded: Mapping[str, str]
    """The reason to stop a command, by task."""
    seconds: float
    """Until the next check."""


class Commands(Protocol):
    """Commands on disk and in the process table. They run whether or not Outrider does."""

    def resolve_needs(self, session: Session, needs: Sequence[str]) -> tuple[str, ...]:
        """These needs with resolved paths, as a person is asked for them and as a command gets them.

        Raises Refused when a command with them would be refused. Changes nothing. Blocks.
        """
        ...

    def outside_git_folders(self, task: Task) -> Mapping[str, str]:
        """The git folders outside its workspace that work trees in it use, by the `.git` that names each. Blocks."""
        ...

    def prune(self, alive: Sequence[str]) -> None:
        """Remove the oldest outputs of other tasks beyond what is kept. Blocks."""
        ...

    def start(self, task: Task) -> ProcessIdentity:
        """Start it, detached. Blocks for some milliseconds. Raises Refused with a text for the model."""
        ...

    def adopt(self, task: Task) -> ProcessIdentity | None:
        """Find a command whose start was not recorded; None when it did not start, and then it never will."""
        ...

    def boot_time(self) -> int:
        """When this machine started, in milliseconds since 1970."""
        ...

    def has_ended(self, task: Task) -> bool: ...

    async def wait_for_end(self, task: Task) -> CommandEnd:
        """Wait for its end, without polling."""
        ...

    async def kill(self, task: Task) -> CommandEnd:
        """End it and everything it started. They are gone when this returns."""
        ...

    def check_usage(self, tasks: Sequence[Task]) -> UsageCheck:
        """Find those of the running commands that use more than they may. Blocks briefly; one check at a time."""
        ...

    def interrupt(self, task: Task) -> None: ...
    def output_file(self, task: Task) -> str: ...
    def size(self, task: Task) -> int: ...
    def read(self, task: Task, start: int, max_bytes: int) -> bytes:
        """A part of its output, with secrets replaced. A negative start counts from the end.

        While the task is open, bytes at the end that may be the beginning of a secret are left for the next read.
        """
        ...

    def idle_seconds(self, task: Task) -> float:
        """Seconds since its last output."""
        ...

    def output_time(self, task: Task) -> float:
        """When it last wrote output, in seconds since 1970; when it was started, if it wrote none."""
        ...

    def input_time(self, task: Task) -> float:
        """When its open stdin was last written to, or opened, in seconds since 1970; infinity when it is closed."""
        ...

    def write(self, task: Task, content: bytes, *, close: bool = False) -> None:
        """Write to its stdin. Never blocks; raises Refused when it does not read."""
        ...

    def save_number(self, task: Task, name: str, value: int) -> None:
        """Store a number beside its output."""
        ...

    def load_number(self, task: Task, name: str) -> int: ...


class TaskTraits(Struct, frozen=True):
    """The limits of tasks."""

    timeout: float = 30.0
    """Seconds a call waits for a command before it continues in the background."""
    ceiling: float = 86_400.0
    """Seconds after which a task is killed."""
    has_sandbox: bool = False
    has_network: bool = False
    """Whether every command may use the network."""
    is_unconfined: bool = False
    """Whether commands run without a sandbox by the person's choice, so that no command needs more than it has."""
    refusal: str = ""
    """Why no command may run here; empty when commands may."""
    depth: int = 2
    """The deepest nesting of child sessions."""
    children: int = 5
    """The most child sessions of one session at once."""


class Tasks(Protocol):
    """The tasks of one session, for its tools. Tasks of other sessions do not exist here."""

    commands: Commands

    async def traits(self) -> TaskTraits:
        """The limits. The first call takes a moment, since it tries the sandbox."""
        ...

    async def start(self, spec: TaskSpec) -> Task:
        """Start it, or return the task that this call has started. Raises Refused with a text for the model."""
        ...

    async def wait(self, task: Task, seconds: float) -> Task:
        """Wait for its end at most so long; the task as it is then."""
        ...

    async def detach(self, task: Task, notify: Notify) -> Task:
        """Stop waiting for it. A notice reports its end, unless it has ended by now."""
        ...

    async def find(self, name: str) -> Task:
        """By id. Raises Refused when this session has no such task."""
        ...

    async def list(self) -> Sequence[Task]:
        """Latest first."""
        ...

    async def refresh(self, task: Task) -> Task:
        """The task as it is now. One that was stalled is running when something was written to its stdin."""
        ...

    async def kill(self, task: Task) -> Task:
        """End it and all it started. It has ended when this returns."""
        ...

    async def last_message(self, task: Task) -> str:
        """The last message of the task's child session."""
        ...

    async def depth(self) -> int:
        """How deep this session is nested; 0 for one that a person started."""
        ...


Emit = Callable[[Delta], None]


class Turn(Protocol):
    """Everything a runtime may use while it runs a turn."""

    session: Session

    @property
    def is_superseded(self) -> bool:
        """Whether the session was stopped, so that nothing of this turn may be shown or done any more."""
        ...

    def state(self) -> State: ...
    def transcript(self) -> Transcript: ...
    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        """Append an entry, durable when this returns; None when the key is already there."""
        ...

    def emit(self, delta: Delta) -> None:
        """Send a hint, which may be dropped."""
        ...

    async def refresh(self) -> None:
        """Read what others have appended, e.g. an input that arrived while the model wrote."""
        ...

    async def wait_for_entries(self) -> None:
        """Wait until others have appended something, and take it in."""
        ...


class SessionBindings(Protocol):
    """The sessions that also exist in an external runtime, for a runtime that gets news of them between turns."""

    async def list_bound(self, runtime: str, limit: int) -> Sequence[tuple[Session, Bound]]:
        """Of the sessions used last, at most so many, those bound to this runtime, with their last binding."""
        ...

    def can_notify(self, address: str) -> bool:
        """Whether a message can reach this address after the turn."""
        ...

    async def notice_address(self, session: str) -> str:
        """Where a notice of work that a turn of this session started is answered to: the address of the newest message
        of a person that can be notified; empty when there is none."""
        ...

    async def notify(self, session: str, notice: Input, key: str) -> None:
        """Append an input once by its key, and wake the session. Raises QueueFull, Refused or Unavailable."""
        ...


class Runtime(Protocol):
    """Runs a turn to its end. Called again for the same turn after a crash."""

    traits: RuntimeTraits

    async def started_entry(self, turn: Turn) -> Started:
        """The entry that starts a turn here. Raises nothing: errors show when the turn runs."""
        ...

    async def run(self, turn: Turn) -> None:
        """Raises Refused or Unavailable to end the turn as failed, with that text."""
        ...


class Model(Protocol):
    """Answers a prompt. Raises Refused, ContextTooLong or Unavailable, and never returns a partial reply."""

    traits: ModelTraits

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        """`saw` is the prompt's; call ids are made with `call_id(prompt.saw, n)`."""
        ...


class WorkspaceItem(Struct, frozen=True):
    """A file or folder in a workspace."""

    path: str
    """Relative to the root, with `/`. Bytes that are not text are written `\\xNN`, and read back in that form."""
    kind: Literal["file", "folder", "link", "other"]
    size: int


class FileListing(Struct, frozen=True):
    """The content of a folder."""

    items: Sequence[WorkspaceItem]
    """Sorted, each folder followed by its content."""
    cut: bool = False
    """Whether items are missing."""


class Workspace(Protocol):
    """The files of a session. No path leads out of it. Methods block, and raise Refused with a text for the model."""

    root: str

    def read(self, path: str) -> bytes:
        """The content of a file. Raises Refused when it is too long."""
        ...

    def open_read(self, path: str) -> BinaryIO:
        """Open a file of any length for reading."""
        ...

    def write_need(self, path: str) -> str:
        """The need that a person must allow before this path is written, e.g. `write:/w/.git`; empty for none."""
        ...

    def write(self, path: str, content: bytes, before: bytes | None = None, granted: Sequence[str] = ()) -> None:
        """Write all or nothing, creating folders. With `before`, refuse unless the file still has that content.

        Refuses a path whose need is not `granted`.
        """
        ...

    def list(self, path: str, depth: int = 1) -> FileListing:
        """The content of a folder. Below it, folders like `.git` and caches are named but not entered."""
        ...

    def walk(self, path: str) -> FileListing:
        """The files below a folder, or the file itself, without folders like `.git` and caches; bounded."""
        ...


class ToolContext(Struct, frozen=True):
    """The context of a tool call."""

    session: Session
    workspace: Workspace
    blobs: Blobs
    call: str = ""
    """The id of the call."""
    tasks: Tasks | None = None
    address: str = ""
    """Where this turn delivers its answer."""
    delivery: Deliverability = Deliverability(False, "nothing can be delivered later")
    """Whether a message can reach that address after the turn."""
    granted: tuple[str, ...] = ()
    """What a person allowed this call outside its sandbox."""


class Tool(Protocol):
    spec: ToolSpec

    async def run(self, call: Call, context: ToolContext) -> Result:
        """Run the call. A failure that the model can react to is a result with `failed`; so is a Refused."""
        ...

    async def approval_request(self, call: Call, context: ToolContext) -> ApprovalRequest | None:
        """What this call needs beyond what every call may do; None for nothing. Changes nothing."""
        ...

    async def reconcile(self, call: Call, context: ToolContext) -> Result | None:
        """After a crash between `Begun` and `Result`: the result, or None when it cannot be known."""
        ...


class ToolEnvironment(Protocol):
    """Where a session's calls run, for the loop that runs them."""

    async def check_workspace(self, session: Session) -> Session:
        """The session with the identity of its workspace, recorded now if this is its first use.

        Raises Refused when another folder is at the path of the workspace.
        """
        ...

    async def tool_context(self, session: Session, state: State, call: Call) -> ToolContext:
        """Raises Refused as `check_workspace` does."""
        ...

    async def decide_access(self, request: ApprovalRequest, session: Session) -> AccessDecision:
        """Whether rules and permissions allow this, deny it, or leave it to a person."""
        ...

    def answer_unreachable(self, session: Session, questions: Sequence[Asked], address: str) -> Sequence[Answered]:
        """Answers to questions that the turn waits for and that no person can answer: no."""
        ...

    def redact(self, text: str) -> str:
        """The text without any configured secret."""
        ...

    async def running_tasks_note(self, session: Session) -> str:
        """A note about the running tasks for the end of this step's prompt."""
        ...


Tools = Mapping[str, Tool]
Models = Callable[[str], Awaitable[Model]]
"""A model by name; an empty name is the home's default."""
NATIVE = "native"
"""The runtime that is our own loop."""
Runtimes = Callable[[str], Awaitable[Runtime]]
"""A runtime by name, opened on first use. Raises Refused when it cannot be opened."""
