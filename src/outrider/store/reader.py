"""Looks into a store from beside the process that owns it: reads alone. No lock of the home, and nothing is written.

For another process than the owner: the write-ahead log lets readers see every commit while the owner goes on.
"""

import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from anyio import CancelScope

from outrider.core.approvals import Permission
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Entry
from outrider.core.store_port import Key, Session
from outrider.core.tasks import Task
from outrider.store import journal, keys, sessions, tasks
from outrider.store.database import BUSY_TIMEOUT, DatabaseThread
from outrider.store.errors import explain
from outrider.store.migrations import MIGRATIONS, load_migrations, schema_version

T = TypeVar("T")


class StoreReader:
    """What a store says, without the power to change it."""

    def __init__(self, home: Path, lane: DatabaseThread, db: sqlite3.Connection) -> None:
        self._home = home
        self._lane = lane
        self._db = db

    async def find(self, person: str, session: str) -> Session | None:
        return await self._do(partial(sessions.find_session, self._db, person, session))

    async def look_up(self, person: str, session: str) -> Session | None:
        return await self._do(partial(sessions.look_up_session, self._db, person, session))

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        return await self._do(partial(sessions.list_sessions, self._db, person, limit))

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._do(partial(journal.read_entries, self._db, session, after, limit))

    async def sessions_with_work(self) -> Sequence[str]:
        return await self._do(partial(sessions.sessions_with_work, self._db))

    async def find_task(self, person: str, task: str) -> Task | None:
        return await self._do(partial(tasks.find_task, self._db, person, task))

    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]:
        return await self._do(partial(tasks.list_tasks, self._db, person, session, limit, open_only=open_only))

    async def list_permissions(self, person: str) -> Sequence[Permission]:
        return await self._do(partial(tasks.list_permissions, self._db, person))

    async def find_key(self, id: str) -> Key | None:
        return await self._do(partial(keys.find_key, self._db, id))

    async def list_keys(self) -> Sequence[Key]:
        return await self._do(partial(keys.list_keys, self._db))

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._do(partial(keys.spent_since, self._db, id, since))

    async def _do(self, act: Callable[[], T]) -> T:
        try:
            return await self._lane.run(act)
        except (sqlite3.Error, OSError) as error:
            raise explain(error, self._home) from error


@asynccontextmanager
async def open_reader(home: Path) -> AsyncGenerator[StoreReader]:
    """The store of this home, to be read while another process owns it.

    Raises Refused when there is none, Unavailable when its owner has not brought it to this version yet.
    """
    path = home / "store.db"
    if not path.exists():
        raise Refused(f"there is no store in {home} yet")
    async with AsyncExitStack() as stack:
        lane = DatabaseThread("reader")
        stack.push_async_callback(lane.close)
        opened: list[sqlite3.Connection] = []
        stack.push_async_callback(_close, lane, opened)
        try:
            await lane.run(lambda: opened.append(_connect(path)))
            version = await lane.run(lambda: schema_version(opened[0]))
        except (sqlite3.Error, OSError) as error:
            raise explain(error, home) from error
        if version != load_migrations(MIGRATIONS)[-1].version:
            raise Unavailable(f"the store in {home} is of another version than this Outrider; try again in a moment")
        yield StoreReader(home, lane, opened[0])


def _connect(path: Path) -> sqlite3.Connection:
    # Read-only in the file system's sense too: closing this connection never touches the owner's log.
    uri = path.absolute().as_uri() + "?mode=ro"
    return sqlite3.connect(uri, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)


async def _close(lane: DatabaseThread, opened: list[sqlite3.Connection]) -> None:
    with CancelScope(shield=True):
        for db in opened:
            await lane.run(db.close)
