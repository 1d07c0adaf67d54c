"""Looks through the whole store for anything that is not as it should be."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from outrider.store import bodies, sql, sql_hooks, sql_keys, sql_tasks
from outrider.store.faults import is_environmental
from outrider.store.hooks import parse_webhook
from outrider.store.read_keys import parse_key
from outrider.store.rows import parse_permission, parse_task


def find_problems(db: sqlite3.Connection) -> list[str]:
    """One line for each problem; none when all is well."""
    try:
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        found += [f"a row of {row[0]} points nowhere" for row in db.execute("PRAGMA foreign_key_check")]
        return found or [
            *_unreadable_entries(db),
            *_wrong_counts(db),
            *_unreadable_tasks(db),
            *_unreadable_keys(db),
            *_unreadable_webhooks(db),
        ]
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return [str(error)]


def _unreadable_entries(db: sqlite3.Connection) -> list[str]:
    found: list[str] = []
    for session, seq, body in db.execute(sql.ALL_ENTRIES):
        try:
            bodies.decode_body(body)
        except ValueError as error:
            found.append(f"entry {seq} of session {session} cannot be read: {error}")
    return found


def _wrong_counts(db: sqlite3.Connection) -> list[str]:
    return [
        f"session {id} should have {head} entries, and has {count} up to {last or 0}"
        for id, head, count, last in db.execute(sql.SESSION_ENTRY_COUNTS)
        if not head == count == (last or 0)
    ]


def _unreadable_tasks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_tasks.HAS_TASKS).fetchone()[0]:
        # A store that waits for its upgrade.
        return []
    tasks = _unreadable_rows("task", db.execute(sql_tasks.ALL_TASKS), parse_task)
    return tasks + _unreadable_rows("grant", db.execute(sql_tasks.ALL_PERMISSIONS), parse_permission)


def _unreadable_keys(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_keys.HAS_KEYS).fetchone()[0]:
        return []
    return _unreadable_rows("key", db.execute(sql_keys.ALL_KEYS), parse_key)


def _unreadable_webhooks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(sql_hooks.HAS_WEBHOOKS).fetchone()[0]:
        return []
    return _unreadable_rows("webhook", db.execute(sql_hooks.ALL_WEBHOOKS), parse_webhook)


def _unreadable_rows(what: str, rows: sqlite3.Cursor, parse: Callable[[Sequence[Any]], object]) -> list[str]:
    found: list[str] = []
    for row in rows:
        try:
            parse(row)
        except ValueError as error:
            found.append(f"{what} {row[0]} cannot be read: {error}")
    return found
