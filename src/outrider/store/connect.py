"""The one module that opens SQLite files: closing any other descriptor of one would drop this process's locks on it."""

import os
import sqlite3
from pathlib import Path

BUSY_TIMEOUT = 5.0
"""Seconds to wait for a program that reads the store beside us, say a backup."""
_WAL_LIMIT = 16 * 1024 * 1024


def touch_private(path: Path) -> None:
    """An empty file only its owner can read, unless there is one; SQLite gives its side files the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def connect(path: Path) -> sqlite3.Connection:
    """A plain connection, statements committing on their own."""
    touch_private(path)
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)


def connect_writing(path: Path) -> sqlite3.Connection:
    """The connection of the one writer: what it commits is on the disk."""
    return _apply_pragmas(
        connect(path),
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
    """Delete a file nobody has open, with what SQLite keeps beside it."""
    for each in (*side_files(path), path):
        each.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Make the names in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
