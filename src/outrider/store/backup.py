"""The dated backup of a store, `store.db.backup-YYYYMMDD`: what recovery uses where SQL cannot read the store.

One is kept. A start that finds the store in order makes it, at most once a day and only if the store has changed since
the last one. It is copied from one snapshot while writers continue, and it appears under its name only after it has
passed SQLite's check. A deleted session is deleted from the backup first. A store of more than 1 GiB is not backed up.
"""

import math
import shutil
import sqlite3
import time
from collections.abc import Callable
from os import utime
from pathlib import Path

from outrider.store.database import connect, connect_reading, copy_database, quick_check, remove_database, side_files
from outrider.store.sessions import delete_session
from outrider.system.failpoints import failpoint
from outrider.system.files import fsync_folder

_SNAPSHOT = "SELECT count(*) FROM sqlite_schema"
_CHECK_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at whether to stop."""
_MAX_SIZE = 1 << 30
_GRACE_SECONDS = 2.0


class BackupStopped(Exception):
    """The store is closing; there is no new backup."""


class BackupDeadline:
    """Ends a backup that is not complete two seconds after the store began to close."""

    def __init__(self) -> None:
        self._ends = math.inf

    def start(self) -> None:
        self._ends = time.monotonic() + _GRACE_SECONDS

    def has_passed(self) -> bool:
        return time.monotonic() >= self._ends


def find_backup(store: Path) -> Path | None:
    """The newest backup of this store."""
    return max(store.parent.glob(f"{store.name}.backup-{'[0-9]' * 8}"), default=None)


def backup_date(backup: Path) -> str:
    """The day of a backup, as `2026-11-15`."""
    day = backup.name[-8:]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}"


def needs_backup(store: Path) -> bool:
    """Whether the store changed since its backup and there is room for a new one. Call it while the store is closed."""
    size = store.stat().st_size
    backup = find_backup(store)
    is_unchanged = (
        backup is not None
        and backup.stat().st_mtime_ns == store.stat().st_mtime_ns
        and not any(each.exists() for each in side_files(store))
    )
    return not is_unchanged and size <= _MAX_SIZE and shutil.disk_usage(store.parent).free > 3 * size


def back_up(store: Path, day: str, should_stop: Callable[[], bool]) -> str:
    """Make the backup of this day (`YYYYMMDD`), unless there is one; what is wrong with the store, if anything.

    An older backup is removed only when the new one is in place. Raises BackupStopped, sqlite3.Error or OSError.
    """
    target = store.with_name(f"{store.name}.backup-{day}")
    if target.exists():
        return ""
    unchecked = _unchecked_path(store)
    changed = store.stat().st_mtime_ns
    try:
        source = connect_reading(store)
        try:
            source.execute("BEGIN")
            source.execute(_SNAPSHOT).fetchone()
            copy_database(source, unchecked, _stop_between(should_stop))
        finally:
            source.close()
        if problem := _find_problem(unchecked, should_stop):
            return problem
        utime(unchecked, ns=(changed, changed))  # tells `needs_backup` which state of the store this is
        failpoint("backup_not_renamed")
        unchecked.replace(target)
        fsync_folder(store.parent)
    finally:
        remove_database(unchecked)
    for older in store.parent.glob(f"{store.name}.backup-{'[0-9]' * 8}"):
        if older != target:
            remove_database(older)
    return ""


def remove_unfinished_backup(store: Path) -> None:
    """Remove what a killed process left of a backup."""
    unchecked = _unchecked_path(store)
    remove_database(unchecked)
    remove_database(unchecked.with_name(unchecked.name + ".new"))


def _unchecked_path(store: Path) -> Path:
    return store.with_name(store.name + ".backup.unchecked")


def _stop_between(should_stop: Callable[[], bool]) -> Callable[[int, int, int], None]:
    def progress(status: int, remaining: int, total: int) -> None:
        if remaining and should_stop():
            raise BackupStopped

    return progress


def _find_problem(path: Path, should_stop: Callable[[], bool]) -> str:
    db = connect(path)
    try:
        db.set_progress_handler(should_stop, _CHECK_STEPS)
        return quick_check(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise BackupStopped from error
        raise
    finally:
        db.close()


def remove_session_from_backup(store: Path, person: str, session: str) -> None:
    """Delete a session from the backup. A backup in which that is not possible is deleted as a whole."""
    backup = find_backup(store)
    if backup is None:
        return
    try:
        db = connect(backup)
        try:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("BEGIN IMMEDIATE")
            delete_session(db, person, session)
            db.execute("COMMIT")
        finally:
            db.close()
    except sqlite3.Error:
        remove_database(backup)
