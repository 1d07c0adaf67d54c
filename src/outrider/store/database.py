"""SQLite connections, the threads they are used on, and group commit.

This is the only module that opens SQLite files: closing another descriptor of one would drop this process's locks.
Each thread runs its operations in order; asyncio's own executor is no place for calls that wait. Whatever is queued for
the writer becomes one transaction, and no caller returns before it is on disk.
"""

import asyncio
import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from anyio import CancelScope
from msgspec import Struct

from outrider.core.errors import Refused, StaleClaim, Unavailable
from outrider.core.text import one_line
from outrider.core.types import WorkspaceIdentity
from outrider.store.errors import FILE_GONE, is_busy
from outrider.system.failpoints import failpoint
from outrider.system.files import fsync_folder, touch_private

Clock = Callable[[], int]
"""Microseconds since 1970."""
MIN_ID_PREFIX = 6
"""Characters of an id that may be given in place of all of it; fewer would match by chance."""
BUSY_TIMEOUT = 5.0
"""Seconds to wait for another program that has the store locked."""
_WAL_LIMIT = 16 * 1024 * 1024
_COPY_PAGES = 2000
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
"""Base 32: nothing that people confuse, such as 0 and o."""


def random_id(length: int) -> str:
    """A short id that is easy to type."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(length))


def connect(path: Path, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """A plain connection in which every statement commits by itself."""
    touch_private(path)
    return sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)


def quick_check(db: sqlite3.Connection) -> str:
    """The first problem that SQLite finds in the structure of this file, or an empty string."""
    (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return "" if problem == "ok" else one_line(str(problem))


def connect_writing(path: Path, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """The connection of the one writer: what it commits is on disk."""
    return _apply_pragmas(
        connect(path, busy_timeout),
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "secure_delete = FAST",
        f"journal_size_limit = {_WAL_LIMIT}",
    )


def connect_reading(path: Path) -> sqlite3.Connection:
    """A connection that sees every commit and cannot write."""
    return _apply_pragmas(connect(path), "query_only = ON")


def connect_search(path: Path, store: Path) -> sqlite3.Connection:
    """The search index with the store attached read-only. A power failure may cost its last commits."""
    touch_private(path)
    uri = path.absolute().as_uri()
    db = sqlite3.connect(uri, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
    _apply_pragmas(db, "journal_mode = WAL", "synchronous = NORMAL")
    db.execute("ATTACH ? AS store", (store.absolute().as_uri() + "?mode=ro",))
    return db


def _apply_pragmas(db: sqlite3.Connection, *pragmas: str) -> sqlite3.Connection:
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def side_files(path: Path) -> tuple[Path, Path]:
    """The files that SQLite keeps beside a database: the write-ahead log and its index."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def remove_database(path: Path) -> None:
    """Delete a database that is not open, with its side files."""
    for each in (*side_files(path), path.with_name(path.name + "-journal"), path):
        each.unlink(missing_ok=True)


def copy_database(
    source: sqlite3.Connection, target: Path, progress: Callable[[int, int, int], None] | None = None
) -> None:
    """Copy a database into one file, which appears under its name only when it is complete.

    `progress` is called after every few megabytes, and stops the copy by raising.
    """
    unfinished = target.with_name(target.name + ".new")
    remove_database(unfinished)
    remove_database(target)
    try:
        copy = connect(unfinished)
        try:
            source.backup(copy, pages=_COPY_PAGES if progress else -1, progress=progress)
            copy.execute("PRAGMA journal_mode = DELETE")  # no log beside it
        finally:
            copy.close()
        unfinished.replace(target)
    finally:
        remove_database(unfinished)
    fsync_folder(target.parent)


T = TypeVar("T")
Operation = Callable[[], Any]
EXPECTED_ERRORS = (Refused, StaleClaim, Unavailable, ValueError, OverflowError)
"""What an operation may raise to its caller, besides errors of database and disk. Anything else is a bug that ends the
thread."""


class OperationResult(Struct, frozen=True):
    value: Any = None
    error: BaseException | None = None


RunBatch = Callable[[Sequence[Operation]], Sequence[OperationResult]]
_QueuedOperation = tuple[Operation, "asyncio.Future[Any]"]


def run_each(operations: Sequence[Operation]) -> Sequence[OperationResult]:
    return [_run_one(operation) for operation in operations]


def _run_one(operation: Operation) -> OperationResult:
    try:
        return OperationResult(operation())
    except (*EXPECTED_ERRORS, sqlite3.Error, OSError) as error:
        return OperationResult(error=error)


class DatabaseThread:
    """A thread and its queue. `run_batch` runs up to `batch_size` operations at once and returns each outcome."""

    def __init__(self, name: str, run_batch: RunBatch = run_each, batch_size: int = 1) -> None:
        self._run_batch, self._batch_size = run_batch, batch_size
        self._queue: SimpleQueue[_QueuedOperation | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._thread = Thread(target=self._work, name=f"outrider-{name}", daemon=True)
        self._thread.start()

    async def run(self, operation: Callable[[], T]) -> T:
        """Run this on the thread. A caller that is cancelled stops waiting; the operation may still happen."""
        return await self.submit(operation)

    def submit(self, operation: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue this for the thread."""
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((operation, future))
        return future

    async def close(self) -> None:
        """Finish what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        with CancelScope(shield=True):
            await self._stopped
        self._thread.join()

    def _work(self) -> None:
        batch: list[_QueuedOperation] = []
        try:
            is_last = False
            while not is_last:
                batch, is_last = self._next_batch()
                outcomes = self._run_batch([operation for operation, _ in batch])
                self._on_loop(_resolve_futures, batch, outcomes)
                batch = []
        except BaseException as error:
            self._on_loop(self._fail_queued, batch, f"the store's thread ended: {error!r}")
            raise
        finally:
            self._on_loop(self._set_stopped)

    def _next_batch(self) -> tuple[list[_QueuedOperation], bool]:
        batch: list[_QueuedOperation] = []
        queued = self._queue.get()
        while queued is not None:
            batch.append(queued)
            if len(batch) == self._batch_size:
                return batch, False
            try:
                queued = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _set_stopped(self) -> None:
        if not self._stopped.done():  # the waiting task may have been cancelled
            self._stopped.set_result(None)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return  # the loop is closed: no caller is left

    def _fail_queued(self, batch: list[_QueuedOperation], why: str) -> None:
        self._closed = True
        unfinished = list(batch)
        while not self._queue.empty():
            queued = self._queue.get_nowait()
            unfinished += [] if queued is None else [queued]
        failed = OperationResult(error=Unavailable(f"{why}; start Outrider again"))
        _resolve_futures(unfinished, [failed] * len(unfinished))


def _resolve_futures(batch: Sequence[_QueuedOperation], outcomes: Sequence[OperationResult]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)


MAX_BATCH = 256


class GroupCommit:
    """Runs the writer's operations in one transaction. One that fails does not affect the others."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._inode = os.stat(path).st_ino

    def __call__(self, operations: Sequence[Operation]) -> Sequence[OperationResult]:
        if not operations:
            return []
        try:
            return self._commit(operations)
        except sqlite3.Error as error:
            self._roll_back()
            if len(operations) == 1 or is_busy(error):
                return [OperationResult(error=error)] * len(operations)
        # Nothing of the group was kept: run each by itself, so that only the one at fault fails.
        return [self((operation,))[0] for operation in operations]

    def _commit(self, operations: Sequence[Operation]) -> Sequence[OperationResult]:
        self._db.execute("BEGIN IMMEDIATE")
        outcomes = [self._run_in_savepoint(operation) for operation in operations]
        failpoint("before_commit")
        self._check_file()
        self._db.execute("COMMIT")
        failpoint("after_commit")
        return outcomes

    def _check_file(self) -> None:
        """Raise if the file was removed: SQLite would write on, and everything would be lost with the process."""
        try:
            exists = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            exists = False
        if not exists:
            raise sqlite3.DatabaseError(f"{FILE_GONE}: {self._path}")

    def _run_in_savepoint(self, operation: Operation) -> OperationResult:
        self._db.execute("SAVEPOINT operation")
        try:
            outcome = OperationResult(operation())
        except EXPECTED_ERRORS as error:
            self._db.execute("ROLLBACK TO operation")
            outcome = OperationResult(error=error)
        self._db.execute("RELEASE operation")
        return outcome

    def _roll_back(self) -> None:
        # After some errors, such as a full disk, SQLite has already rolled back.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def render_identity(identity: WorkspaceIdentity | None) -> str:
    """As text: an inode number may be larger than the integers of SQLite."""
    return f"{identity.device} {identity.inode} {identity.boot}" if identity else ""


def parse_identity(text: str) -> WorkspaceIdentity | None:
    """One that cannot be read matches no folder, so that a person has to choose the folder again."""
    if not text:
        return None
    device, _, rest = text.partition(" ")
    inode, _, boot = rest.partition(" ")
    is_readable = device.isdecimal() and inode.isdecimal()
    return WorkspaceIdentity(int(device), int(inode), boot) if is_readable else WorkspaceIdentity(0, 0, "")
