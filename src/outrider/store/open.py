"""Opens a home's store, and closes it: the one place where its lock, its threads and its connections begin and end."""

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from anyio import CancelScope

from outrider.store.connect import connect_reading, connect_writing
from outrider.store.faults import explain
from outrider.store.journal import Clock
from outrider.store.lane import DatabaseThread
from outrider.store.lock import HomeLock, lock_home
from outrider.store.migrate import MIGRATIONS
from outrider.store.prepare import prepare_store
from outrider.store.search import SearchIndex
from outrider.store.sqlite import DatabaseThreads, SqliteStore
from outrider.store.write import SessionWrites
from outrider.store.writer import MAX_BATCH, GroupCommit


def _microseconds() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def open_store(
    home: Path,
    label: str = "outrider",
    wait: float = 2.0,
    migrations: Path = MIGRATIONS,
    clock: Clock = _microseconds,
    hold: HomeLock | None = None,
) -> AsyncGenerator[SqliteStore]:
    """The store of this home, made if it is new. `label` tells others who holds the home. `hold` is given by
    whoever holds it already.

    Raises HomeBusy when another process has it, Refused or Unavailable when the home cannot be used.
    """
    async with AsyncExitStack() as stack:
        hold = hold or await stack.enter_async_context(lock_home(home, label, wait))
        opened: list[SqliteStore] = []
        stack.callback(_record_exit, hold, opened)
        reading = DatabaseThread("reader")
        stack.push_async_callback(reading.close)
        try:
            notices = await reading.run(lambda: prepare_store(home, hold.previous, migrations))
            writes = await _open_connection(stack, reading, lambda: connect_writing(home / "store.db"))
            reads = await _open_connection(stack, reading, lambda: connect_reading(home / "store.db"))
        except (sqlite3.Error, OSError) as error:
            raise explain(error, home) from error
        search = SearchIndex(home)
        stack.callback(search.close)
        slow = DatabaseThread("search")
        stack.push_async_callback(slow.close)
        writing = DatabaseThread("writer", GroupCommit(writes, home / "store.db"), MAX_BATCH)
        stack.push_async_callback(writing.close)
        store = SqliteStore(home, DatabaseThreads(writing, reading, slow), SessionWrites(writes, clock), reads, search)
        store.notices = tuple(notices)
        opened.append(store)
        yield store


async def _open_connection(
    stack: AsyncExitStack, lane: DatabaseThread, connect: Callable[[], sqlite3.Connection]
) -> sqlite3.Connection:
    """A connection that is closed with the stack, on the lane: closing the last one copies the log into the file."""
    opened: list[sqlite3.Connection] = []

    async def close() -> None:
        with CancelScope(shield=True):
            for db in opened:
                await lane.run(db.close)

    stack.push_async_callback(close)
    await lane.run(lambda: opened.append(connect()))
    return opened[0]


def _record_exit(hold: HomeLock, opened: list[SqliteStore]) -> None:
    """A run that did not get as far as this, or could not say so, counts as one that was killed."""
    if opened:
        with suppress(OSError):
            hold.record_shutdown("damaged" if opened[0].is_damaged else "clean")
