"""The store port: sessions and their journals, tasks, permissions, API keys and blobs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from outrider.core.approvals import Permission, PermissionScope
from outrider.core.events import Body, Bound, Entry, Input, Result
from outrider.core.tasks import KeyedNotice, Notify, ProcessIdentity, Task, TaskNotice, TaskSpec, TaskState
from outrider.core.types import WorkspaceIdentity

OWNER = "owner"
"""The person whose home this is. Questions of everyone go to the owner."""
KeyScope = Literal["chat", "read", "approve", "admin"]
"""`chat` may start turns, `read` may read, `approve` may answer questions, `admin` may do everything."""
SpendPeriod = Literal["day", "month", "total"]


class SpendLimit(Struct, frozen=True):
    """The most dollars a key's turns may cost in a day, in a month, or in total."""

    dollars: float
    per: SpendPeriod = "total"


class KeySpec(Struct, frozen=True):
    """The settings of an API key."""

    name: str
    person: str
    scopes: tuple[KeyScope, ...]
    rate: int | None = None
    """Requests per minute; None for the server's default."""
    concurrent: int | None = None
    """Requests at once; None for the server's default."""
    spend: SpendLimit | None = None
    """What its turns may cost; None for no limit."""


class Key(Struct, frozen=True):
    """An API key as it is stored, without its secret."""

    id: str
    spec: KeySpec
    digest: bytes
    created: int
    used: int = 0
    """When it was last used, to the minute; 0 for never."""
    revoked: int = 0
    """When it was revoked; 0 while it is active."""


class Person(Struct, frozen=True):
    """A person with a session or a key."""

    name: str
    sessions: int
    keys: int
    """Active keys."""
    active: int
    """When one of their sessions last changed, or a key was last used."""


class KeyStore(Protocol):
    """The API keys of every person. A write is durable when its call returns."""

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        """Raises Refused when an active key has this name, or the id is taken."""
        ...

    async def find_key(self, id: str) -> Key | None:
        """Find a key by id, also a revoked one."""
        ...

    async def list_keys(self) -> Sequence[Key]:
        """All keys, also revoked ones, oldest first."""
        ...

    async def revoke_key(self, id: str) -> bool:
        """Revoke a key permanently; False when it was not active."""
        ...

    async def touch_key(self, id: str) -> None:
        """Record that it is used, at most once a minute."""
        ...

    async def spent(self, id: str, since: int = 0) -> float:
        """Dollars spent by a key's turns since a day, counted in days since 1970 in UTC."""
        ...

    async def people(self) -> Sequence[Person]:
        """Every person with a session or a key, last active first."""
        ...


class TaskEnd(Struct, frozen=True):
    state: TaskState
    exit_code: int | None
    why: str
    ended: int


class TaskStore(Protocol):
    """Tasks, answers and permissions. A write is durable when its call returns."""

    async def create_task(self, session: str, spec: TaskSpec, max_open: int) -> tuple[Task, bool]:
        """The task of this session's call `spec.call`, created now if it is new: `(task, whether it is new)`.

        Raises Refused when this session has `max_open` open tasks.
        """
        ...

    async def mark_task_started(self, task: str, process: ProcessIdentity | None, child: str = "") -> Task:
        """Record that it runs, as this process or this child session."""
        ...

    async def detach_task(self, task: str, notify: Notify) -> Task:
        """No call waits for it any more: a notice reports its end. A task that has ended stays as it is.

        A task that stalled while a call waited is running again: the stall is found and reported after this.
        """
        ...

    async def end_task_and_notify(
        self, task: str, end: TaskEnd, notice: TaskNotice, matches: KeyedNotice | None = None
    ) -> Task:
        """Record its end and, in the same transaction, put the notices into its session as inputs.

        `matches` has the last matches of its watch pattern. There is no notice when `should_notify` and `should_report`
        say so for the row as it is now. A task that has ended stays as it is.
        """
        ...

    async def update_task_and_notify(
        self, task: str, state: TaskState | None, notice: TaskNotice | None, key: str
    ) -> Task:
        """Record the new state of a running task, and a notice in its session (once per key).

        Without a state it stays as it is. There is no notice when `should_report` says so for the row as it is now.
        """
        ...

    async def notice_keys(self, session: str, task: str) -> Sequence[str]:
        """The keys of the notices of a task that were written while it ran."""
        ...

    async def find_task(self, person: str, task: str) -> Task | None:
        """Find a task by its id, or by a unique prefix of at least six characters."""
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
        """The open task of this child session."""
        ...

    async def answer(self, session: str, question_id: str, answer: str, person: str) -> Entry | None:
        """Record an answer; None when the question has one. Needs no claim."""
        ...

    async def add_permission(self, person: str, scope: PermissionScope, applies_to: str, need: str) -> Permission: ...
    async def list_permissions(self, person: str) -> Sequence[Permission]: ...
    async def revoke_permission(self, person: str, permission_id: str) -> bool: ...


class Session(Struct, frozen=True):
    """A session without its journal."""

    id: str
    person: str
    name: str
    """Unique among the sessions of its person."""
    workspace: str
    """The resolved path of the folder its tools work in."""
    title: str
    """The beginning of its first input."""
    created: int
    updated: int
    head: int
    is_open: bool
    has_work: bool
    """Whether a turn is open or an input waits."""
    identity: WorkspaceIdentity | None = None
    """Which folder the workspace is; None before its first use."""


class Claim(Struct, frozen=True):
    """The right to write to a session, until another process claims it."""

    session: Session
    generation: int
    handed_over: bool
    """Whether the previous owner released it in order."""


class SearchHit(Struct, frozen=True):
    session: str
    name: str
    seq: int
    at: int
    excerpt: str


class Store(Protocol):
    """Sessions and their journals. A write is durable when its call returns.

    A call for a person finds only that person's sessions.
    """

    async def create(
        self, person: str, name: str, workspace: str, identity: WorkspaceIdentity | None = None
    ) -> Session:
        """The session of this name, created now if it is new. An empty name is replaced by a free one."""
        ...

    async def record_identity(
        self, session: str, identity: WorkspaceIdentity, replaces: WorkspaceIdentity | None
    ) -> Session:
        """Record which folder the workspace of a session is from now on; the session as it is then.

        Changes nothing when another identity than `replaces` is recorded.
        """
        ...

    async def record_move(self, session: str, workspace: str, identity: WorkspaceIdentity, replaces: str) -> Session:
        """Record that a session works in another folder from now on; the session as it is then.

        Changes nothing when the session does not work at the path `replaces` any more.
        """
        ...

    async def find(self, person: str, session: str) -> Session | None:
        """Find a session by its full id or name."""
        ...

    async def look_up(self, person: str, session: str) -> Session | None:
        """Like `find`, or by a unique prefix of the id of at least six characters."""
        ...

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        """Latest first."""
        ...

    async def list_settings(self, person: str, limit: int = 100) -> Mapping[str, Mapping[str, str]]:
        """The settings of the sessions that `list` returns, by session; none for a session without settings."""
        ...

    async def list_bound(self, runtime: str, limit: int) -> Sequence[tuple[Session, Bound]]:
        """Of everyone's sessions, those used last, at most so many: those with a thread in this runtime, and the last
        binding of each."""
        ...

    async def find_newest_input(self, session: str, accepts: Callable[[Input], bool]) -> Input | None:
        """The newest input of a session that is accepted; reads no further back than that."""
        ...

    async def rename(self, person: str, session: str, name: str) -> Session:
        """Raises NameTaken when another session of this person has this name."""
        ...

    async def delete(self, person: str, session: str) -> bool: ...

    async def search(self, person: str, words: str, limit: int = 20) -> Sequence[SearchHit]: ...

    async def accept(self, session: str, body: Input, key: str | None, queue: int) -> tuple[Entry, bool]:
        """Append an input once by its key: `(entry, whether it is new)`.

        Raises QueueFull when `queue` inputs already wait.
        """
        ...

    async def claim(self, session: str) -> Claim:
        """Become the only writer. Writers with an older generation are refused from now on."""
        ...

    async def release(self, session: str, generation: int) -> None:
        """Give up the claim in order, with the turn unfinished."""
        ...

    async def append(self, session: str, body: Body, generation: int, key: str | None = None) -> Entry | None:
        """Append, or return None when this key is already in the session. Raises StaleClaim for an old generation."""
        ...

    async def stop(self, session: str, reason: str, partial: str = "") -> Entry | None:
        """End the open turn, or finish waiting inputs, under a new generation; None when there is nothing to stop."""
        ...

    async def change(self, session: str, name: str, value: str) -> Entry:
        """Record a setting of the session. Needs no claim."""
        ...

    async def record_client_result(self, session: str, result: Result) -> Entry | None:
        """Record the result of a client tool's call, once. Needs no claim. Raises Refused when no such call waits."""
        ...

    async def seed(self, session: str, bodies: Sequence[Body]) -> bool:
        """Import a history into an empty session: all of it or nothing, as entries 1, 2, 3 …

        False when the session has entries already. A turn that stays open counts as handed over.
        """
        ...

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...

    async def asking_sessions(self) -> Sequence[Session]:
        """The sessions of every person with an open turn and an unanswered question, longest waiting first."""
        ...

    async def sessions_with_work(self, person: str = "") -> Sequence[str]:
        """The sessions that have work, of one person or of everyone, longest waiting first."""
        ...


class FullStore(Store, TaskStore, KeyStore, Protocol):
    """Everything in one database."""


class Blobs(Protocol):
    """Contents named by their hash."""

    def put(self, content: bytes) -> str: ...
    def get(self, name: str) -> bytes:
        """Raises Refused when there is no such blob."""
        ...


SessionStatus = Literal["idle", "waiting", "unfinished"]


def session_status(session: Session) -> SessionStatus:
    """The state of a session in one word."""
    if session.is_open:
        return "unfinished"
    return "waiting" if session.has_work else "idle"
