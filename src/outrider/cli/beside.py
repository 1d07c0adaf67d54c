"""Looking things up, whoever owns the home: in it or through its owner, and beside an owner that takes no guests."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import TYPE_CHECKING

import anyio

from outrider.app.acting import DEFAULT_PERSON, ReadOnlyApi, require_session
from outrider.app.presence import OpenMode
from outrider.cli.opening import open_home
from outrider.config.load import Config
from outrider.core.approve import Permission
from outrider.core.errors import HomeBusy, Refused
from outrider.core.events import Asked, Entry
from outrider.core.key_ports import Key
from outrider.core.plan import fold
from outrider.core.ports import Commands, Session
from outrider.core.tasks import Task

if TYPE_CHECKING:
    from outrider.store.reader import StoreReader

_OWNER_TIMEOUT = 0.3
"""Seconds to wait for an owner that takes no guests, and may have gone by then."""
_END_TIMEOUT = 10.0
"""Seconds its owner may take to see that a command has ended."""
_POLL_INTERVAL = 0.1


class Beside:
    """Looks into a home that a program of the person's owns, and that nobody can join."""

    def __init__(self, reader: "StoreReader", commands: Commands) -> None:
        self._reader = reader
        self._commands = commands

    @property
    def commands(self) -> Commands:
        return self._commands

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._reader.list(DEFAULT_PERSON, limit)

    async def find(self, name: str) -> Session:
        return require_session(await self._reader.find(DEFAULT_PERSON, name) if name.isprintable() else None, name)

    async def look_up(self, name: str) -> Session:
        return require_session(await self._reader.look_up(DEFAULT_PERSON, name) if name.isprintable() else None, name)

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._reader.read(session.id, after, limit)

    async def unfinished(self) -> Sequence[Session]:
        found = [await self._reader.find(DEFAULT_PERSON, id) for id in await self._reader.sessions_with_work()]
        return [session for session in found if session]

    async def asks(self, session: Session) -> Sequence[Asked]:
        return tuple(fold(await self._reader.read(session.id)).questions.values())

    async def grants(self) -> Sequence[Permission]:
        return await self._reader.list_permissions(DEFAULT_PERSON)

    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]:
        return await self._reader.list_tasks(
            DEFAULT_PERSON, session.id if session else "", open_only=open_only, limit=limit
        )

    async def find_task(self, name: str) -> Task:
        if found := await self._reader.find_task(DEFAULT_PERSON, name):
            return found
        raise Refused(f"there is no task {name!r}; `outrider tasks list` shows them")

    async def kill_task(self, task: Task) -> Task:
        if task.spec.kind == "session":
            raise HomeBusy(f"task {task.id} is a session of the process that uses this home; stop it there")
        await self._commands.kill(task)
        return await self.wait_task(task, _END_TIMEOUT)

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        with anyio.move_on_after(seconds):  # its owner is about to see it too
            while task.is_open:
                await anyio.sleep(_POLL_INTERVAL)
                task = await self.find_task(task.id)
        return task

    async def find_key(self, id: str) -> Key | None:
        return await self._reader.find_key(id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._reader.list_keys()

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._reader.spent(id, since)


@asynccontextmanager
async def open_read_only(config: Config, label: str) -> AsyncGenerator[ReadOnlyApi]:
    """In the home or through its owner; where that takes no guests, beside it. Carries nothing."""
    async with AsyncExitStack() as stack:
        try:
            looking: ReadOnlyApi = await stack.enter_async_context(
                open_home(config, OpenMode(label, "none", _OWNER_TIMEOUT))
            )
        except HomeBusy:
            from outrider.app.tasks import open_commands
            from outrider.store.reader import open_reader

            looking = Beside(await stack.enter_async_context(open_reader(config.home)), open_commands(config))
        yield looking
