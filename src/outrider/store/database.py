"""The one module that opens SQLite files: closing any other descriptor of one would drop this process's locks on it.

A thread of our own that does what it is handed, in order: asyncio's executor is no place for anything that waits.

Group commit: whatever waits to be written becomes one transaction, and nobody is told before it is on the disk.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from anyio import CancelScope
from msgspec import Struct

from outrider.core.errors import Refused, StaleClaim, Unavailable
from outrider.store.errors import FILE_GONE, is_busy
from outrider.system.failpoints import failpoint
from outrider.system.files import fsync_folder, touch_private

Clock = Callable[[], int]
"""Microseconds since 1970."""
MIN_ID_PREFIX = 6
"""Characters of an id that stand for all of it, where something is looked up: fewer are met by chance."""
BUSY_TIMEOUT = 5.0
"""Seconds to wait for a program that reads the store beside us, say a backup."""
_WAL_LIMIT = 16 * 1024 * 1024
_COPY_PAGES = 2000


def connect(path: Path, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """A plain connection, statements committing on their own."""
    touch_private(path)
    return sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)


def connect_writing(path: Path, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """The connection of the one writer: what it commits is on the disk."""
    return _apply_pragmas(
        connect(path, busy_timeout),
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "secure_delete = FAST",
        f"journal_size_limit = {_WAL_LIMIT}",
    )


def connect_reading(path: Path) -> sqlite3.Connection:
    """A connection that sees all commits and can write nothing."""
    return _apply_pragmas(connect(path), "query_only = ON")


def connect_search(path: Path, store: Path) -> sqlite3.Connection:
    """The index, which may lose its last commits with the power, with the store beside it to read from."""
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
    """What SQLite keeps beside a file: its write-ahead log and that log's index."""
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
"""What an act may raise to its caller; anything else but a database's or a disk's error is a bug and ends the lane."""


class OperationResult(Struct, frozen=True):
    """What one act came to."""

    value: Any = None
    error: BaseException | None = None


RunBatch = Callable[[Sequence[Operation]], Sequence[OperationResult]]
_QueuedOperation = tuple[Operation, "asyncio.Future[Any]"]


def run_each(acts: Sequence[Operation]) -> Sequence[OperationResult]:
    """Do each act for itself."""
    return [_run_one(act) for act in acts]


def _run_one(act: Operation) -> OperationResult:
    try:
        return OperationResult(act())
    except (*EXPECTED_ERRORS, sqlite3.Error, OSError) as error:
        return OperationResult(error=error)


class DatabaseThread:
    """One thread and its queue. `carry` does up to `together` acts at once and says what came of each."""

    def __init__(self, name: str, carry: RunBatch = run_each, together: int = 1) -> None:
        self._run_batch, self._batch_size = carry, together
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
                outcomes = self._run_batch([act for act, _ in batch])
                self._on_loop(_resolve_futures, batch, outcomes)
                batch = []
        except BaseException as error:
            self._on_loop(self._fail_queued, batch, f"the store's thread ended: {error!r}")
            raise
        finally:
            self._on_loop(self._set_stopped)

    def _next_batch(self) -> tuple[list[_QueuedOperation], bool]:
        batch: list[_QueuedOperation] = []
        wish = self._queue.get()
        while wish is not None:
            batch.append(wish)
            if len(batch) == self._batch_size:
                return batch, False
            try:
                wish = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _set_stopped(self) -> None:
        if not self._stopped.done():  # whoever waited for it may have been cancelled
            self._stopped.set_result(None)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop is closed: nobody waits for this any more.
            return

    def _fail_queued(self, batch: list[_QueuedOperation], why: str) -> None:
        self._closed = True
        left = list(batch)
        while not self._queue.empty():
            wish = self._queue.get_nowait()
            left += [] if wish is None else [wish]
        _resolve_futures(left, [OperationResult(error=Unavailable(f"{why}; start Outrider again"))] * len(left))


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
    """Carries the writer's acts. One that fails leaves its neighbours alone."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._inode = os.stat(path).st_ino

    def __call__(self, acts: Sequence[Operation]) -> Sequence[OperationResult]:
        if not acts:
            return []
        try:
            return self._commit(acts)
        except sqlite3.Error as error:
            self._roll_back()
            if len(acts) == 1 or is_busy(error):
                return [OperationResult(error=error)] * len(acts)
        # Nothing of the group was kept: each on its own, so that only the one at fault is told.
        return [self((act,))[0] for act in acts]

    def _commit(self, acts: Sequence[Operation]) -> Sequence[OperationResult]:
        self._db.execute("BEGIN IMMEDIATE")
        outcomes = [self._run_in_savepoint(act) for act in acts]
        failpoint("before_commit")
        self._check_file()
        self._db.execute("COMMIT")
        failpoint("after_commit")
        return outcomes

    def _check_file(self) -> None:
        """SQLite goes on writing to a file that was removed, and everything would be gone with the process."""
        try:
            is_there = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise sqlite3.DatabaseError(f"{FILE_GONE}: {self._path}")

    def _run_in_savepoint(self, act: Operation) -> OperationResult:
        self._db.execute("SAVEPOINT act")
        try:
            outcome = OperationResult(act())
        except EXPECTED_ERRORS as error:
            self._db.execute("ROLLBACK TO act")
            outcome = OperationResult(error=error)
        self._db.execute("RELEASE act")
        return outcome

    def _roll_back(self) -> None:
        # SQLite has already rolled back by itself after some errors, a full disk among them.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
