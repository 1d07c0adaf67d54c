"""The store of a home: `open_store` locks, checks, repairs and upgrades it; `SqliteStore` runs its reads and writes.

Writes run on one thread in groups, reads on another, and what takes long on a third. Every connection is opened and
closed here.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from anyio import CancelScope
from msgspec import Struct

from outrider.core.approvals import Permission, PermissionScope
from outrider.core.errors import Refused, StoreDamaged
from outrider.core.events import Body, Bound, Entry, Input, Result
from outrider.core.store_port import Claim, Key, KeySpec, Person, SearchHit, Session, TaskEnd
from outrider.core.tasks import KeyedNotice, Notify, ProcessIdentity, Task, TaskNotice, TaskSpec, TaskState
from outrider.core.types import WorkspaceIdentity
from outrider.store import journal, keys, sessions, tasks, webhooks
from outrider.store.backup import (
    BackupDeadline,
    BackupStopped,
    back_up,
    needs_backup,
    remove_session_from_backup,
    remove_unfinished_backup,
)
from outrider.store.blobs import FileBlobs
from outrider.store.database import (
    BUSY_TIMEOUT,
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
from outrider.store.journal import Journal
from outrider.store.keys import KeyWrites
from outrider.store.migrations import MIGRATIONS, Migration, create_store, load_migrations, migrate, schema_version
from outrider.store.recovery import diagnose, find_problems, finish_swap, keep_backup, repair_store, set_aside
from outrider.store.search import SearchIndex
from outrider.store.sessions import SessionWrites
from outrider.store.tasks import TaskWrites
from outrider.store.webhooks import WebhookCount, WebhookDelivery, WebhookWrites
from outrider.system.lock import HomeLock, LockHolder, lock_home

log = logging.getLogger("outrider.store")
P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThreads(Struct, frozen=True):
    """The threads of an open store."""

    writer: DatabaseThread
    reader: DatabaseThread
    background: DatabaseThread
    """Searches, checks and the backup."""


class SqliteStore:
    """Implements the ports Store, TaskStore and KeyStore, and `WebhookStore`. Made by `open_store`."""

    def __init__(
        self,
        home: Path,
        threads: DatabaseThreads,
        writes: sqlite3.Connection,
        reads: sqlite3.Connection,
        search: SearchIndex,
        clock: Clock,
        notices: Sequence[str],
    ) -> None:
        self._home, self._path = home, home / "store.db"
        self._threads, self._reads, self._search = threads, reads, search
        journals = Journal(writes, clock)
        self._sessions = SessionWrites(writes, journals, clock)
        self._tasks = TaskWrites(writes, journals, clock)
        self._keys = KeyWrites(writes, clock)
        self._webhooks = WebhookWrites(writes, clock)
        self._is_damaged = False
        self.blobs = FileBlobs(home / "blobs")
        self.notices = tuple(notices)
        """What the user should know: a damaged store was set aside, or an upgrade was made."""

    @property
    def is_damaged(self) -> bool:
        """Whether something unreadable was found."""
        return self._is_damaged

    def mark_damaged(self) -> None:
        """Have the next start check everything and repair what it finds."""
        self._is_damaged = True

    async def create(
        self, person: str, name: str, workspace: str, identity: WorkspaceIdentity | None = None
    ) -> Session:
        return await self._write(self._sessions.create_or_get, person, name, workspace, identity)

    async def record_identity(
        self, session: str, identity: WorkspaceIdentity, replaces: WorkspaceIdentity | None
    ) -> Session:
        return await self._write(self._sessions.record_identity, session, identity, replaces)

    async def record_move(self, session: str, workspace: str, identity: WorkspaceIdentity, replaces: str) -> Session:
        return await self._write(self._sessions.record_move, session, workspace, identity, replaces)

    async def find(self, person: str, session: str) -> Session | None:
        return await self._read(sessions.find_session, person, session)

    async def look_up(self, person: str, session: str) -> Session | None:
        return await self._read(sessions.look_up_session, person, session)

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        return await self._read(sessions.list_sessions, person, limit)

    async def list_settings(self, person: str, limit: int = 100) -> Mapping[str, Mapping[str, str]]:
        return await self._read(sessions.list_settings, person, limit)

    async def list_bound(self, runtime: str, limit: int) -> Sequence[tuple[Session, Bound]]:
        return await self._read(sessions.list_bound, runtime, limit)

    async def find_newest_input(self, session: str, accepts: Callable[[Input], bool]) -> Input | None:
        return await self._read(sessions.find_newest_input, session, accepts)

    async def rename(self, person: str, session: str, name: str) -> Session:
        return await self._write(self._sessions.rename, person, session, name)

    async def delete(self, person: str, session: str) -> bool:
        # The backup first: interrupted in between, the session still exists, and a repair brings back nothing deleted.
        await self._run_on(self._threads.background, remove_session_from_backup, self._path, person, session)
        searchable = await self._write(self._sessions.delete, person, session)
        if searchable is None:
            return False
        await self._run_on(self._threads.background, self._search.remove_session, session, searchable)
        return True

    async def search(self, person: str, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._run_on(self._threads.background, self._search.find, person, words, limit)

    async def accept(self, session: str, body: Input, key: str | None, queue: int) -> tuple[Entry, bool]:
        return await self._write(self._sessions.accept_once, session, body, key, queue, _encode_or_refuse(body))

    async def claim(self, session: str) -> Claim:
        return await self._write(self._sessions.claim, session)

    async def release(self, session: str, generation: int) -> None:
        await self._write(self._sessions.release, session, generation)

    async def append(self, session: str, body: Body, generation: int, key: str | None = None) -> Entry | None:
        return await self._write(self._sessions.append_fenced, session, body, generation, key, _encode_or_refuse(body))

    async def stop(self, session: str, reason: str, partial: str = "") -> Entry | None:
        return await self._write(self._sessions.stop_and_fence, session, reason, partial)

    async def change(self, session: str, name: str, value: str) -> Entry:
        return await self._write(self._sessions.change, session, name, value)

    async def record_client_result(self, session: str, result: Result) -> Entry | None:
        return await self._write(self._sessions.record_client_result, session, result)

    async def seed(self, session: str, bodies: Sequence[Body]) -> bool:
        return await self._write(self._sessions.seed_when_empty, session, [(b, _encode_or_refuse(b)) for b in bodies])

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._read(journal.read_entries, session, after, limit)

    async def asking_sessions(self) -> Sequence[Session]:
        return await self._read(sessions.asking_sessions)

    async def sessions_with_work(self, person: str = "") -> Sequence[str]:
        return await self._read(sessions.sessions_with_work, person)

    async def create_task(self, session: str, spec: TaskSpec, max_open: int) -> tuple[Task, bool]:
        return await self._write(self._tasks.create_once, session, spec, max_open)

    async def mark_task_started(self, task: str, process: ProcessIdentity | None, child: str = "") -> Task:
        return await self._write(self._tasks.mark_started, task, process, child)

    async def detach_task(self, task: str, notify: Notify) -> Task:
        return await self._write(self._tasks.detach, task, notify)

    async def end_task_and_notify(
        self, task: str, end: TaskEnd, notice: TaskNotice, matches: KeyedNotice | None = None
    ) -> Task:
        return await self._write(self._tasks.end_task_and_notify, task, end, notice, matches)

    async def update_task_and_notify(
        self, task: str, state: TaskState | None, notice: TaskNotice | None, key: str
    ) -> Task:
        return await self._write(self._tasks.update_and_notify, task, state, notice, key)

    async def notice_keys(self, session: str, task: str) -> Sequence[str]:
        return await self._read(tasks.list_notice_keys, session, task)

    async def find_task(self, person: str, task: str) -> Task | None:
        return await self._read(tasks.find_task, person, task)

    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]:
        return await self._read(tasks.list_tasks, person, session, limit, open_only=open_only)

    async def open_tasks(self) -> Sequence[Task]:
        return await self._read(tasks.list_open_tasks)

    async def task_of_child(self, child: str) -> Task | None:
        return await self._read(tasks.find_task_of_child, child)

    async def answer(self, session: str, question_id: str, answer: str, person: str) -> Entry | None:
        return await self._write(self._tasks.answer_once, session, question_id, answer, person)

    async def add_permission(self, person: str, scope: PermissionScope, applies_to: str, need: str) -> Permission:
        return await self._write(self._tasks.add_permission_once, person, scope, applies_to, need)

    async def list_permissions(self, person: str) -> Sequence[Permission]:
        return await self._read(tasks.list_permissions, person)

    async def revoke_permission(self, person: str, permission_id: str) -> bool:
        return await self._write(self._tasks.revoke_permission, person, permission_id)

    async def add_webhook(self, session: str, seq: int) -> WebhookDelivery:
        return await self._write(self._webhooks.add_once, session, seq)

    async def pending_webhooks(self) -> Sequence[WebhookDelivery]:
        return await self._read(webhooks.list_pending_webhooks)

    async def update_webhook(self, hook: WebhookDelivery) -> None:
        await self._write(self._webhooks.update, hook)

    async def count_webhooks(self) -> WebhookCount:
        return await self._read(webhooks.webhook_counts)

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        return await self._write(self._keys.create, id, spec, digest)

    async def find_key(self, id: str) -> Key | None:
        return await self._read(keys.find_key, id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._read(keys.list_keys)

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._read(keys.spent_since, id, since)

    async def people(self) -> Sequence[Person]:
        return await self._read(keys.list_people)

    async def revoke_key(self, id: str) -> bool:
        return await self._write(self._keys.revoke, id)

    async def touch_key(self, id: str) -> None:
        await self._write(self._keys.touch, id)

    async def check(self) -> Sequence[str]:
        """Check everything that is stored; one line for each problem."""
        return await self._run_on(self._threads.background, self._find_problems)

    def _find_problems(self) -> Sequence[str]:
        with closing(connect_reading(self._path)) as db:
            problems = find_problems(db)
        if problems:
            self.mark_damaged()
        return [*problems, *self.blobs.problems()]

    def start_backup(self, day: str, should_stop: Callable[[], bool]) -> None:
        """Back the store up on the background thread, before anything else there."""
        self._threads.background.submit(lambda: self._back_up(day, should_stop))

    def _back_up(self, day: str, should_stop: Callable[[], bool]) -> None:
        try:
            problem = back_up(self._path, day, should_stop)
        except BackupStopped:
            log.info("the store was closed before its backup was complete")
        except (sqlite3.Error, OSError) as error:
            reason = explain(error, self._home)
            if isinstance(reason, StoreDamaged):
                self.mark_damaged()
            log.warning("the store was not backed up: %s", reason)
        else:
            if problem:
                self.mark_damaged()
                log.error("the store is damaged (%s) and was not backed up; the next start repairs it", problem)

    async def _write(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run_on(self._threads.writer, write, *args, **kwargs)

    async def _read(
        self, read: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._run_on(self._threads.reader, read, self._reads, *args, **kwargs)

    async def _run_on(self, thread: DatabaseThread, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await thread.run(lambda: call(*args, **kwargs))
        except UnicodeEncodeError as error:
            raise _not_text_error(error) from error
        except StoreDamaged:
            self.mark_damaged()
            raise
        except (sqlite3.Error, OSError) as error:
            reason = explain(error, self._home)
            if isinstance(reason, StoreDamaged):
                self.mark_damaged()
            raise reason from error


def _encode_or_refuse(body: Body) -> bytes:
    try:
        return journal.encode_body(body)
    except UnicodeEncodeError as error:
        raise _not_text_error(error) from error


def _not_text_error(error: UnicodeEncodeError) -> Refused:
    return Refused(f"{error.object[:80]!r} contains an invalid character ({error.reason}); remove it")


ALWAYS_CHECKED_SIZE = 64 * 1024 * 1024
"""A store up to this size is checked at every start; a larger one only if the last run did not end cleanly."""


class _PreparedStore(Struct, frozen=True):
    notices: list[str]
    needs_backup: bool


def prepare_store(home: Path, before: LockHolder, migrations: Path, always_checked_size: int) -> _PreparedStore:
    """Create, repair or upgrade `store.db`, so that it is sound, writable and of our version.

    Raises sqlite3.Error or OSError if that cannot be done.
    """
    path, steps = home / "store.db", load_migrations(migrations)
    notices: list[str] = []
    if damaged := finish_swap(path):
        notices.append(
            f"The store was damaged; what could be read was recovered. The damaged file is kept as {damaged}."
        )
        remove_database(home / "search.db")
    is_new = not path.exists()
    if is_new:
        notices += _create_missing(path, before, steps)
    else:
        look_inside = before.left != "clean" or path.stat().st_size < always_checked_size
        notices += _check_and_repair(path, before, steps, look_inside=look_inside)
        notices += migrate(path, steps)
    with closing(connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")  # is it writable?
        db.execute("ROLLBACK")
    remove_unfinished_backup(path)
    return _PreparedStore(notices, not is_new and not notices and needs_backup(path))


def _check_and_repair(path: Path, before: LockHolder, steps: Sequence[Migration], *, look_inside: bool) -> list[str]:
    newest = steps[-1].version
    problem = diagnose(path, newest, look_inside=look_inside)
    if not problem:
        with closing(connect(path)) as db:
            if (version := schema_version(db)) > newest:
                raise Refused(
                    f"the store {path} has version {version}, made by a newer Outrider; "
                    f"this one supports up to version {newest}: upgrade Outrider"
                )
            if before.left == "damaged":
                problem = next(iter(find_problems(db)), "")
    if not problem:
        return []
    notices = repair_store(path, problem, steps)
    remove_database(path.with_name("search.db"))
    return notices


def _create_missing(path: Path, before: LockHolder, steps: Sequence[Migration]) -> list[str]:
    notices: list[str] = []
    index = path.with_name("search.db")
    if any(each.exists() for each in side_files(path)):
        notices.append(f"The store {path} was missing; its side files are kept as {set_aside(path)}-wal.")
    elif before.left or index.exists():
        notices.append(f"The store {path} was missing; a new, empty one was created.")
    if backup := keep_backup(path):
        notices.append(
            f"A backup of the missing store is kept as {backup}; to restore it, stop Outrider and rename it to {path}."
        )
    remove_database(index)
    create_store(path, steps)
    return notices


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
    *,
    always_checked_size: int = ALWAYS_CHECKED_SIZE,
    busy_timeout: float = BUSY_TIMEOUT,
) -> AsyncGenerator[SqliteStore]:
    """Open the store of this home, creating it if it is new. `label` says to others who uses the home. Pass `hold` if
    the home is locked already.

    Raises HomeBusy if another process uses the home, Refused or Unavailable if the home cannot be used.
    """
    async with AsyncExitStack() as stack:
        hold = hold or await stack.enter_async_context(lock_home(home, label, wait))
        before = hold.previous
        store = None
        try:
            async with AsyncExitStack() as parts:
                reader = DatabaseThread("reader")
                parts.push_async_callback(reader.close)
                path = home / "store.db"
                try:
                    prepared = await reader.run(lambda: prepare_store(home, before, migrations, always_checked_size))
                    writes = await parts.enter_async_context(_open(reader, lambda: connect_writing(path, busy_timeout)))
                    reads = await parts.enter_async_context(_open(reader, lambda: connect_reading(path)))
                except (sqlite3.Error, OSError) as error:
                    raise explain(error, home) from error
                search = SearchIndex(home)
                parts.callback(search.close)
                background = DatabaseThread("background")
                parts.push_async_callback(background.close)
                deadline = BackupDeadline()
                parts.callback(deadline.start)
                writer = DatabaseThread("writer", GroupCommit(writes, path), MAX_BATCH)
                parts.push_async_callback(writer.close)
                threads = DatabaseThreads(writer, reader, background)
                store = SqliteStore(home, threads, writes, reads, search, clock, prepared.notices)
                if prepared.needs_backup:
                    store.start_backup(time.strftime("%Y%m%d", time.gmtime(clock() / 1_000_000)), deadline.has_passed)
                yield store
        finally:
            # A run that never gets here counts as killed.
            if store is not None:
                with suppress(OSError):
                    hold.record_shutdown("damaged" if store.is_damaged else "clean")


@asynccontextmanager
async def _open(
    thread: DatabaseThread, connect: Callable[[], sqlite3.Connection]
) -> AsyncGenerator[sqlite3.Connection]:
    """A connection, opened and closed on this thread: closing the last one copies the log into the file."""
    opening = thread.submit(connect)
    try:
        yield await asyncio.shield(opening)
    finally:
        with CancelScope(shield=True):
            await asyncio.wait([opening])
            if not opening.exception():
                await thread.run(opening.result().close)
