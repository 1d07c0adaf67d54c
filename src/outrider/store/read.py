"""The store's reads, each one function on a connection that cannot write."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from outrider.core.events import Entry
from outrider.core.ports import Session
from outrider.store import bodies, sql

_HEX = frozenset("0123456789abcdef")
MIN_ID_PREFIX = 6
"""Characters of an id that stand for all of it, where something is looked up: fewer are met by chance."""


def session_of(row: Sequence[Any]) -> Session:
    """A row of `sql.SESSION_BY_ID` and its like."""
    id, person, name, workspace, title, created, updated, head, is_open, has_unseen = row
    return Session(
        id, person, name, workspace, title, created, updated, head, bool(is_open), bool(is_open or has_unseen)
    )


def find_session(db: sqlite3.Connection, person: str, session: str) -> Session | None:
    for statement in (sql.SESSION_BY_ID, sql.SESSION_BY_NAME):
        if row := db.execute(statement, (person, session)).fetchone():
            return session_of(row)
    return None


def look_up_session(db: sqlite3.Connection, person: str, session: str) -> Session | None:
    if found := find_session(db, person, session):
        return found
    if len(session) < MIN_ID_PREFIX or not _HEX.issuperset(session):
        return None
    rows = db.execute(sql.SESSIONS_BY_PREFIX, (person, session)).fetchall()
    return session_of(rows[0]) if len(rows) == 1 else None


def list_sessions(db: sqlite3.Connection, person: str, limit: int) -> Sequence[Session]:
    return [session_of(row) for row in db.execute(sql.SESSIONS_OF, (person, limit))]


def read_entries(db: sqlite3.Connection, session: str, after: int, limit: int) -> Sequence[Entry]:
    rows = db.execute(sql.ENTRIES_AFTER, (session, after, limit if limit > 0 else -1)).fetchall()
    return [bodies.parse_entry(session, *row) for row in rows]


def sessions_with_work(db: sqlite3.Connection) -> Sequence[str]:
    return [id for (id,) in db.execute(sql.SESSIONS_WITH_WORK)]
