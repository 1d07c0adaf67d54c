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
from outrider.store.faults import is_outside
from outrider.store.hooks import salvage_hooks
from outrider.store.pages import RawEntry, raw_entries
from outrider.store.salvage_keys import lost_keys
from outrider.store.salvage_tasks import salvage_tasks
from outrider.store.standing import Standing, advance

LOST = "the end of this session was lost when its store was damaged"


class Salvaged(Struct, frozen=True):
    """What came of it."""

    sessions: int
    entries: int
    losses: list[str]
    """One sentence for each session that is not whole."""


class _Row(Struct, frozen=True):
    """In the order of `sql.SALVAGE_SESSION`."""

    person: str
    name: str
    workspace: str
    created: int
    generation: int
    head: int


class _Line(Struct, frozen=True):
    entry: Entry
    key: str | None
    raw: bytes


def salvage(damaged: sqlite3.Connection, pages: BinaryIO, fresh: sqlite3.Connection, home: Path) -> Salvaged:
    """`pages` is the same file as `damaged`, to be read where the way to a row is torn."""
    ids = sorted(_ids(damaged))
    loose = _loose(pages, {id for id in ids if _is_short(damaged, id)})
    losses: list[str] = []
    owners: dict[str, str] = {}
    entries = 0
    fresh.execute("BEGIN IMMEDIATE")
    for id in ids:
        lines = _lines(damaged, id, loose.get(id, {}))
        found = _row(damaged, id)
        if found is None and not lines:
            losses.append(f"Session {id} could not be recovered.")
            continue
        row = found or _guess(id, lines, home)
        if found is None:
            losses.append(f"Session {id} lost its name and folder; it is now called {row.name!r}.")
        elif row.head > len(lines):
            losses.append(f"Session {row.name!r} lost its last {row.head - len(lines)} entries.")
        _write(fresh, id, row, lines, is_whole=row.head == len(lines))
        owners[id] = row.person
        entries += len(lines)
    losses += salvage_tasks(damaged, pages, fresh, owners)
    losses += lost_keys(damaged, pages)
    losses += salvage_hooks(damaged, fresh, owners)
    fresh.execute("COMMIT")
    return Salvaged(len(owners), entries, losses)


def _is_short(db: sqlite3.Connection, id: str) -> bool:
    row = _row(db, id)
    return row is not None and row.head > len(_lines(db, id, {}))


def _loose(pages: BinaryIO, wanted: set[str]) -> dict[str, dict[int, RawEntry]]:
    """The rows of these sessions, wherever they lie. Others are left: theirs may be what a person deleted."""
    found: dict[str, dict[int, RawEntry]] = {}
    for row in raw_entries(pages) if wanted else ():
        if row.session in wanted and _body(row.body) is not None:
            found.setdefault(row.session, {})[row.seq] = row
    return found


def _tolerant(db: sqlite3.Connection, statement: str, *args: Any) -> Iterator[Any]:
    """Rows until the first that cannot be read."""
    try:
        yield from db.execute(statement, args)
    except sqlite3.Error as error:
        if is_outside(error):
            raise
    except UnicodeDecodeError:
        return


def _ids(db: sqlite3.Connection) -> set[str]:
    return {id for statement in sql.SALVAGE_IDS for (id,) in _tolerant(db, statement) if isinstance(id, str) and id}


def _row(db: sqlite3.Connection, id: str) -> _Row | None:
    types = (str, str, str, int, int, int)
    for row in _tolerant(db, sql.SALVAGE_SESSION, id):
        if all(isinstance(value, kind) for value, kind in zip(row, types, strict=True)):
            return _Row(*row)
    return None


def _lines(db: sqlite3.Connection, id: str, loose: dict[int, RawEntry]) -> list[_Line]:
    """The journal from its first entry to the first that is nowhere to be found."""
    lines: list[_Line] = []
    keys: set[str] = set()

    def follows(seq: object, at: object, key: object, raw: object) -> bool:
        body = _body(raw)
        if body is None or not isinstance(raw, bytes) or seq != len(lines) + 1 or not isinstance(at, int):
            return False
        if isinstance(key, str) and key not in keys:
            keys.add(key)
        elif key is not None:
            return False
        lines.append(_Line(Entry(len(lines) + 1, at, body), key, raw))
        return True

    for row in _tolerant(db, sql.SALVAGE_ENTRIES, id):
        if not follows(*row):
            break
    while (more := loose.get(len(lines) + 1)) and follows(more.seq, more.at, more.key, more.body):
        pass
    return lines


def _body(raw: object) -> Body | None:
    try:
        return bodies.decode(raw) if isinstance(raw, bytes) else None
    except ValueError:
        return None


def _guess(id: str, lines: list[_Line], home: Path) -> _Row:
    """A session whose own row is gone still says in its inputs whose it is."""
    person = next((line.entry.body.person for line in lines if isinstance(line.entry.body, Input)), "")
    name = f"recovered-{id[:8]}"
    at = lines[0].entry.at
    return _Row(person, name, str(home / "workspaces" / name), at, 0, len(lines) + 1)


def _write(fresh: sqlite3.Connection, id: str, row: _Row, lines: list[_Line], *, is_whole: bool) -> None:
    fresh.execute(
        sql.INSERT_SESSION,
        (id, row.person, row.name, row.workspace, row.created, row.created * 1000, row.generation + 1),
    )
    standing = Standing(touched=row.created * 1000, generation=row.generation + 1)
    for line in lines:
        standing = advance(standing, line.entry.body, line.entry.at * 1000)
        entry = line.entry
        fresh.execute(sql.INSERT_ENTRY, (id, entry.seq, entry.at, bodies.kind(entry.body), line.key, line.raw))
    if not is_whole and standing.has_work:
        # Its real end is unknown: doing the work again could do it twice.
        ended = Ended("failed", standing.head, LOST)
        standing = advance(standing, ended, standing.touched)
        raw, at = bodies.encode(ended), standing.touched // 1000
        fresh.execute(sql.INSERT_ENTRY, (id, standing.head, at, bodies.kind(ended), None, raw))
    fresh.execute(sql.SET_STANDING, (id, *astuple(standing)))
