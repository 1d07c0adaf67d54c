"""The store of one process, all that is kept of a home, on threads to write, read, and do what takes long.

Makes a home's store ready to be opened: new, checked, repaired or upgraded. Says what the person should know.

Opens a home's store, and closes it: the one place where its lock, its threads and its connections begin and end.
"""

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from anyio import CancelScope

from outrider.core.approvals import Permission, PermissionScope
from outrider.core.errors import Refused, StoreDamaged
from outrider.core.events import Body, Entry, Input, Result
from outrider.core.store_port import Claim, Key, KeySpec, Person, SearchHit, Session, TaskEnd
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec, TaskState
from outrider.store import journal, keys, sessions, tasks, webhooks
from outrider.store.blobs import FileBlobs
from outrider.store.database import (
    MAX_BATCH,
    Clock,
    DatabaseThread,
    GroupCommit,
    connect,
    connect_reading,
    connect_writing,
    remove_database,
    side_files,
)
from outrider.store.errors import explain
from outrider.store.migrations import MIGRATIONS, Migration, create_store, load_migrations, migrate, schema_version
from outrider.store.recovery import diagnose, find_problems, finish_swap, repair_store, set_aside
from outrider.store.search import SearchIndex
from outrider.store.sessions import SessionWrites
from outrider.store.tasks import encode_spec
from outrider.store.webhooks import WebhookCount, WebhookDelivery
from outrider.system.lock import HomeLock, LockHolder, lock_home

T = TypeVar("T")


class DatabaseThreads:
    """The threads of an open store, and what each of them works on."""

    def __init__(self, writing: DatabaseThread, reading: DatabaseThread, slow: DatabaseThread) -> None:
        self.writer, self.reader, self.background = writing, reading, slow


class SqliteStore:
    """Implements the ports Store, TaskStore and KeyStore, and `hooks.HookStore`. Made by `open_store`."""

    def __init__(
        self, home: Path, lanes: DatabaseThreads, writes: SessionWrites, reads: sqlite3.Connection, search: SearchIndex
    ) -> None:
        self._home, self._threads = home, lanes
        self._writes, self._reads, self._search = writes, reads, search
        self.blobs = FileBlobs(home / "blobs")
        self.notices: tuple[str, ...] = ()
        """What to tell the person: a damaged store set aside, an upgrade made."""
        self.is_damaged = False
        """Whether something unreadable was met; the next start then looks at everything."""

    async def create(self, person: str, name: str, workspace: str) -> Session:
        return await self._write(partial(self._writes.create_or_get, person, name, workspace))

    async def find(self, person: str, session: str) -> Session | None:
        return await self._read(partial(sessions.find_session, self._reads, person, session))

    async def look_up(self, person: str, session: str) -> Session | None:
        return await self._read(partial(sessions.look_up_session, self._reads, person, session))

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        return await self._read(partial(sessions.list_sessions, self._reads, person, limit))

    async def rename(self, person: str, session: str, name: str) -> Session:
        return await self._write(partial(self._writes.rename, person, session, name))

    async def delete(self, person: str, session: str) -> bool:
        searchable = await self._write(partial(self._writes.delete, person, session))
        if searchable is None:
            return False
        await self._run_on(self._threads.background, partial(self._search.remove_session, session, searchable))
        return True

    async def search(self, person: str, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._run_on(self._threads.background, partial(self._search.find, person, words, limit))

    async def accept(self, session: str, body: Input, key: str | None, queue: int) -> tuple[Entry, bool]:
        return await self._write(partial(self._writes.accept_once, session, body, key, queue, _encode_or_refuse(body)))

    async def claim(self, session: str) -> Claim:
        return await self._write(partial(self._writes.claim, session))

    async def release(self, session: str, generation: int) -> None:
        await self._write(partial(self._writes.release, session, generation))

    async def append(self, session: str, body: Body, generation: int, key: str | None = None) -> Entry | None:
        return await self._write(
            partial(self._writes.append_fenced, session, body, generation, key, _encode_or_refuse(body))
        )

    async def stop(self, session: str, reason: str, partial: str = "") -> Entry | None:
        return await self._write(lambda: self._writes.stop_and_fence(session, reason, partial))

    async def change(self, session: str, name: str, value: str) -> Entry:
        return await self._write(partial(self._writes.change, session, name, value))

    async def record_client_result(self, session: str, result: Result) -> Entry | None:
        return await self._write(partial(self._writes.record_client_result, session, result))

    async def seed(self, session: str, bodies: Sequence[Body]) -> bool:
        return await self._write(
            partial(self._writes.seed_when_empty, session, [(b, _encode_or_refuse(b)) for b in bodies])
        )

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._read(partial(journal.read_entries, self._reads, session, after, limit))

    async def sessions_with_work(self) -> Sequence[str]:
        return await self._read(partial(sessions.sessions_with_work, self._reads))

    async def create_task(self, session: str, spec: TaskSpec, max_open: int) -> tuple[Task, bool]:
        return await self._write(lambda: self._writes.tasks.create_once(session, spec, max_open, encode_spec(spec)))

    async def mark_task_started(self, task: str, process: ProcessIdentity | None, child: str = "") -> Task:
        return await self._write(partial(self._writes.tasks.mark_started, task, process, child))

    async def detach_task(self, task: str, notify: Notify) -> Task:
        return await self._write(partial(self._writes.tasks.detach, task, notify))

    async def end_task_and_notify(self, task: str, end: TaskEnd, notice: str) -> Task:
        return await self._write(partial(self._writes.tasks.end_task_and_notify, task, end, notice))

    async def update_task_and_notify(self, task: str, state: TaskState, notice: str, key: str) -> Task:
        return await self._write(partial(self._writes.tasks.update_and_notify, task, state, notice, key))

    async def find_task(self, person: str, task: str) -> Task | None:
        return await self._read(partial(tasks.find_task, self._reads, person, task))

    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]:
        return await self._read(partial(tasks.list_tasks, self._reads, person, session, limit, open_only=open_only))

    async def open_tasks(self) -> Sequence[Task]:
        return await self._read(partial(tasks.list_open_tasks, self._reads))

    async def task_of_child(self, child: str) -> Task | None:
        return await self._read(partial(tasks.find_task_of_child, self._reads, child))

    async def answer(self, session: str, question_id: str, answer: str, person: str) -> Entry | None:
        return await self._write(partial(self._writes.tasks.answer_once, session, question_id, answer, person))

    async def add_permission(self, person: str, scope: PermissionScope, applies_to: str, need: str) -> Permission:
        return await self._write(partial(self._writes.tasks.add_permission_once, person, scope, applies_to, need))

    async def list_permissions(self, person: str) -> Sequence[Permission]:
        return await self._read(partial(tasks.list_permissions, self._reads, person))

    async def revoke_permission(self, person: str, permission_id: str) -> bool:
        return await self._write(partial(self._writes.tasks.revoke_permission, person, permission_id))

    async def add_webhook(self, session: str, seq: int) -> WebhookDelivery:
        return await self._write(partial(self._writes.webhooks.add_once, session, seq))

    async def pending_webhooks(self) -> Sequence[WebhookDelivery]:
        return await self._read(partial(webhooks.list_pending_webhooks, self._reads))

    async def update_webhook(self, hook: WebhookDelivery) -> None:
        await self._write(partial(self._writes.webhooks.update, hook))

    async def count_webhooks(self) -> WebhookCount:
        return await self._read(partial(webhooks.webhook_counts, self._reads))

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        return await self._write(partial(self._writes.keys.create, id, spec, digest))

    async def find_key(self, id: str) -> Key | None:
        return await self._read(partial(keys.find_key, self._reads, id))

    async def list_keys(self) -> Sequence[Key]:
        return await self._read(partial(keys.list_keys, self._reads))

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._read(partial(keys.spent_since, self._reads, id, since))

    async def people(self) -> Sequence[Person]:
        return await self._read(partial(keys.list_people, self._reads))

    async def revoke_key(self, id: str) -> bool:
        return await self._write(partial(self._writes.keys.revoke, id))

    async def touch_key(self, id: str) -> None:
        await self._write(partial(self._writes.keys.touch, id))

    async def check(self) -> Sequence[str]:
        """Look through everything that is stored; one line for each problem."""
        return await self._run_on(self._threads.background, self._find_problems)

    def _find_problems(self) -> Sequence[str]:
        db = connect_reading(self._home / "store.db")
        try:
            found = find_problems(db)
        finally:
            db.close()
        self.is_damaged = self.is_damaged or bool(found)
        return [*found, *self.blobs.problems()]

    async def _write(self, act: Callable[[], T]) -> T:
        return await self._run_on(self._threads.writer, act)

    async def _read(self, act: Callable[[], T]) -> T:
        return await self._run_on(self._threads.reader, act)

    async def _run_on(self, lane: DatabaseThread, act: Callable[[], T]) -> T:
        try:
            return await lane.run(act)
        except UnicodeEncodeError as error:
            raise _not_text_error(error) from error
        except StoreDamaged:
            self.is_damaged = True
            raise
        except (sqlite3.Error, OSError) as error:
            told = explain(error, self._home)
            self.is_damaged = self.is_damaged or isinstance(told, StoreDamaged)
            raise told from error


def _encode_or_refuse(body: Body) -> bytes:
    try:
        return journal.encode_body(body)
    except UnicodeEncodeError as error:
        raise _not_text_error(error) from error


def _not_text_error(error: UnicodeEncodeError) -> Refused:
    return Refused(f"{error.object[:80]!r} holds a character that is none ({error.reason}); leave it out")


ALWAYS_CHECKED_SIZE = 64 * 1024 * 1024
"""A store up to this size is checked at every start; a larger one when the last run did not end well."""


def prepare_store(home: Path, before: LockHolder, migrations: Path) -> list[str]:
    """Afterwards `store.db` is there, sound, writable and of our version. Raises sqlite3.Error or OSError otherwise."""
    path, steps = home / "store.db", load_migrations(migrations)
    notices: list[str] = []
    if kept := finish_swap(path):
        notices.append(f"The store was damaged; what could be read was recovered. The damaged file is kept as {kept}.")
        remove_database(home / "search.db")
    if path.exists():
        notices += _check_and_repair(path, before, steps)
        notices += migrate(path, steps)
    else:
        notices += _create_missing(path, before, steps)
    _check_writable(path)
    return notices


def _check_and_repair(path: Path, before: LockHolder, steps: Sequence[Migration]) -> list[str]:
    newest = steps[-1].version
    look_inside = before.left != "clean" or path.stat().st_size < ALWAYS_CHECKED_SIZE
    problem = diagnose(path, newest, look_inside=look_inside)
    if not problem:
        _refuse_newer(path, newest)
        if before.left == "damaged":
            problem = next(iter(_full_check(path)), "")
    if not problem:
        return []
    notices = repair_store(path, problem, steps)
    remove_database(path.with_name("search.db"))
    return notices


def _create_missing(path: Path, before: LockHolder, steps: Sequence[Migration]) -> list[str]:
    notices: list[str] = []
    if any(each.exists() for each in side_files(path)):
        notices.append(f"The store {path} was missing; what was left beside it is kept as {set_aside(path)}-wal.")
    elif before.left:
        notices.append(f"The store {path} was missing; a new, empty one was begun.")
    remove_database(path.with_name("search.db"))
    create_store(path, steps)
    return notices


def _refuse_newer(path: Path, newest: int) -> None:
    db = connect(path)
    try:
        version = schema_version(db)
    finally:
        db.close()
    if version > newest:
        raise Refused(
            f"the store {path} is of version {version}, made by a newer Outrider; this one knows up to {newest}: "
            "upgrade Outrider"
        )


def _full_check(path: Path) -> list[str]:
    db = connect(path)
    try:
        return find_problems(db)
    finally:
        db.close()


def _check_writable(path: Path) -> None:
    db = connect(path)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    finally:
        db.close()


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


def _record_exit(hold: HomeLock, stores: list[SqliteStore]) -> None:
    """A run that did not get as far as this, or could not say so, counts as one that was killed."""
    if stores:
        with suppress(OSError):
            hold.record_shutdown("damaged" if stores[0].is_damaged else "clean")
