"""What a salvage says of keys. None is carried over: in torn pages one that was revoked looks like one that holds."""

import sqlite3
from typing import BinaryIO

from outrider.store import sql_keys
from outrider.store.faults import is_outside
from outrider.store.pages import Value, raw_rows
from outrider.store.read_keys import parse_key

LOST_KEYS = "The keys to the API were lost with it; make them anew with `outrider key create`."


def lost_keys(damaged: sqlite3.Connection, pages: BinaryIO) -> list[str]:
    """One sentence where there were keys, or where nobody can tell any more."""
    had = _count(damaged, sql_keys.COUNT_KEYS)
    if had is None:
        had = _count(damaged, sql_keys.HAS_KEYS) or any(_is_key(row) for row in raw_rows(pages))
    return [LOST_KEYS] if had else []


def _count(db: sqlite3.Connection, statement: str) -> int | None:
    try:
        (count,) = db.execute(statement).fetchone()
    except sqlite3.Error as error:
        if is_outside(error):
            raise
        return None
    return count


def _is_key(row: list[Value]) -> bool:
    try:
        parse_key(row)
    except ValueError:
        return False
    return True
