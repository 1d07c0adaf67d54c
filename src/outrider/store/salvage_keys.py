"""What a salvage says of keys. None is carried over: in torn pages one that was revoked looks like one that holds."""

import sqlite3
from typing import BinaryIO

from outrider.store import sql_keys
from outrider.store.faults import is_environmental
from outrider.store.pages import PageValue, raw_rows
from outrider.store.read_keys import parse_key

LOST_KEYS = "The keys to the API were lost with it; make them anew with `outrider key create`."


def lost_keys(damaged: sqlite3.Connection, pages: BinaryIO) -> list[str]:
    """One sentence where there were keys, or where nobody can tell any more."""
    had = _count_or_none(damaged, sql_keys.COUNT_KEYS)
    if had is None:
        had = _count_or_none(damaged, sql_keys.HAS_KEYS) or any(_is_key(row) for row in raw_rows(pages))
    return [LOST_KEYS] if had else []


def _count_or_none(db: sqlite3.Connection, statement: str) -> int | None:
    try:
        (count,) = db.execute(statement).fetchone()
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return None
    return count


def _is_key(row: list[PageValue]) -> bool:
    try:
        parse_key(row)
    except ValueError:
        return False
    return True
