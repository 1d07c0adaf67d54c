"""Keys to the API: what is kept of one, and what a store does with them."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from outrider.core.approvals import Permission, PermissionScope
from outrider.core.events import Body, Entry, Input, Result
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec, TaskState

KeyScope = Literal["chat", "read", "admin"]
"""`chat` may begin turns, `read` may look, `admin` may do everything."""
SpendPeriod = Literal["day", "month", "total"]


class SpendLimit(Struct, frozen=True):
    """How many dollars a key's turns may cost: in a day, in a month, or at all."""

    dollars: float
    per: SpendPeriod = "total"


class KeySpec(Struct, frozen=True):
    """What a key is to be."""

    name: str
    person: str
    scopes: tuple[KeyScope, ...]
    rate: int | None = None
    """Requests a minute; None for the server's default."""
    concurrent: int | None = None
    """Requests at once; None for the server's default."""
    spend: SpendLimit | None = None
    """What its turns may cost; None for no limit."""


class Key(Struct, frozen=True):
    """What is kept of a key. The secret is not."""

    id: str
    spec: KeySpec
    digest: bytes
    created: int
    used: int = 0
    """About when it was last used, to a minute; 0 for never."""
    revoked: int = 0
    """When it was revoked; 0 while it holds."""


class Person(Struct, frozen=True):
    """Somebody who has a session or a key here."""

    name: str
    sessions: int
    keys: int
    """Those that hold."""
    active: int
    """When something last happened in a session, or a key was last used."""


class KeyStore(Protocol):
    """Keys to the API, of every person. A write is durable when its call returns."""

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        """Raises Refused when a key of this name holds already, or the id is taken."""
        ...

    async def find_key(self, id: str) -> Key | None:
        """By its id; also one that is revoked."""
        ...

    async def list_keys(self) -> Sequence[Key]:
        """All that ever were, the oldest first."""
        ...

    async def revoke_key(self, id: str) -> bool:
        """It opens nothing from now on, for good. False when it did not anyway."""
        ...

    async def touch_key(self, id: str) -> None:
        """It is being used; written down at most once a minute."""
        ...

    async def spent(self, id: str, since: int = 0) -> float:
        """Dollars that entries cost whose input it paid for, from this day on: days since 1970, in UTC."""
        ...

    async def people(self) -> Sequence[Person]:
        """Everybody who has a session or a key, latest active first."""
        ...


class TaskEnd(Struct, frozen=True):
    """How a task ended."""

    state: TaskState
    exit_code: int | None
    why: str
    ended: int


class TaskStore(Protocol):
    """Tasks, and the answers and grants people gave. A write is durable when its call returns."""

    async def create_task(self, session: str, spec: TaskSpec, most: int) -> tuple[Task, bool]:
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

    async def answer(self, session: str, question_id: str, answer: str, person: str) -> Entry | None:
        """Record an answer to an ask; None when it has been answered. Needs no claim, since it fences nobody out."""
        ...

    async def add_permission(self, person: str, scope: PermissionScope, applies_to: str, need: str) -> Permission: ...
    async def list_permissions(self, person: str) -> Sequence[Permission]: ...
    async def revoke_permission(self, person: str, permission_id: str) -> bool: ...


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


SessionStatus = Literal["idle", "waiting", "unfinished"]


def session_status(session: Session) -> SessionStatus:
    """In a word: whether something is left to do in it."""
    if session.is_open:
        return "unfinished"
    return "waiting" if session.has_work else "idle"
