"""How a process is in a home. Light to import: a command that only joins another process needs no more of us.

What commands do with a home, whoever owns it: the calls that an open agent answers, here or in another process.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from math import inf
from typing import Literal, Protocol

from msgspec import Struct

from outrider.config.models import choose_models
from outrider.config.schema import Config
from outrider.core.approvals import Permission
from outrider.core.errors import Refused
from outrider.core.events import Asked, Entry, Event
from outrider.core.ports import Commands
from outrider.core.store_port import Key, KeySpec, SearchHit, Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult
from outrider.system.lock import HomeLock


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
DEFAULT_PERSON = "owner"
"""The person whose home this is."""


class ReadOnlyApi(Protocol):
    """What can be looked up, and the ends of commands, which are on the disk."""

    async def sessions(self, limit: int = 100) -> Sequence[Session]: ...
    async def find(self, name: str) -> Session: ...
    async def find_by_prefix(self, name: str) -> Session: ...
    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...
    async def unfinished(self) -> Sequence[Session]: ...
    async def questions(self, session: Session) -> Sequence[Asked]: ...
    async def permissions(self) -> Sequence[Permission]: ...
    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]: ...
    async def find_task(self, name: str) -> Task: ...
    async def kill_task(self, task: Task) -> Task: ...
    async def wait_task(self, task: Task, seconds: float = inf) -> Task: ...
    async def find_key(self, id: str) -> Key | None: ...
    async def list_keys(self) -> Sequence[Key]: ...
    async def spent(self, id: str, since: int = 0) -> float: ...

    @property
    def commands(self) -> Commands:
        """The commands of tasks, as they are on disk."""
        ...


class AgentApi(ReadOnlyApi, Protocol):
    """A home that can be acted in. What each call promises stands at `Agent`."""

    @property
    def config(self) -> Config: ...
    @property
    def notices(self) -> Sequence[str]:
        """What the person should know about this home."""
        ...

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        """Who answers otherwise than this process would, in a session with these settings; empty when nobody does."""
        ...

    @property
    def is_client(self) -> bool:
        """Whether another process owns the home now, and carries its turns."""
        ...

    @property
    def default_model(self) -> str:
        """What is asked when a session names no model; empty when nothing can be."""
        ...

    @property
    def default_runtime(self) -> str:
        """What carries the turns of sessions that ask for nothing else."""
        ...

    async def wait_owner_changed(self) -> None:
        """Wait until another process owns the home than now."""
        ...

    async def say(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
        on_event: Callable[[Event], None] | None = None,
    ) -> TurnResult: ...
    async def post(
        self,
        text: str,
        *,
        session: Session,
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
    ) -> Entry: ...
    def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]: ...
    async def resume(self, session: Session) -> None: ...
    async def resume_all(self) -> Sequence[Session]: ...
    async def wait(self, session: Session) -> TurnResult | None: ...
    async def stop(self, session: Session, reason: str = "stopped by the person", *, tasks: bool = False) -> bool: ...
    async def answer(self, session: Session, asked: Asked, answer: str) -> bool: ...
    async def revoke_permission(self, permission_id: str) -> bool: ...
    async def session(self, name: str = "") -> Session: ...
    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]: ...
    async def rename(self, session: Session, name: str) -> Session: ...
    async def delete(self, session: Session) -> bool: ...
    async def change(self, session: Session, settings: Mapping[str, str]) -> None: ...
    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key: ...
    async def revoke_key(self, id: str) -> bool: ...


def default_model_name(config: Config) -> str:
    """The name of the model that these settings choose; empty when they choose none that can be asked."""
    try:
        return choose_models(config)[0].name
    except Refused:
        return ""


def require_session(found: Session | None, name: str) -> Session:
    """The session that was looked for by this name. Raises Refused when there is none."""
    if found is None:
        raise Refused(f"no session is called {name!r}; `outrider sessions list` shows them")
    return found
