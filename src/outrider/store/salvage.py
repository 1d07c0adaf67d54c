"""Carries what can still be read of a damaged store into a fresh one.

Of each session the unbroken beginning of its journal is kept, since any prefix of a journal is a valid one.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import astuple

from outrider.core.events import Body, Ended, Entry, Input
from outrider.store import bodies, sql
from outrider.store.faults import is_environmental
from outrider.store.hooks import recover_webhooks
from outrider.store.pages import PageEntry, raw_entries
from outrider.store.salvage_keys import lost_keys
from outrider.store.salvage_tasks import recover_tasks
from outrider.store.standing import SessionRow, apply_entry

SESSION_END_LOST = "the end of this session was lost when its store was damaged"


class RecoveryResult(Struct, frozen=True):
    """What came of it."""

    sessions: int
    entries: int
    losses: list[str]
    """One sentence for each session that is not whole."""


class _RecoveredSession(Struct, frozen=True):
    """In the order of `sql.SALVAGE_SESSION`."""

    person: str
    name: str
    workspace: str
    created: int
    generation: int
    head: int


class _RecoveredEntry(Struct, frozen=True):
    entry: Entry
    key: str | None
    raw: bytes


def recover_rows(damaged: sqlite3.Connection, pages: BinaryIO, fresh: sqlite3.Connection, home: Path) -> RecoveryResult:
    """`pages` is the same file as `damaged`, to be read where the way to a row is torn."""
    ids = sorted(_session_ids(damaged))
    loose = _entries_in_pages(pages, {id for id in ids if _is_incomplete(damaged, id)})
    losses: list[str] = []
    owners: dict[str, str] = {}
    entries = 0
    fresh.execute("BEGIN IMMEDIATE")
    for id in ids:
        lines = _readable_journal(damaged, id, loose.get(id, {}))
        found = _session_row(damaged, id)
        if found is None and not lines:
            losses.append(f"Session {id} could not be recovered.")
            continue
        row = found or _session_from_inputs(id, lines, home)
        if found is None:
            losses.append(f"Session {id} lost its name and folder; it is now called {row.name!r}.")
        elif row.head > len(lines):
            losses.append(f"Session {row.name!r} lost its last {row.head - len(lines)} entries.")
        _write_session(fresh, id, row, lines, is_whole=row.head == len(lines))
        owners[id] = row.person
        entries += len(lines)
    losses += recover_tasks(damaged, pages, fresh, owners)
    losses += lost_keys(damaged, pages)
    losses += recover_webhooks(damaged, fresh, owners)
    fresh.execute("COMMIT")
    return RecoveryResult(len(owners), entries, losses)


def _is_incomplete(db: sqlite3.Connection, id: str) -> bool:
    row = _session_row(db, id)
    return row is not None and row.head > len(_readable_journal(db, id, {}))


def _entries_in_pages(pages: BinaryIO, wanted: set[str]) -> dict[str, dict[int, PageEntry]]:
    """The rows of these sessions, wherever they lie. Others are left: theirs may be what a person deleted."""
    found: dict[str, dict[int, PageEntry]] = {}
    for row in raw_entries(pages) if wanted else ():
        if row.session in wanted and _body_or_none(row.body) is not None:
            found.setdefault(row.session, {})[row.seq] = row
    return found


def _readable_rows(db: sqlite3.Connection, statement: str, *args: Any) -> Iterator[Any]:
    """Rows until the first that cannot be read."""
    try:
        yield from db.execute(statement, args)
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
    except UnicodeDecodeError:
        return


def _session_ids(db: sqlite3.Connection) -> set[str]:
    return {
        id
        for statement in sql.RECOVER_SESSION_IDS
        for (id,) in _readable_rows(db, statement)
        if isinstance(id, str) and id
    }


def _session_row(db: sqlite3.Connection, id: str) -> _RecoveredSession | None:
    types = (str, str, str, int, int, int)
    for row in _readable_rows(db, sql.RECOVER_SESSION, id):
        if all(isinstance(value, kind) for value, kind in zip(row, types, strict=True)):
            return _RecoveredSession(*row)
    return None


def _readable_journal(db: sqlite3.Connection, id: str, loose: dict[int, PageEntry]) -> list[_RecoveredEntry]:
    """The journal from its first entry to the first that is nowhere to be found."""
    lines: list[_RecoveredEntry] = []
    keys: set[str] = set()

    def follows(seq: object, at: object, key: object, raw: object) -> bool:
        body = _body_or_none(raw)
        if body is None or not isinstance(raw, bytes) or seq != len(lines) + 1 or not isinstance(at, int):
            return False
        if isinstance(key, str) and key not in keys:
            keys.add(key)
        elif key is not None:
            return False
        lines.append(_RecoveredEntry(Entry(len(lines) + 1, at, body), key, raw))
        return True

    for row in _readable_rows(db, sql.RECOVER_ENTRIES, id):
        if not follows(*row):
            break
    while (more := loose.get(len(lines) + 1)) and follows(more.seq, more.at, more.key, more.body):
        pass
    return lines


def _body_or_none(raw: object) -> Body | None:
    try:
        return bodies.decode_body(raw) if isinstance(raw, bytes) else None
    except ValueError:
        return None


def _session_from_inputs(id: str, lines: list[_RecoveredEntry], home: Path) -> _RecoveredSession:
    """A session whose own row is gone still says in its inputs whose it is."""
    person = next((line.entry.body.person for line in lines if isinstance(line.entry.body, Input)), "")
    name = f"recovered-{id[:8]}"
    at = lines[0].entry.at
    return _RecoveredSession(person, name, str(home / "workspaces" / name), at, 0, len(lines) + 1)


def _write_session(
    fresh: sqlite3.Connection, id: str, row: _RecoveredSession, lines: list[_RecoveredEntry], *, is_whole: bool
) -> None:
    fresh.execute(
        sql.INSERT_SESSION,
        (id, row.person, row.name, row.workspace, row.created, row.created * 1000, row.generation + 1),
    )
    standing = SessionRow(touched=row.created * 1000, generation=row.generation + 1)
    for line in lines:
        standing = apply_entry(standing, line.entry.body, line.entry.at * 1000)
        entry = line.entry
        fresh.execute(sql.INSERT_ENTRY, (id, entry.seq, entry.at, bodies.entry_kind(entry.body), line.key, line.raw))
    if not is_whole and standing.has_work:
        # Its real end is unknown: doing the work again could do it twice.
        ended = Ended("failed", standing.head, SESSION_END_LOST)
        standing = apply_entry(standing, ended, standing.touched)
        raw, at = bodies.encode_body(ended), standing.touched // 1000
        fresh.execute(sql.INSERT_ENTRY, (id, standing.head, at, bodies.entry_kind(ended), None, raw))
    fresh.execute(sql.UPDATE_SESSION_ROW, (id, *astuple(standing)))
