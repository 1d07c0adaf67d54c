"""The API of a home: `AgentApi`, which `Agent` implements in the owning process and `HomeClient` over a socket.

Light to import: a command that only calls the owner of a home needs neither the store nor the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from typing import Any, Literal

from msgspec import Struct

from outrider.app.operations import Access, Operation, operation
from outrider.config.models import choose_models
from outrider.config.schema import Config
from outrider.core.approvals import Permission
from outrider.core.errors import Refused
from outrider.core.events import Asked, Entry, Event, short_question_id
from outrider.core.ports import Commands
from outrider.core.store_port import OWNER, Key, KeySpec, SearchHit, Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult, collect_result, until_turn_ended
from outrider.core.types import REMOTE

DEFAULT_PERSON = OWNER


class PendingQuestion(Struct, frozen=True):
    """A question that a session waits to have answered."""

    session: Session
    asked: Asked

    @property
    def id(self) -> str:
        """The id that people type."""
        return short_question_id(self.session.id, self.asked)


class OpenMode(Struct, frozen=True):
    """How a process uses a home."""

    label: str = "Python"
    """The name of this process in messages to others that find the home in use."""
    runs: Literal["all", "own", "none"] = "own"
    """Which sessions it runs when they have work: all, those that this process was asked for, or none."""
    wait: float = 2.0
    """Seconds to wait for a home that is in use."""
    access: Access = "full"
    """What it needs from another process that owns the home."""

    @property
    def serves(self) -> Access:
        """What it lets others do when it owns the home."""
        return "read" if self.runs == "none" else "full"


def check_runtime_choice(settings: Mapping[str, str], default: str) -> None:
    """Refuse a runtime for a session while every turn is forwarded to another agent."""
    chosen = settings.get("runtime", REMOTE)
    if default == REMOTE != chosen:
        raise Refused(
            f"{chosen} cannot run turns here while they are forwarded to another agent (remote.url): "
            "`outrider config unset remote.url`, or OUTRIDER_REMOTE_URL without a value, runs them here again"
        )


class AgentApi(ABC):
    """A home, in this process or another one. Every operation is declared here and nowhere else."""

    default_address = ""
    """The address of what is said without one."""

    async def forward(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Have an operation done elsewhere that this class does not do itself."""
        raise NotImplementedError(operation.name)

    @property
    @abstractmethod
    def config(self) -> Config: ...

    @property
    @abstractmethod
    def notices(self) -> Sequence[str]:
        """What a person should know about this home, for example that a damaged store was set aside."""

    @property
    @abstractmethod
    def commands(self) -> Commands:
        """The commands of tasks, read from disk."""

    @property
    @abstractmethod
    def is_client(self) -> bool:
        """Whether another process owns the home and runs its turns."""

    @property
    @abstractmethod
    def default_model(self) -> str:
        """The model of sessions that do not name one; empty when there is none."""

    @property
    @abstractmethod
    def default_runtime(self) -> str:
        """The runtime of sessions that do not name one."""

    @abstractmethod
    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        """How the owner's model or runtime differs from this process's for such a session; empty when it does not."""

    @abstractmethod
    async def wait_owner_changed(self) -> None:
        """Wait until another process owns the home."""

    # Messages and turns.

    async def say(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> TurnResult:
        """Say something and wait for the end of the turn that answers it.

        `session` is a name or an id; a name that does not exist yet, or an empty one, creates a session. With a `key`,
        saying it again returns the result of the same turn and runs nothing twice.
        """
        target = await self.session(session)
        entry = await self._post(text, target, images, key, address)
        return await collect_result(target.id, until_turn_ended(entry, self.follow(target, entry.seq - 1)), on_event)

    async def events(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Say something and yield every entry and delta, from the input to the `Ended` that answers it."""
        target = await self.session(session)
        entry = await self._post(text, target, images, key, address)
        async with aclosing(until_turn_ended(entry, self.follow(target, entry.seq - 1))) as stream:
            async for event in stream:
                yield event

    async def _post(
        self, text: str, session: Session, images: Sequence[bytes], key: str | None, address: str | None
    ) -> Entry:
        address = self.default_address if address is None else address
        return await self.post(text, session=session, images=images, key=key, address=address)

    @operation("full")
    async def post(
        self,
        text: str,
        *,
        session: Session,
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
    ) -> Entry:
        """Record an input. It is durable when this returns; its turn runs in the background."""
        ...

    @abstractmethod
    def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every entry after this one and the deltas in between, for as long as it is read."""

    @operation("full")
    async def resume(self, session: Session) -> None:
        """Run this session if it has work, now and whenever it gets some."""
        ...

    @operation("full")
    async def resume_all(self) -> Sequence[Session]:
        """Run every session that has work, for example after a crash, and return those sessions."""
        ...

    @operation("full")
    async def wait(self, session: Session) -> TurnResult | None:
        """Run this session until nothing is left to do: the result of its last turn, or None if it had no work."""
        ...

    @operation("full", reports_change=True)
    async def stop(self, session: Session, reason: str = "stopped", *, tasks: bool = False) -> bool:
        """Stop the session's turn and the commands that it waits for; with `tasks`, those in the background too.

        True when there was something to stop.
        """
        ...

    @operation("read")
    async def questions(self, session: Session) -> Sequence[Asked]:
        """The unanswered questions of this session."""
        ...

    @operation("read")
    async def pending_questions(self) -> Sequence[PendingQuestion]:
        """The unanswered questions of all your sessions, and for the owner those of everyone; longest waiting first."""
        ...

    @operation("full", reports_change=True)
    async def answer(self, session: Session, asked: Asked, answer: str) -> bool:
        """Answer a question: `once`, `session`, `workspace` or `no`. False when it was answered before.

        The owner may answer for everyone; a permission then belongs to the person whose session asks.
        """
        ...

    # Sessions.

    @operation("full")
    async def session(self, name: str = "") -> Session:
        """The session with this name or id, created if there is none; a new one for an empty name."""
        ...

    @operation("read")
    async def find(self, name: str) -> Session:
        """The session with this name or id. Raises Refused when there is none."""
        ...

    @operation("read")
    async def find_by_prefix(self, name: str) -> Session:
        """Like `find`; six or more characters that begin only one id are enough."""
        ...

    @operation("read")
    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        """The sessions, latest first."""
        ...

    @operation("read")
    async def unfinished(self) -> Sequence[Session]:
        """The sessions that have work, longest waiting first. None is resumed."""
        ...

    @operation("read")
    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        """The entries of a session after this one; all of them without a `limit`."""
        ...

    @operation("read")
    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]:
        """Where these words were said."""
        ...

    @operation("full")
    async def rename(self, session: Session, name: str) -> Session:
        """Rename a session. Raises NameTaken for a name in use, Refused for a session whose name is fixed."""
        ...

    @operation("full")
    async def move(self, session: Session) -> Session:
        """Have a session work in the folder of this process. Raises Refused while its own is still at its path."""
        ...

    @operation("full")
    async def change(self, session: Session, settings: Mapping[str, str]) -> None:
        """Change settings of this session, for example `{"model": "anthropic:…"}`."""
        ...

    @operation("full", reports_change=True)
    async def delete(self, session: Session) -> bool:
        """Delete a session and its journal."""
        ...

    # Permissions, tasks and keys.

    @operation("read")
    async def permissions(self) -> Sequence[Permission]:
        """What is allowed for a whole session or workspace."""
        ...

    @operation("full", reports_change=True)
    async def revoke_permission(self, permission_id: str) -> bool:
        """Revoke a permission."""
        ...

    @operation("read")
    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]:
        """The tasks of a session, or of all sessions; latest first."""
        ...

    @operation("read")
    async def find_task(self, name: str) -> Task:
        """The task with this id. Raises Refused when there is none."""
        ...

    @operation("read")
    async def refresh_task(self, task: Task) -> Task:
        """The task as it is now, after something was written to its stdin: it is no longer stalled then."""
        ...

    @operation("read")  # A person may always end a command, whichever program started it.
    async def kill_task(self, task: Task) -> Task:
        """Kill a task and every process it started; it has ended when this returns."""
        ...

    @operation("read")
    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        """Wait for the end of a task, at most this long; the task as it is then."""
        ...

    @operation("read")
    async def find_key(self, id: str) -> Key | None: ...

    @operation("read")
    async def list_keys(self) -> Sequence[Key]: ...

    @operation("read")
    async def spent(self, id: str, since: int = 0) -> float:
        """Dollars that a key has spent since this day."""
        ...

    @operation("full")
    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key: ...

    @operation("full", reports_change=True)
    async def revoke_key(self, id: str) -> bool: ...


def default_model_name(config: Config) -> str:
    """The model that these settings choose; empty when they choose none."""
    try:
        return choose_models(config)[0].name
    except Refused:
        return ""
