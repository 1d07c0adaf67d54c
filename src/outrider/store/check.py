"""Looks through the whole store for anything that is not as it should be."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from outrider.store import bodies, sql, sql_hooks, sql_keys, sql_tasks
from outrider.store.faults import is_outside
from outrider.store.hooks import parse_hook
from outrider.store.read_keys import parse_key
from outrider.store.rows import parse_grant, parse_task


def problems(db: sqlite3.Connection) -> list[str]:
    """One line for each problem; none when all is well."""
    try:
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        found += [f"a row of {row[0]} points nowhere" for row in db.execute("PRAGMA foreign_key_check")]
        return found or [
            *_unreadable(db),
            *_disagreeing(db),
            *_unreadable_tasks(db),
            *_unreadable_keys(db),
            *_unreadable_hooks(db),
        ]
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


def _unreadable_tasks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_tasks.HAS_TASKS).fetchone()[0]:
        # A store that waits for its upgrade.
        return []
    tasks = _unparsed("task", db.execute(sql_tasks.ALL_TASKS), parse_task)
    return tasks + _unparsed("grant", db.execute(sql_tasks.ALL_GRANTS), parse_grant)


def _unreadable_keys(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_keys.HAS_KEYS).fetchone()[0]:
        return []
    return _unparsed("key", db.execute(sql_keys.ALL_KEYS), parse_key)


def _unreadable_hooks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_hooks.HAS_HOOKS).fetchone()[0]:
        return []
    return _unparsed("webhook", db.execute(sql_hooks.ALL_HOOKS), parse_hook)


def _unparsed(what: str, rows: sqlite3.Cursor, parse: Callable[[Sequence[Any]], object]) -> list[str]:
    found: list[str] = []
    for row in rows:
        try:
            parse(row)
        except ValueError as error:
            found.append(f"{what} {row[0]} cannot be read: {error}")
    return found
