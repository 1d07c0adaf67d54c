"""Looks through the whole store for anything that is not as it should be."""

import sqlite3

from outrider.store import bodies, sql
from outrider.store.faults import is_outside


def problems(db: sqlite3.Connection) -> list[str]:
    """One line for each problem; none when all is well."""
    try:
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        found += [f"a row of {row[0]} points nowhere" for row in db.execute("PRAGMA foreign_key_check")]
        return found or [*_unreadable(db), *_disagreeing(db)]
    except sqlite3.Error as error:
        if is_outside(error):
            raise
        return [str(error)]


def _unreadable(db: sqlite3.Connection) -> list[str]:
    found: list[str] = []
    for session, seq, body in db.execute(sql.ALL_ENTRIES):
        try:
            bodies.decode(body)
        except ValueError as error:
            found.append(f"entry {seq} of session {session} cannot be read: {error}")
    return found


def _disagreeing(db: sqlite3.Connection) -> list[str]:
    return [
        f"session {id} should have {head} entries, and has {count} up to {last or 0}"
        for id, head, count, last in db.execute(sql.DISAGREEING)
        if not head == count == (last or 0)
    ]
