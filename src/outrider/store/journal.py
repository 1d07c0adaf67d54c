"""Appends to journals, inside the writer's transaction: the entry, and the columns that repeat what it says."""

import sqlite3
from collections.abc import Callable

from msgspec.structs import astuple, replace

from outrider.core.errors import Refused
from outrider.core.events import Body, Ended, Entry
from outrider.store import bodies, sql
from outrider.store.standing import SessionRow, apply_entry

Clock = Callable[[], int]
"""Microseconds since 1970."""


class Journal:
    """The journals of all sessions, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def session_row(self, session: str) -> SessionRow:
        """Raises Refused when there is no such session."""
        found = self._db.execute(sql.SESSION_ROW, (session,)).fetchone()
        if found is None:
            raise no_such_session(session)
        return SessionRow(*found)

    def entry_by_key(self, session: str, key: str | None) -> Entry | None:
        """The entry that was written under this key."""
        found = None if key is None else self._db.execute(sql.ENTRY_BY_KEY, (session, key)).fetchone()
        return bodies.parse_entry(session, *found) if found else None

    def append(self, session: str, before: SessionRow, body: Body, key: str | None, encoded: bytes) -> Entry:
        after = apply_entry(before, body, self._clock())
        at = after.touched // 1000
        self._db.execute(sql.INSERT_ENTRY, (session, after.head, at, bodies.entry_kind(body), key, encoded))
        if isinstance(body, Ended) and after.has_work:
            (since,) = self._db.execute(sql.OLDEST_UNSEEN, (session, after.saw)).fetchone()
            after = replace(after, waits_since=since)
        self._db.execute(sql.UPDATE_SESSION_ROW, (session, *astuple(after)))
        return Entry(after.head, at, body)

    def append_once(self, session: str, body: Body, key: str) -> Entry | None:
        """Append whatever the generation and however much waits; None when this key is there."""
        if self.entry_by_key(session, key):
            return None
        return self.append(session, self.session_row(session), body, key, bodies.encode_body(body))


def no_such_session(session: str) -> Refused:
    return Refused(f"this session does not exist (any more): {session}")
