"""What the engine needs from the world. Adapters implement these; nothing else crosses."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

from outrider.core.approve import ApprovalRequest, Verdict
from outrider.core.events import Answered, Asked, Body, Delta, Entry, Input, Reply, Result, Started
from outrider.core.key_ports import KeyStore
from outrider.core.parts import Call
from outrider.core.plan import State
from outrider.core.prompt import Prompt, Transcript
from outrider.core.route import Deliverability
from outrider.core.task_ports import CommandEnd as CommandEnd
from outrider.core.task_ports import Commands as Commands
from outrider.core.task_ports import TaskEnd as TaskEnd
from outrider.core.task_ports import Tasks as Tasks
from outrider.core.task_ports import TaskStore as TaskStore
from outrider.core.task_ports import TaskTraits as TaskTraits
from outrider.core.traits import ModelTraits, RuntimeTraits, ToolSpec

Emit = Callable[[Delta], None]


class Session(Struct, frozen=True):
    """What the store knows of a session besides its journal."""

    id: str
    person: str
    name: str
    """As its person calls it; unique among that person's sessions."""
    workspace: str
    """The folder its tools act in, an absolute path."""
    title: str
    """The beginning of its first input."""
    created: int
    updated: int
    head: int
    is_open: bool
    has_work: bool
    """Whether a turn is open or an input waits."""


class Claim(Struct, frozen=True):
    """The right to write to a session, until someone else claims it."""

    session: Session
    generation: int
    handed_over: bool
    """The owner before let go in an orderly way."""


class SearchHit(Struct, frozen=True):
    """One place where a search matched."""

    session: str
    name: str
    seq: int
    at: int
    excerpt: str


class Store(Protocol):
    """The journal and all that hangs on it. A write is durable when its call returns.

    Whoever acts for a person names that person: another person's session is as good as none.
    """

    async def create(self, person: str, name: str, workspace: str) -> Session:
        """The session of this name, made now if it is new; an empty name gets one that is free."""
        ...

    async def find(self, person: str, session: str) -> Session | None:
        """By its whole id or name."""
        ...

    async def look_up(self, person: str, session: str) -> Session | None:
        """As `find`, or by six characters or more that the id of no other session of this person begins with."""
        ...

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        """Latest first."""
        ...

    async def rename(self, person: str, session: str, name: str) -> Session:
        """Raises Taken when another session of this person is called so."""
        ...

    async def delete(self, person: str, session: str) -> bool: ...

    async def search(self, person: str, words: str, limit: int = 20) -> Sequence[SearchHit]: ...

    async def accept(self, session: str, body: Input, key: str | None, queue: int) -> tuple[Entry, bool]:
        """Append an input once by its key: `(entry, whether it is new)`.

        Raises Full when `queue` inputs already wait.
        """
        ...

    async def claim(self, session: str) -> Claim:
        """Become the only writer: whoever held an older generation is refused from now on."""
        ...

    async def release(self, session: str, generation: int) -> None:
        """Let go in an orderly way, the turn unfinished."""
        ...

    async def append(self, session: str, body: Body, generation: int, key: str | None = None) -> Entry | None:
        """Append, or return None when this key is already in the session. Raises Stale for an old generation."""
        ...

    async def stop(self, session: str, reason: str, partial: str = "") -> Entry | None:
        """End the open turn, or deal with waiting inputs, under a new generation; None when nothing was to stop."""
        ...

    async def change(self, session: str, name: str, value: str) -> Entry:
        """Record a setting of the session; needs no claim, since it fences nobody out."""
        ...

    async def record_client_result(self, session: str, result: Result) -> Entry | None:
        """Record the result of a lent tool's call, once; needs no claim. Raises Refused when no such call waits."""
        ...

    async def seed(self, session: str, bodies: Sequence[Body]) -> bool:
        """Begin an empty session with a past that was lived elsewhere: all of it or nothing, as numbers 1, 2, 3 …

        False when the session has entries already; a turn it leaves open counts as handed over.
        """
        ...

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...

    async def sessions_with_work(self) -> Sequence[str]:
        """The sessions that have something to do, of every person, longest waiting first."""
        ...


class FullStore(Store, TaskStore, KeyStore, Protocol):
    """Everything that is kept in one database."""


class Blobs(Protocol):
    """Long contents, named by their hash."""

    def put(self, content: bytes) -> str: ...
    def get(self, name: str) -> bytes:
        """Raises Refused when there is none of this name."""
        ...


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

    async def run(self, call: Call, here: ToolContext) -> Result:
        """A failure the model can react to is a result with `failed`; Refused is turned into one."""
        ...

    async def approval_request(self, call: Call, here: ToolContext) -> ApprovalRequest | None:
        """What this call wants beyond what every call may do; None when it stays within. Touches nothing."""
        ...

    async def reconcile(self, call: Call, here: ToolContext) -> Result | None:
        """After a crash between `Begun` and `Result`: what came of it, or None when that cannot be found out."""
        ...


class ToolEnvironment(Protocol):
    """What a loop needs to know about where a session's calls run."""

    async def tool_context(self, session: Session, state: State, call: Call) -> ToolContext: ...

    async def verdict(self, request: ApprovalRequest, session: Session) -> Verdict:
        """Whether rules and grants allow this, deny it, or leave it to a person."""
        ...

    def answer_unreachable(self, session: Session, asks: Sequence[Asked], address: str) -> Sequence[Answered]:
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
