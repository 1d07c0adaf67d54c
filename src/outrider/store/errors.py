"""Errors of SQLite and the disk, explained: what happened, and what to do."""

import sqlite3
from pathlib import Path

from outrider.core.errors import Refused, StoreDamaged, Unavailable
from outrider.system.files import disk_full, explain_os_error, not_writable

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ACCESS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}
_TRANSIENT = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, *_BUSY}
FILE_GONE = "the store's file was removed or replaced while it was in use"


def no_such_session(session: str) -> Refused:
    return Refused(f"this session does not exist or was deleted: {session}")


def damaged_row(what: str, error: ValueError) -> StoreDamaged:
    """A row that cannot be parsed."""
    return StoreDamaged(
        f"{what} is damaged ({error}); start Outrider again: "
        "it sets the damaged store aside and recovers what can be read"
    )


def result_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; SQLITE_ERROR for an error that the driver itself raised."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return result_code(error) in _BUSY


def is_environmental(error: sqlite3.Error) -> bool:
    """Whether the environment is at fault (a full disk, a lock, permissions), not the file."""
    return (
        result_code(error) in _TRANSIENT | _NO_ACCESS
        and getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_IOERR_SHORT_READ
    )


def explain(error: sqlite3.Error | OSError, home: Path) -> Exception:
    """The same error as one of `core.errors`."""
    if isinstance(error, OSError):
        return explain_os_error(error, home)
    if str(error).startswith(FILE_GONE):
        return StoreDamaged(
            f"{FILE_GONE}, so nothing was saved; stop Outrider, restore {home} if you can, and start it again"
        )
    match result_code(error):
        case sqlite3.SQLITE_FULL:
            return disk_full(home)
        case code if code in _NO_ACCESS:
            return not_writable(home, str(error))
        case code if code in _BUSY:
            text = f"another program has locked the store in {home}, and nothing can be saved; close it"
            return Unavailable(text, 5.0)
        case code if code in _DAMAGE:
            return StoreDamaged(
                f"the store in {home} is damaged ({error}); start Outrider again: "
                "it sets the damaged file aside and recovers what can be read"
            )
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            return Unavailable(
                f"the disk with {home} reported an error ({error}), and nothing can be saved; check the disk"
            )
        case _:
            return Refused(f"the store in {home} could not do this: {error}")
