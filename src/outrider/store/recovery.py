"""Recovery of a damaged store: find the damage, keep the damaged file, copy every row that SQL can still read.

Of each session the unbroken beginning of its journal is kept, because every prefix of a journal is a valid journal; the
last backup fills gaps. A notice names every loss, and everything that may be lost. Keys are never recovered, and
permissions and webhooks never come from the backup: one of them may have been revoked or sent since.

The swap may be interrupted anywhere: a recovered store that is complete but not yet in place is put there at the next
start.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from outrider.core.events import Body, Ended, Entry, Input
from outrider.core.tasks import OPEN_STATES
from outrider.core.text import plural
from outrider.store import journal, keys, sessions, tasks, webhooks
from outrider.store.backup import backup_date, find_backup
from outrider.store.database import connect, connect_reading, connect_writing, quick_check, remove_database, side_files
from outrider.store.errors import is_environmental
from outrider.store.journal import SessionRow, apply_entry
from outrider.store.migrations import APPLICATION_ID, Migration, apply_migrations, create_store, schema_version
from outrider.store.tasks import TaskRow
from outrider.system.files import fsync_folder

LOST_TASKS = "Some tasks may have been lost; their commands may still be running."
LOST_PERMISSIONS = "Some permissions may have been lost; you will be asked again."
LOST_KEYS = "The API keys were lost; create new ones with `outrider key create`."
LOST_WEBHOOKS = "Some webhooks may have been lost; the sessions still hold what they would have reported."
SESSION_END_LOST = "the end of this session was lost when its store was damaged"
TASK_END_LOST = "the end of this task was lost when its store was damaged"
_PAGE_SIZE = 4096

# The names of all tables.
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"

# Every entry, to check that each can be read.
_ALL_ENTRIES = "SELECT session, seq, body FROM entries ORDER BY session, seq"

# What each session says about its journal, beside what the journal holds.
_SESSION_ENTRY_COUNTS = """
SELECT id, head, (SELECT count(*) FROM entries WHERE session = id), (SELECT max(seq) FROM entries WHERE session = id)
FROM sessions
"""

# The ids of all sessions: from both ends in case the middle cannot be read, from an index, and from the entries.
_SESSION_IDS = (
    "SELECT id FROM sessions ORDER BY id",
    "SELECT id FROM sessions ORDER BY id DESC",
    "SELECT id FROM sessions INDEXED BY sessions_by_name ORDER BY person, name",
)
_SESSION_IDS_OF_ENTRIES = (
    "SELECT DISTINCT session FROM entries ORDER BY session",
    "SELECT DISTINCT session FROM entries ORDER BY session DESC",
)

# One session and its journal, the journal from both ends. All these columns are in the first version of the schema.
_SESSION = "SELECT person, name, workspace, created, generation, head FROM sessions WHERE id = ?1"
_ENTRIES = "SELECT seq, at, key, body FROM entries WHERE session = ?1 ORDER BY seq"
_ENTRIES_BACKWARDS = _ENTRIES + " DESC"

T = TypeVar("T")
RawRow = Sequence[Any]


def diagnose(path: Path, newest: int, *, look_inside: bool) -> str:
    """What is wrong with this file, or nothing. A version newer than ours is not damage.

    Raises sqlite3.Error when the environment is at fault.
    """
    db = connect(path)
    try:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            return "it is not a store of Outrider"
        if schema_version(db) > newest:
            return ""
        db.execute(_TABLES).fetchall()
        if look_inside:
            return quick_check(db)
        return ""
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return str(error)
    finally:
        db.close()


def find_problems(db: sqlite3.Connection) -> list[str]:
    """Check the whole store, every row included; one line for each problem."""
    try:
        problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        problems += [
            f"a row of {row[0]} refers to a row that does not exist" for row in db.execute("PRAGMA foreign_key_check")
        ]
        if problems:
            return problems
        problems += _unreadable_rows(
            "entry {1} of session {0}", db.execute(_ALL_ENTRIES), lambda row: journal.decode_body(row[2])
        )
        problems += [
            f"session {id} should have {head} entries, and has {count} up to {last or 0}"
            for id, head, count, last in db.execute(_SESSION_ENTRY_COUNTS)
            if not head == count == (last or 0)
        ]
        existing = _tables(db)  # a store that has yet to be upgraded has fewer
        for table, what, statement, parse in (
            ("tasks", "task {0}", tasks.ALL_TASKS, tasks.parse_task),
            ("grants", "permission {0}", tasks.ALL_PERMISSIONS, tasks.parse_permission),
            ("keys", "key {0}", keys.ALL_KEYS, keys.parse_key),
            ("hooks", "webhook {0}", webhooks.ALL_WEBHOOKS, webhooks.parse_webhook),
        ):
            if table in existing:
                problems += _unreadable_rows(what, db.execute(statement), parse)
        return problems
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return [str(error)]


def _unreadable_rows(what: str, rows: Iterable[RawRow], parse: Callable[[RawRow], object]) -> list[str]:
    problems: list[str] = []
    for row in rows:
        try:
            parse(row)
        except ValueError as error:
            problems.append(f"{what.format(*row)} cannot be read: {error}")
    return problems


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute(_TABLES)}


def repair_store(path: Path, problem: str, steps: Sequence[Migration]) -> list[str]:
    """Recover into a new store and set the damaged one aside; the notices about it."""
    scratch = path.with_name(path.name + ".scratch")
    unfinished = path.with_name(path.name + ".salvaging")
    backup = find_backup(path)
    try:
        result = _recover_file(path, scratch, unfinished, backup, steps)
    finally:
        remove_database(scratch)
    unfinished.replace(_recovered_path(path))
    fsync_folder(path.parent)
    damaged = finish_swap(path)
    restored = f" Of these entries, {result.from_backup} came from the backup {backup}." if result.from_backup else ""
    return [
        f"The store was damaged ({problem}). The damaged file is kept as {damaged}. "
        f"Recovered: {plural(result.sessions, 'session')} with {plural(result.entries, 'entry', 'entries')}.{restored}",
        *result.losses,
    ]


def finish_swap(path: Path) -> Path | None:
    """Put a recovered store in place, if there is one; where the damaged one is kept."""
    if not _recovered_path(path).exists():
        return None
    damaged = set_aside(path)
    _recovered_path(path).replace(path)
    fsync_folder(path.parent)
    return damaged


def set_aside(path: Path) -> Path:
    """Rename a damaged file and its side files. The log goes first: it must never be read into another file."""
    new_name = _unused_name(path, f"damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for source, target in zip((*side_files(path), path), (*side_files(new_name), new_name), strict=True):
        if source.exists():
            source.replace(target)
    fsync_folder(path.parent)
    return new_name


def keep_backup(path: Path) -> Path | None:
    """Rename the backup of a store that is gone, so that no backup of another store replaces it; its new name."""
    if not (backup := find_backup(path)):
        return None
    new_name = _unused_name(path, f"kept-{backup.name.rpartition('-')[2]}")
    backup.replace(new_name)
    fsync_folder(path.parent)
    return new_name


def _unused_name(path: Path, ending: str) -> Path:
    name, number = path.with_name(f"{path.name}.{ending}"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.{ending}-{number}")
    return name


def _recovered_path(path: Path) -> Path:
    return path.with_name(path.name + ".salvaged")


def _recover_file(
    path: Path, scratch: Path, target: Path, backup: Path | None, steps: Sequence[Migration]
) -> "RecoveryResult":
    is_schema_certain = _copy_readable(path, scratch, backup, steps)
    remove_database(target)
    create_store(target, steps)
    with closing(connect(scratch)) as damaged, closing(connect_writing(target)) as fresh:
        if backup is None:
            return recover_rows(RecoverySources(damaged, is_schema_certain), fresh, path.parent)
        with closing(connect_reading(backup)) as saved:
            sources = RecoverySources(damaged, is_schema_certain, saved, backup_date(backup))
            return recover_rows(sources, fresh, path.parent)


def _copy_readable(path: Path, scratch: Path, backup: Path | None, steps: Sequence[Migration]) -> bool:
    """Copy the damaged store so that SQL can read what is left; whether its schema is certain.

    The first page says where every table begins. If it cannot be read, it is replaced: by the backup's or by that of a
    new store, if then every page belongs to the table that the schema says; else by that of the first migration, whose
    tables begin at the same pages in every store. What later migrations added cannot be found then.
    """
    _copy_files(path, scratch)
    if _has_schema(scratch, steps):
        return True
    template = path.with_name(path.name + ".template")
    try:
        create_store(template, steps)
        for first_page in ([] if backup is None else [_first_page(backup)]) + [_first_page(template)]:
            _replace_first_page(path, scratch, first_page)
            if _has_schema(scratch, steps) and _is_consistent(scratch):
                return True
        remove_database(template)
        create_store(template, steps[:1])
        _replace_first_page(path, scratch, _first_page(template))
        return False
    finally:
        remove_database(template)


def _copy_files(path: Path, scratch: Path) -> None:
    remove_database(scratch)
    for source, target in zip((path, side_files(path)[0]), (scratch, side_files(scratch)[0]), strict=True):
        if source.exists():
            shutil.copyfile(source, target)
            target.chmod(0o600)


def _first_page(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_PAGE_SIZE)


def _replace_first_page(path: Path, scratch: Path, page: bytes) -> None:
    _copy_files(path, scratch)
    count = scratch.stat().st_size // _PAGE_SIZE
    if count:
        with scratch.open("r+b") as file:
            # A write-ahead log at byte 18, the number of pages at byte 28, then an empty list of free pages.
            file.write(page[:18] + b"\2\2" + page[20:28] + count.to_bytes(4, "big") + bytes(8) + page[40:])


def _has_schema(path: Path, steps: Sequence[Migration]) -> bool:
    """Whether SQL finds every table that a store of this version has."""
    with closing(connect(path)) as db, closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        try:
            version = schema_version(db)
            applied = [step for step in steps if step.version <= version]
            if not applied:
                return False
            apply_migrations(model, applied)
            return _tables(model) <= _tables(db)
        except sqlite3.Error as error:
            if is_environmental(error):
                raise
            return False


def _is_consistent(path: Path) -> bool:
    """Whether every page is where the schema says. Free pages count as unused: the list of them was emptied."""
    with closing(connect(path)) as db:
        try:
            rows = db.execute("PRAGMA integrity_check(1000000)")
            return all(row[0] == "ok" or "never used" in row[0] for row in rows)
        except sqlite3.Error as error:
            if is_environmental(error):
                raise
            return False


class RecoveryResult(Struct, frozen=True):
    """What was recovered."""

    sessions: int
    entries: int
    from_backup: int
    """How many of the entries came from the backup."""
    losses: list[str]
    """One sentence for each session that is not complete, and for each kind of row of which some may be lost."""


class RecoverySources(Struct, frozen=True):
    """What rows are recovered from."""

    damaged: sqlite3.Connection
    is_schema_certain: bool
    """False if tables of the damaged store may be missing without SQL noticing."""
    backup: sqlite3.Connection | None = None
    backup_date: str = ""


class _RecoveredSession(Struct, frozen=True):
    """In the order of `_SESSION`."""

    person: str
    name: str
    workspace: str
    created: int
    generation: int
    head: int


class _RecoveredEntry(Struct, frozen=True):
    at: int
    key: str | None
    raw: bytes
    body: Body


def recover_rows(sources: RecoverySources, fresh: sqlite3.Connection, home: Path) -> RecoveryResult:
    """Copy everything that can be read into a new, empty store."""
    losses: list[str] = []
    owners: dict[str, str] = {}
    names: set[tuple[str, str]] = set()
    entries = from_backup = 0
    rows = {id: _session_row(sources.damaged, id) for id in sorted(_session_ids(sources))}
    fresh.execute("BEGIN IMMEDIATE")
    for id, row in sorted(rows.items(), key=lambda item: item[1] is None):  # a session that has its row keeps its name
        readable = _entries(sources.damaged, id)
        lines = _unbroken(readable)
        saved = None
        if sources.backup is not None and (row is None or len(lines) < row.head):
            lines = _unbroken(_merge(readable, _entries(sources.backup, id)))
            saved = _session_row(sources.backup, id)
        if row is None and saved is None and not lines:
            losses.append(f"Session {id} could not be recovered.")
            continue
        session = row or saved or _session_from_inputs(id, lines, home)
        if (session.person, session.name) in names:
            losses.append(f"Session {id} lost its name, {session.name!r}, which another session has.")
            session = replace(session, name=_recovered_name(id))
        if row is not None and row.head > len(lines):
            lost = plural(row.head - len(lines), "entry", "entries")
            losses.append(f"Session {session.name!r} lost its last {lost}.")
        elif row is None and saved is not None:
            losses.append(
                f"Session {session.name!r} was recovered from the backup of {sources.backup_date}; "
                "what was written to it since may be lost."
            )
        elif row is None:
            losses.append(f"Session {id} lost its name and folder; it is now called {session.name!r}.")
        _write_session(fresh, id, session, lines, is_whole=row is not None and row.head == len(lines))
        names.add((session.person, session.name))
        owners[id] = session.person
        entries += len(lines)
        from_backup += sum(seq not in readable for seq in range(1, len(lines) + 1))
    losses += _recover_tasks(sources, fresh, owners)
    losses += _recover_permissions(sources, fresh, owners)
    losses += _lost_keys(sources)
    losses += _recover_webhooks(sources, fresh, owners)
    fresh.execute("COMMIT")
    return RecoveryResult(len(owners), entries, from_backup, losses)


def _session_ids(sources: RecoverySources) -> set[str]:
    ids: set[Any] = set()
    is_complete = False
    for statement in _SESSION_IDS:
        rows, is_whole = _readable_rows(sources.damaged, statement)
        ids.update(id for (id,) in rows)
        is_complete = is_complete or is_whole
    for statement in _SESSION_IDS_OF_ENTRIES:
        ids.update(id for (id,) in _readable_rows(sources.damaged, statement)[0])
    if sources.backup is not None and not is_complete:
        ids.update(id for (id,) in _readable_rows(sources.backup, _SESSION_IDS[0])[0])
    return {id for id in ids if isinstance(id, str) and id}


def _readable_rows(db: sqlite3.Connection, statement: str, *args: Any) -> tuple[list[RawRow], bool]:
    """Rows up to the first that cannot be read; whether that was all of them."""
    rows: list[RawRow] = []
    try:
        rows.extend(db.execute(statement, args))
        return rows, True
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
    except UnicodeDecodeError:
        pass
    return rows, False


def _rows_from_both_ends(
    db: sqlite3.Connection, forwards: str, backwards: str, *args: Any
) -> tuple[list[RawRow], bool]:
    rows, is_whole = _readable_rows(db, forwards, *args)
    return (rows, True) if is_whole else (rows + _readable_rows(db, backwards, *args)[0], False)


def _session_row(db: sqlite3.Connection, id: str) -> _RecoveredSession | None:
    types = (str, str, str, int, int, int)
    for row in _readable_rows(db, _SESSION, id)[0]:
        if all(isinstance(value, kind) for value, kind in zip(row, types, strict=True)):
            return _RecoveredSession(*row)
    return None


def _entries(db: sqlite3.Connection, id: str) -> dict[int, _RecoveredEntry]:
    """Every readable entry of a session by its number."""
    entries: dict[int, _RecoveredEntry] = {}
    for seq, at, key, raw in _rows_from_both_ends(db, _ENTRIES, _ENTRIES_BACKWARDS, id)[0]:
        if isinstance(seq, int) and isinstance(at, int) and isinstance(key, str | None) and isinstance(raw, bytes):
            try:
                entries[seq] = _RecoveredEntry(at, key, raw, journal.decode_body(raw))
            except ValueError:
                continue
    return entries


def _merge(damaged: dict[int, _RecoveredEntry], saved: dict[int, _RecoveredEntry]) -> dict[int, _RecoveredEntry]:
    """Both together: entries never change. If they disagree, the backup is of another past and is not used."""
    agrees = all(damaged[seq] == saved[seq] for seq in damaged.keys() & saved.keys())
    return saved | damaged if agrees else damaged


def _unbroken(entries: dict[int, _RecoveredEntry]) -> list[_RecoveredEntry]:
    """The journal from its first entry to the first that is missing or repeats a key."""
    lines: list[_RecoveredEntry] = []
    used: set[str] = set()
    while (entry := entries.get(len(lines) + 1)) and entry.key not in used:
        lines.append(entry)
        used.update(() if entry.key is None else (entry.key,))
    return lines


def _session_from_inputs(id: str, lines: Sequence[_RecoveredEntry], home: Path) -> _RecoveredSession:
    """A session without its own row: the inputs still name its person."""
    person = next((line.body.person for line in lines if isinstance(line.body, Input)), "")
    name = _recovered_name(id)
    workspace = os.path.join(os.path.realpath(home), "workspaces", name)
    return _RecoveredSession(person, name, workspace, lines[0].at, 0, len(lines) + 1)


def _recovered_name(id: str) -> str:
    return f"recovered-{id[:8]}"


def _write_session(
    fresh: sqlite3.Connection, id: str, session: _RecoveredSession, lines: Sequence[_RecoveredEntry], *, is_whole: bool
) -> None:
    created, generation = session.created, session.generation + 1
    fresh.execute(
        sessions.INSERT_SESSION,
        (id, session.person, session.name, session.workspace, created, created * 1000, generation, ""),
    )
    row = SessionRow(touched=created * 1000, generation=generation)

    def write(entry: Entry, key: str | None, raw: bytes) -> None:
        fresh.execute(journal.INSERT_ENTRY, (id, entry.seq, entry.at, journal.entry_kind(entry.body), key, raw))

    for line in lines:
        row = apply_entry(row, line.body, line.at * 1000)
        write(Entry(row.head, line.at, line.body), line.key, line.raw)
    if not is_whole and row.has_work:
        # Its real end is unknown: to do the work again could do it twice.
        ended = Ended("failed", row.head, SESSION_END_LOST)
        row = apply_entry(row, ended, row.touched)
        write(Entry(row.head, row.touched // 1000, ended), None, journal.encode_body(ended))
    fresh.execute(journal.UPDATE_SESSION_ROW, (id, *astuple(row)))


def _recover_tasks(sources: RecoverySources, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    rows, is_whole = _rows_from_both_ends(sources.damaged, tasks.ALL_TASKS, tasks.ALL_TASKS_BACKWARDS)
    parsed, is_parsed = _parse_rows(tasks.parse_task, rows)
    is_lost = _may_be_lost(sources, "tasks", is_whole=is_whole and is_parsed)
    latest: dict[str, TaskRow] = {}
    for task in parsed:
        if task.id not in latest or _progress(task) > _progress(latest[task.id]):
            latest[task.id] = task
    if sources.backup is not None and is_lost:
        saved, _ = _parse_rows(tasks.parse_task, _readable_rows(sources.backup, tasks.ALL_TASKS)[0])
        latest = {task.id: _close(task) for task in saved} | latest
    for task in latest.values():
        if task.session in owners:
            fresh.execute(tasks.RECOVER_TASK, astuple(replace(task, person=owners[task.session])))
    return [LOST_TASKS] if is_lost else []


def _progress(task: TaskRow) -> tuple[bool, bool, int, bool]:
    """Greater in a later version of the same row, which may be found beside an older one."""
    return task.state not in OPEN_STATES, not task.is_awaited, task.notices, task.state != "queued"


def _close(task: TaskRow) -> TaskRow:
    """A task of the backup: it may have ended since, so that it is neither resumed nor reported."""
    if task.state not in OPEN_STATES:
        return task
    return replace(task, state="lost", ended=time.time_ns() // 1_000_000, why=TASK_END_LOST)


def _recover_permissions(sources: RecoverySources, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    rows, is_whole = _rows_from_both_ends(sources.damaged, tasks.ALL_PERMISSIONS, tasks.ALL_PERMISSIONS_BACKWARDS)
    permissions, is_parsed = _parse_rows(tasks.parse_permission, rows)
    for permission in permissions:
        if permission.scope != "session" or permission.applies_to in owners:
            fresh.execute(tasks.RECOVER_PERMISSION, astuple(permission))
    return [LOST_PERMISSIONS] if _may_be_lost(sources, "grants", is_whole=is_whole and is_parsed) else []


def _lost_keys(sources: RecoverySources) -> list[str]:
    """None is recovered: in a damaged table a revoked key may look like an active one."""
    rows, is_whole = _readable_rows(sources.damaged, keys.COUNT_KEYS)
    had_keys = any(count for (count,) in rows)
    return [LOST_KEYS] if had_keys or _may_be_lost(sources, "keys", is_whole=is_whole) else []


def _recover_webhooks(sources: RecoverySources, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    """A row may be older than its last change: it is then sent again, under the id that its receiver knows."""
    rows, is_whole = _readable_rows(sources.damaged, webhooks.ALL_WEBHOOKS)
    parsed, is_parsed = _parse_rows(webhooks.parse_webhook, rows)
    for webhook in parsed:
        if webhook.session in owners:
            fresh.execute(webhooks.INSERT_WEBHOOK, astuple(replace(webhook, person=owners[webhook.session])))
    return [LOST_WEBHOOKS] if _may_be_lost(sources, "hooks", is_whole=is_whole and is_parsed) else []


def _parse_rows(parse: Callable[[RawRow], T], rows: Iterable[RawRow]) -> tuple[list[T], bool]:
    """The rows that can be parsed; whether those were all."""
    parsed: list[T] = []
    is_whole = True
    for row in rows:
        try:
            parsed.append(parse(row))
        except ValueError:
            is_whole = False
    return parsed, is_whole


def _may_be_lost(sources: RecoverySources, table: str, *, is_whole: bool) -> bool:
    """Whether rows of this table may be lost. A store that has yet to be upgraded never had some of the tables."""
    if not sources.is_schema_certain:
        return True
    return not is_whole and table in _tables(sources.damaged)
