"""Reads rows straight from the pages of a SQLite file, for when the tree that leads to them is torn.

Only what a salvage needs: records in the b-trees of tables without rowid, as in https://sqlite.org/fileformat2.html.

Looks through the whole store for anything that is not as it should be.

What a salvage says of keys. None is carried over: in torn pages one that was revoked looks like one that holds.

Carries what can still be read of a damaged store's tasks and grants into a fresh one, after its sessions.

Carries what can still be read of a damaged store into a fresh one.

Of each session the unbroken beginning of its journal is kept, since any prefix of a journal is a valid one.

When the store is damaged: notice it, keep the damaged file, and carry every readable row into a new store.

The swap can be cut anywhere: a salvaged store that is whole but not yet in its place is put there at the next start.
"""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from outrider.core.approvals import Permission
from outrider.core.events import Body, Ended, Entry, Input
from outrider.core.tasks import OPEN_STATES
from outrider.store import journal, keys, sessions, webhooks
from outrider.store import tasks as task_rows
from outrider.store.database import connect, connect_writing, remove_database, side_files
from outrider.store.errors import is_environmental
from outrider.store.journal import SessionRow, apply_entry
from outrider.store.keys import parse_key
from outrider.store.migrations import APPLICATION_ID, Migration, create_store, schema_version
from outrider.store.tasks import TaskRow, parse_permission, parse_task
from outrider.store.webhooks import parse_webhook
from outrider.system.files import fsync_folder

# Every entry, in order, to check that each can be read.
ALL_ENTRIES = "SELECT session, seq, body FROM entries ORDER BY session, seq"


# Sessions whose columns disagree with their journal.
SESSION_ENTRY_COUNTS = """
SELECT id, head, (SELECT count(*) FROM entries WHERE session = id), (SELECT max(seq) FROM entries WHERE session = id)
FROM sessions
"""


# What a salvage can still find out about which sessions there were: from both ends, in case the middle is torn.
RECOVER_SESSION_IDS = (
    "SELECT id FROM sessions ORDER BY id",
    "SELECT id FROM sessions ORDER BY id DESC",
    "SELECT id FROM sessions INDEXED BY sessions_by_name ORDER BY person, name",
    "SELECT DISTINCT session FROM entries ORDER BY session",
    "SELECT DISTINCT session FROM entries ORDER BY session DESC",
)


# What a salvage copies of one session.
RECOVER_SESSION = "SELECT person, name, workspace, created, generation, head FROM sessions WHERE id = ?1"
RECOVER_ENTRIES = "SELECT seq, at, key, body FROM entries WHERE session = ?1 ORDER BY seq"
LOST_WEBHOOKS = "Some webhooks may have been lost with it; what they would have told of is in the sessions."


def recover_webhooks(damaged: sqlite3.Connection, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    """Carry over what can be read of the sessions that were recovered, which have these owners. What was lost, if any.

    A row may be older than its last change: then it is sent again, under the id its receiver knows.
    """
    is_whole = True
    try:
        if not damaged.execute(webhooks.HAS_WEBHOOKS).fetchone()[0]:
            return []
        for row in damaged.execute(webhooks.ALL_WEBHOOKS):
            try:
                hook = parse_webhook(row)
            except ValueError:
                is_whole = False
                continue
            if hook.session in owners:
                fresh.execute(webhooks.INSERT_WEBHOOK, astuple(replace(hook, person=owners[hook.session])))
    except UnicodeDecodeError:
        is_whole = False
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        is_whole = False
    return [] if is_whole else [LOST_WEBHOOKS]


PAGE_SIZE = 4096
_LEAF, _INNER = 0x0A, 0x02
_MAX_LOCAL = (PAGE_SIZE - 12) * 64 // 255 - 23
_MIN_LOCAL = (PAGE_SIZE - 12) * 32 // 255 - 23
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)
PageValue = None | int | str | bytes


class PageEntry(Struct, frozen=True):
    """A row of `entries` as it lies in its page."""

    session: str
    seq: int
    at: int
    key: str | None
    body: bytes


def raw_entries(file: BinaryIO) -> Iterator[PageEntry]:
    """Every row that looks like an entry, in no order. Pages that were given up may repeat one."""
    for row in raw_rows(file):
        match row:
            case [str(session), int(seq), int(at), str(), str() | None as key, bytes(body)]:
                yield PageEntry(session, seq, at, key, body)
            case _:
                pass


def raw_rows(file: BinaryIO) -> Iterator[list[PageValue]]:
    """Every row of every table and index, in no order, those in pages that were given up among them."""
    number = 0
    while True:
        number += 1
        file.seek((number - 1) * PAGE_SIZE)
        page = file.read(PAGE_SIZE)
        if len(page) < PAGE_SIZE:
            return
        for start in _cells(page):
            if row := _record(file, page, start):
                yield row


def _cells(page: bytes) -> list[int]:
    """Where the payloads of a page begin; none when it is no page of such a tree."""
    if page[0] not in (_LEAF, _INNER):
        return []
    header, before = (8, 0) if page[0] == _LEAF else (12, 4)
    count = int.from_bytes(page[3:5], "big")
    if header + 2 * count > PAGE_SIZE:
        return []
    places = (header + 2 * index for index in range(count))
    return [int.from_bytes(page[place : place + 2], "big") + before for place in places]


def _record(file: BinaryIO, page: bytes, start: int) -> list[PageValue]:
    try:
        size, start = _varint(page, start)
        return _values(_payload(file, page, start, size))
    except (IndexError, ValueError):
        return []


def _payload(file: BinaryIO, page: bytes, start: int, size: int) -> bytes:
    if size > file.seek(0, SEEK_END):
        raise ValueError("this is larger than its file")
    if size <= _MAX_LOCAL:
        return _exactly(page[start : start + size], size)
    local = _MIN_LOCAL + (size - _MIN_LOCAL) % (PAGE_SIZE - 4)
    local = local if local <= _MAX_LOCAL else _MIN_LOCAL
    payload = bytearray(_exactly(page[start : start + local], local))
    following = int.from_bytes(_exactly(page[start + local : start + local + 4], 4), "big")
    while len(payload) < size:
        if not following:
            raise ValueError("this payload has no end")
        file.seek((following - 1) * PAGE_SIZE)
        piece = _exactly(file.read(PAGE_SIZE), PAGE_SIZE)
        following = int.from_bytes(piece[:4], "big")
        payload += piece[4 : 4 + size - len(payload)]
    return bytes(payload)


def _values(payload: bytes) -> list[PageValue]:
    end, place = _varint(payload, 0)
    kinds: list[int] = []
    while place < end:
        kind, place = _varint(payload, place)
        kinds.append(kind)
    values: list[PageValue] = []
    for kind in kinds:
        width = _width(kind)
        values.append(_value(kind, _exactly(payload[place : place + width], width)))
        place += width
    return values


def _width(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return _WIDTHS[kind] if kind < 7 else 0


def _value(kind: int, content: bytes) -> PageValue:
    if kind == 0:
        return None
    if kind < 7:
        return int.from_bytes(content, "big", signed=True)
    if kind in (8, 9):
        return kind - 8
    if kind < 12:
        raise ValueError("no such kind of value in a store of ours")
    return content.decode() if kind % 2 else content


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number of up to eight groups of seven bits, and where it ends; a ninth would be larger than any file."""
    value = 0
    for offset in range(8):
        byte = content[place + offset]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + offset + 1
    raise ValueError("this number is too large to be a size")


def _exactly(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ValueError("this ends too early")
    return content


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
    for session, seq, body in db.execute(ALL_ENTRIES):
        try:
            journal.decode_body(body)
        except ValueError as error:
            found.append(f"entry {seq} of session {session} cannot be read: {error}")
    return found


def _wrong_counts(db: sqlite3.Connection) -> list[str]:
    return [
        f"session {id} should have {head} entries, and has {count} up to {last or 0}"
        for id, head, count, last in db.execute(SESSION_ENTRY_COUNTS)
        if not head == count == (last or 0)
    ]


def _unreadable_tasks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(task_rows.HAS_TASKS).fetchone()[0]:
        # A store that waits for its upgrade.
        return []
    tasks = _unreadable_rows("task", db.execute(task_rows.ALL_TASKS), parse_task)
    return tasks + _unreadable_rows("permission", db.execute(task_rows.ALL_PERMISSIONS), parse_permission)


def _unreadable_keys(db: sqlite3.Connection) -> list[str]:
    if not db.execute(keys.HAS_KEYS).fetchone()[0]:
        return []
    return _unreadable_rows("key", db.execute(keys.ALL_KEYS), parse_key)


def _unreadable_webhooks(db: sqlite3.Connection) -> list[str]:
    if not db.execute(webhooks.HAS_WEBHOOKS).fetchone()[0]:
        return []
    return _unreadable_rows("webhook", db.execute(webhooks.ALL_WEBHOOKS), parse_webhook)


def _unreadable_rows(what: str, rows: sqlite3.Cursor, parse: Callable[[Sequence[Any]], object]) -> list[str]:
    found: list[str] = []
    for row in rows:
        try:
            parse(row)
        except ValueError as error:
            found.append(f"{what} {row[0]} cannot be read: {error}")
    return found


LOST_KEYS = "The keys to the API were lost with it; make them anew with `outrider key create`."


def lost_keys(damaged: sqlite3.Connection, pages: BinaryIO) -> list[str]:
    """One sentence where there were keys, or where nobody can tell any more."""
    had = _count_or_none(damaged, keys.COUNT_KEYS)
    if had is None:
        had = _count_or_none(damaged, keys.HAS_KEYS) or any(_is_key(row) for row in raw_rows(pages))
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


T = TypeVar("T")
RawRow = Sequence[Any]
LOST_TASKS = "Some tasks may have been lost; a command of theirs may still run."
LOST_PERMISSIONS = "Some of what you allowed once and for all was lost; you will be asked again."


def recover_tasks(
    damaged: sqlite3.Connection, pages: BinaryIO, fresh: sqlite3.Connection, owners: Mapping[str, str]
) -> list[str]:
    """One sentence for each kind of loss. `owners` are the persons of the sessions that were recovered."""
    loose: list[RawRow] = []
    tasks, are_tasks_whole = _rows_until_error(damaged, task_rows.ALL_TASKS, task_rows.ALL_TASKS_BACKWARDS)
    grants, are_grants_whole = _rows_until_error(
        damaged, task_rows.ALL_PERMISSIONS, task_rows.ALL_PERMISSIONS_BACKWARDS
    )
    if not are_tasks_whole or not are_grants_whole:
        loose = [
            row for row in raw_rows(pages) if _parse_or_none(parse_task, row) or _parse_or_none(parse_permission, row)
        ]
    has_tables = any(count for (count,) in _rows_until_error(damaged, task_rows.HAS_TASKS)[0])
    losses: list[str] = []
    _write_tasks(fresh, _parse_rows(parse_task, [*tasks, *loose]), owners)
    if _has_unparsed(parse_task, tasks) or (has_tables and not are_tasks_whole):
        losses.append(LOST_TASKS)
    # What lies in given-up pages may be what a person took back: of grants only the table itself is believed.
    _write_permissions(fresh, _parse_rows(parse_permission, grants), owners)
    if _has_unparsed(parse_permission, grants) or (
        not are_grants_whole and (has_tables or _parse_rows(parse_permission, loose))
    ):
        losses.append(LOST_PERMISSIONS)
    return losses


def _rows_until_error(db: sqlite3.Connection, *statements: str) -> tuple[list[RawRow], bool]:
    """Rows until the first that cannot be read, by each statement until one gives all; whether one did."""
    rows: list[RawRow] = []
    for statement in statements:
        try:
            rows.extend(db.execute(statement))
            return rows, True
        except sqlite3.Error as error:
            if is_environmental(error):
                raise
        except UnicodeDecodeError:
            continue
    return rows, False


def _write_tasks(fresh: sqlite3.Connection, tasks: Iterable[TaskRow], owners: Mapping[str, str]) -> None:
    latest: dict[str, TaskRow] = {}
    for task in tasks:
        known = latest.get(task.id)
        if task.session in owners and (known is None or _progress(task) > _progress(known)):
            latest[task.id] = task
    for task in latest.values():
        fresh.execute(task_rows.RECOVER_TASK, astuple(replace(task, person=owners[task.session])))


def _write_permissions(fresh: sqlite3.Connection, permissions: Iterable[Permission], owners: Mapping[str, str]) -> None:
    for grant in permissions:
        if grant.scope != "session" or grant.applies_to in owners:
            fresh.execute(task_rows.RECOVER_PERMISSION, astuple(grant))


def _progress(task: TaskRow) -> tuple[bool, bool, int, bool]:
    """Greater in a later version of the same row, which may lie beside an older one."""
    return task.state not in OPEN_STATES, not task.is_awaited, task.notices, task.state != "queued"


def _parse_rows(parse: Callable[[RawRow], T], rows: Iterable[RawRow]) -> list[T]:
    return [parsed for row in rows if (parsed := _parse_or_none(parse, row)) is not None]


def _has_unparsed(parse: Callable[[RawRow], object], rows: Iterable[RawRow]) -> bool:
    return any(_parse_or_none(parse, row) is None for row in rows)


def _parse_or_none(parse: Callable[[RawRow], T], row: RawRow) -> T | None:
    try:
        return parse(row)
    except ValueError:
        return None


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


def _entries_in_pages(pages: BinaryIO, ids: set[str]) -> dict[str, dict[int, PageEntry]]:
    """The rows of these sessions, wherever they lie. Others are left: theirs may be what a person deleted."""
    found: dict[str, dict[int, PageEntry]] = {}
    for row in raw_entries(pages) if ids else ():
        if row.session in ids and _body_or_none(row.body) is not None:
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
        id for statement in RECOVER_SESSION_IDS for (id,) in _readable_rows(db, statement) if isinstance(id, str) and id
    }


def _session_row(db: sqlite3.Connection, id: str) -> _RecoveredSession | None:
    types = (str, str, str, int, int, int)
    for row in _readable_rows(db, RECOVER_SESSION, id):
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

    for row in _readable_rows(db, RECOVER_ENTRIES, id):
        if not follows(*row):
            break
    while (more := loose.get(len(lines) + 1)) and follows(more.seq, more.at, more.key, more.body):
        pass
    return lines


def _body_or_none(raw: object) -> Body | None:
    try:
        return journal.decode_body(raw) if isinstance(raw, bytes) else None
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
        sessions.INSERT_SESSION,
        (id, row.person, row.name, row.workspace, row.created, row.created * 1000, row.generation + 1),
    )
    standing = SessionRow(touched=row.created * 1000, generation=row.generation + 1)
    for line in lines:
        standing = apply_entry(standing, line.entry.body, line.entry.at * 1000)
        entry = line.entry
        fresh.execute(
            journal.INSERT_ENTRY, (id, entry.seq, entry.at, journal.entry_kind(entry.body), line.key, line.raw)
        )
    if not is_whole and standing.has_work:
        # Its real end is unknown: doing the work again could do it twice.
        ended = Ended("failed", standing.head, SESSION_END_LOST)
        standing = apply_entry(standing, ended, standing.touched)
        raw, at = journal.encode_body(ended), standing.touched // 1000
        fresh.execute(journal.INSERT_ENTRY, (id, standing.head, at, journal.entry_kind(ended), None, raw))
    fresh.execute(journal.UPDATE_SESSION_ROW, (id, *astuple(standing)))


def diagnose(path: Path, newest: int, *, look_inside: bool) -> str:
    """What is wrong with this file, or nothing. A newer version than we know is not damage.

    Raises sqlite3.Error when the surroundings are at fault.
    """
    db = connect(path)
    try:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            return "it is not a store of Outrider"
        if schema_version(db) > newest:
            return ""
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if look_inside:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            return "" if found == "ok" else " ".join(str(found).split())
        return ""
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return str(error)
    finally:
        db.close()


def repair_store(path: Path, problem: str, steps: Sequence[Migration]) -> list[str]:
    """Salvage into a new store, set the damaged one aside; what to tell the person of it."""
    scratch = path.with_name(path.name + ".scratch")
    saved = path.with_name(path.name + ".salvaging")
    try:
        found = _recover_copy(path, scratch, saved, steps)
    finally:
        remove_database(scratch)
    saved.replace(_recovered_path(path))
    fsync_folder(path.parent)
    kept = finish_swap(path)
    return [
        f"The store was damaged ({problem}). The damaged file is kept as {kept}. "
        f"Recovered: {found.sessions} sessions with {found.entries} entries.",
        *found.losses,
    ]


def finish_swap(path: Path) -> Path | None:
    """Put a salvaged store into its place, if there is one; where the damaged one went."""
    if not _recovered_path(path).exists():
        return None
    kept = set_aside(path)
    _recovered_path(path).replace(path)
    fsync_folder(path.parent)
    return kept


def set_aside(path: Path) -> Path:
    """Rename a damaged file and what is beside it. The log goes first, so that it is never read into another file."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept, n = path.with_name(f"{path.name}.damaged-{stamp}"), 1
    while kept.exists():
        n += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{n}")
    for source, target in zip((*side_files(path), path), (*side_files(kept), kept), strict=True):
        if source.exists():
            source.replace(target)
    fsync_folder(path.parent)
    return kept


def _recovered_path(path: Path) -> Path:
    return path.with_name(path.name + ".salvaged")


def _recover_copy(path: Path, scratch: Path, saved: Path, steps: Sequence[Migration]) -> RecoveryResult:
    _copy_files(path, scratch)
    if not _is_readable(scratch):
        # The first page tells where all else lies. As the first migration made it, it is right for every store: what
        # later ones added lies elsewhere in each.
        remove_database(saved)
        create_store(saved, steps[:1])
        _copy_files(path, scratch)
        _replace_first_page(scratch, saved.read_bytes()[:PAGE_SIZE])
    remove_database(saved)
    create_store(saved, steps)
    damaged, fresh = connect(scratch), connect_writing(saved)
    try:
        with scratch.open("rb") as pages:
            return recover_rows(damaged, pages, fresh, path.parent)
    finally:
        damaged.close()
        fresh.close()


def _copy_files(path: Path, scratch: Path) -> None:
    remove_database(scratch)
    for source, target in zip((path, side_files(path)[0]), (scratch, side_files(scratch)[0]), strict=True):
        if source.exists():
            shutil.copyfile(source, target)
            target.chmod(0o600)


def _is_readable(path: Path) -> bool:
    db = connect(path)
    try:
        db.execute("SELECT (SELECT id FROM sessions LIMIT 1), (SELECT session FROM entries LIMIT 1)").fetchone()
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return False
    finally:
        db.close()
    return True


def _replace_first_page(path: Path, page: bytes) -> None:
    pages = path.stat().st_size // PAGE_SIZE
    if not pages:
        return
    with path.open("r+b") as file:
        # Size in pages at byte 28, then an empty list of free pages.
        file.write(page[:28] + pages.to_bytes(4, "big") + bytes(8) + page[40:])
