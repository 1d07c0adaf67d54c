"""Sessions: their statements, reads and writes.

A read is a function on a connection that cannot write. A write is a method that runs inside the writer's transaction;
an exception undoes it.
"""

import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from outrider.core.errors import NameTaken, QueueFull, Refused, StaleClaim
from outrider.core.events import Body, Bound, Changed, Compacted, Ended, Entry, Input, Reply, Result
from outrider.core.plan import fold
from outrider.core.store_port import Claim, Session
from outrider.core.types import WorkspaceIdentity
from outrider.store.database import MIN_ID_PREFIX, Clock, parse_identity, render_identity
from outrider.store.errors import no_such_session
from outrider.store.journal import (
    COUNT_UNSEEN,
    ENTRY_BY_KEY,
    Journal,
    SessionRow,
    encode_body,
    parse_entry,
    read_entries,
)
from outrider.store.keys import add_spend
from outrider.store.tasks import DELETE_SESSION_PERMISSIONS, DELETE_TASKS
from outrider.store.webhooks import DELETE_WEBHOOKS

# One session, in the order of `core.store_port.Session`.
_SESSION_COLUMNS = (
    "id, person, name, workspace, title, created, touched / 1000, head, is_open, newest_input > saw, folder"
)
_SELECT_SESSION = f"SELECT {_SESSION_COLUMNS} FROM sessions "

# A session of this person by its id.
SESSION_BY_ID = _SELECT_SESSION + "WHERE person = ?1 AND id = ?2"

# Whether this person has a session with this id, in a store of any version.
HAS_SESSION = "SELECT 1 FROM sessions WHERE person = ?1 AND id = ?2"

# A session of this person by its name.
SESSION_BY_NAME = _SELECT_SESSION + "WHERE person = ?1 AND name = ?2"

# Sessions of this person whose id begins like this; two rows mean that it is ambiguous.
SESSIONS_BY_PREFIX = _SELECT_SESSION + "WHERE person = ?1 AND id >= ?2 AND id < ?2 || 'g' LIMIT 2"

# This person's sessions, the latest first.
SESSIONS_OF = _SELECT_SESSION + "WHERE person = ?1 ORDER BY touched DESC LIMIT ?2"

# The settings of these sessions, oldest first.
SETTINGS_OF = """
SELECT session, seq, at, body FROM entries
WHERE kind = 'changed' AND session IN (SELECT id FROM sessions WHERE person = ?1 ORDER BY touched DESC LIMIT ?2)
ORDER BY session, seq
"""

# Everyone's sessions, the one used last first.
LATEST_SESSIONS = _SELECT_SESSION + "ORDER BY touched DESC LIMIT ?1"

# The entries of one kind, newest first: read one by one, as far back as needed.
NEWEST_OF_KIND = "SELECT seq, at, body FROM entries WHERE session = ?1 AND kind = ?2 ORDER BY seq DESC"

# How many sessions a person has: where the search for a free name begins.
COUNT_SESSIONS_OF = "SELECT count(*) FROM sessions WHERE person = ?1"

# A new or recovered session, before its entries.
INSERT_SESSION = """
INSERT INTO sessions (id, person, name, workspace, title, created, touched, generation, handed_over,
                      head, saw, newest_input, is_open, waits_since, folder)
VALUES (?1, ?2, ?3, ?4, '', ?5, ?6, ?7, 0, 0, 0, 0, 0, NULL, ?8)
"""

# The sessions that have work, longest waiting first: of everyone, and of one person.
SESSIONS_WITH_WORK = "SELECT id FROM sessions WHERE waits_since IS NOT NULL ORDER BY waits_since, id"
SESSIONS_WITH_WORK_OF = "SELECT id FROM sessions WHERE waits_since IS NOT NULL AND person = ?1 ORDER BY waits_since, id"

# The sessions of everyone with an open turn and a question without an answer, longest waiting first. A question and its
# answer are found by their keys: `ask/NAME` and `answer/ask-NAME`.
ASKING_SESSIONS = (
    _SELECT_SESSION
    + """WHERE waits_since IS NOT NULL AND is_open AND EXISTS (
    SELECT 1 FROM entries e WHERE e.session = sessions.id AND e.key >= 'ask/' AND e.key < 'ask0' AND NOT EXISTS (
        SELECT 1 FROM entries a WHERE a.session = e.session AND a.key = 'answer/ask-' || substr(e.key, 5)))
ORDER BY waits_since, id"""
)

# Claim a session: a new generation, and whether the previous owner handed it over.
SESSION_AND_OWNER = f"SELECT {_SESSION_COLUMNS}, generation, handed_over FROM sessions WHERE id = ?1"
SET_OWNER = "UPDATE sessions SET generation = ?2, handed_over = 0 WHERE id = ?1"

# Hand a session over, unless it has been claimed again.
RELEASE_SESSION = "UPDATE sessions SET handed_over = 1 WHERE id = ?1 AND generation = ?2"

# Record which folder the workspace of a session is.
SET_FOLDER = "UPDATE sessions SET folder = ?2 WHERE id = ?1 AND folder = ?3"

# Have a session work in another folder.
MOVE_SESSION = "UPDATE sessions SET workspace = ?2, folder = ?3 WHERE id = ?1 AND workspace = ?4"

# Rename a session.
RENAME_SESSION = "UPDATE sessions SET name = ?3 WHERE person = ?1 AND id = ?2"

# The searchable entries of a session, so that they can be removed from the index.
SEARCHABLE_ENTRIES = "SELECT seq, body FROM entries WHERE session = ?1 AND kind IN ('input', 'reply') ORDER BY seq"

# Delete a session with its journal.
DELETE_ENTRIES = "DELETE FROM entries WHERE session = ?1"
DELETE_SESSION = "DELETE FROM sessions WHERE id = ?1 AND person = ?2"
_HEX = frozenset("0123456789abcdef")


def session_of(row: Sequence[Any]) -> Session:
    """Parse a row of `SESSION_BY_ID` and similar statements."""
    id, person, name, workspace, title, created, updated, head, is_open, has_unseen, folder = row
    return Session(
        id,
        person,
        name,
        workspace,
        title,
        created,
        updated,
        head,
        bool(is_open),
        bool(is_open or has_unseen),
        parse_identity(folder),
    )


def find_session(db: sqlite3.Connection, person: str, session: str) -> Session | None:
    for statement in (SESSION_BY_ID, SESSION_BY_NAME):
        if row := db.execute(statement, (person, session)).fetchone():
            return session_of(row)
    return None


def look_up_session(db: sqlite3.Connection, person: str, session: str) -> Session | None:
    if match := find_session(db, person, session):
        return match
    if len(session) < MIN_ID_PREFIX or not _HEX.issuperset(session):
        return None
    rows = db.execute(SESSIONS_BY_PREFIX, (person, session)).fetchall()
    return session_of(rows[0]) if len(rows) == 1 else None


def list_sessions(db: sqlite3.Connection, person: str, limit: int) -> Sequence[Session]:
    return [session_of(row) for row in db.execute(SESSIONS_OF, (person, limit))]


def list_settings(db: sqlite3.Connection, person: str, limit: int) -> Mapping[str, Mapping[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for session, seq, at, body in db.execute(SETTINGS_OF, (person, limit)):
        changed = parse_entry(session, seq, at, body).body
        if isinstance(changed, Changed):
            settings.setdefault(session, {})[changed.name] = changed.value
    return settings


def list_bound(db: sqlite3.Connection, runtime: str, limit: int) -> Sequence[tuple[Session, Bound]]:
    found: list[tuple[Session, Bound]] = []
    for session in [session_of(row) for row in db.execute(LATEST_SESSIONS, (limit,))]:
        for row in db.execute(NEWEST_OF_KIND, (session.id, "bound")):
            bound = parse_entry(session.id, *row).body
            if isinstance(bound, Bound) and bound.runtime == runtime:
                found.append((session, bound))
                break
    return found


def find_newest_input(db: sqlite3.Connection, session: str, accepts: Callable[[Input], bool]) -> Input | None:
    for row in db.execute(NEWEST_OF_KIND, (session, "input")):
        body = parse_entry(session, *row).body
        if isinstance(body, Input) and accepts(body):
            return body
    return None


def asking_sessions(db: sqlite3.Connection) -> Sequence[Session]:
    return [session_of(row) for row in db.execute(ASKING_SESSIONS)]


def sessions_with_work(db: sqlite3.Connection, person: str) -> Sequence[str]:
    rows = db.execute(SESSIONS_WITH_WORK_OF, (person,)) if person else db.execute(SESSIONS_WITH_WORK)
    return [id for (id,) in rows]


def delete_session(db: sqlite3.Connection, person: str, session: str) -> Sequence[tuple[int, bytes]] | None:
    """Delete a session with all that belongs to it; its searchable entries, or None if this person has none such."""
    if not db.execute(HAS_SESSION, (person, session)).fetchone():
        return None
    searchable = db.execute(SEARCHABLE_ENTRIES, (session,)).fetchall()
    for statement in (DELETE_TASKS, DELETE_SESSION_PERMISSIONS, DELETE_WEBHOOKS, DELETE_ENTRIES):
        db.execute(statement, (session,))
    db.execute(DELETE_SESSION, (session, person))
    return searchable


class SessionWrites:
    """Writes to sessions, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, journal: Journal, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self._journal = journal
        self._last_numbers: dict[str, int] = {}  # of each person's last unnamed session: faster than counting them

    def create_or_get(self, person: str, name: str, workspace: str, identity: WorkspaceIdentity | None) -> Session:
        name = name or self._free_name(person)
        if row := self._db.execute(SESSION_BY_NAME, (person, name)).fetchone():
            return session_of(row)
        id, now = secrets.token_hex(16), self._clock()
        folder = render_identity(identity)
        self._db.execute(INSERT_SESSION, (id, person, name, workspace, now // 1000, now, 0, folder))
        return session_of(self._db.execute(SESSION_BY_ID, (person, id)).fetchone())

    def _free_name(self, person: str) -> str:
        if (number := self._last_numbers.get(person)) is None:
            (number,) = self._db.execute(COUNT_SESSIONS_OF, (person,)).fetchone()
        while True:
            number += 1
            name = f"session-{number}"
            if not self._db.execute(SESSION_BY_NAME, (person, name)).fetchone():
                self._last_numbers[person] = number
                return name

    def record_identity(self, session: str, identity: WorkspaceIdentity, replaces: WorkspaceIdentity | None) -> Session:
        self._db.execute(SET_FOLDER, (session, render_identity(identity), render_identity(replaces)))
        columns = self._db.execute(SESSION_AND_OWNER, (session,)).fetchone()
        if columns is None:
            raise no_such_session(session)
        return session_of(columns[:-2])

    def record_move(self, session: str, workspace: str, identity: WorkspaceIdentity, replaces: str) -> Session:
        self._db.execute(MOVE_SESSION, (session, workspace, render_identity(identity), replaces))
        columns = self._db.execute(SESSION_AND_OWNER, (session,)).fetchone()
        if columns is None:
            raise no_such_session(session)
        return session_of(columns[:-2])

    def rename(self, person: str, session: str, name: str) -> Session:
        for statement in (SESSION_BY_NAME, SESSION_BY_ID):
            row = self._db.execute(statement, (person, name)).fetchone()
            if row and session_of(row).id != session:
                raise NameTaken(f"another session is named {name!r}; choose another name")
        if not self._db.execute(RENAME_SESSION, (person, session, name)).rowcount:
            raise no_such_session(session)
        return session_of(self._db.execute(SESSION_BY_ID, (person, session)).fetchone())

    def delete(self, person: str, session: str) -> Sequence[tuple[int, bytes]] | None:
        return delete_session(self._db, person, session)

    def accept_once(self, session: str, body: Input, key: str | None, queue: int, encoded: bytes) -> tuple[Entry, bool]:
        row = self._journal.session_row(session)
        if entry := self._journal.entry_by_key(session, key):
            return entry, False
        waiting = self._count_unseen(session, row)
        if waiting >= queue:
            raise QueueFull(
                f"{waiting} messages are already waiting in this session; "
                "wait until it has processed them, or stop it, before you send more"
            )
        return self._journal.append(session, row, body, key, encoded), True

    def claim(self, session: str) -> Claim:
        columns = self._db.execute(SESSION_AND_OWNER, (session,)).fetchone()
        if columns is None:
            raise no_such_session(session)
        *row, generation, handed_over = columns
        self._db.execute(SET_OWNER, (session, generation + 1))
        return Claim(session_of(row), generation + 1, bool(handed_over))

    def release(self, session: str, generation: int) -> None:
        self._db.execute(RELEASE_SESSION, (session, generation))

    def append_fenced(self, session: str, body: Body, generation: int, key: str | None, encoded: bytes) -> Entry | None:
        row = self._journal.session_row(session)
        if row.generation != generation:
            raise StaleClaim(f"session {session} is at generation {row.generation}, not {generation}")
        if key is not None and self._db.execute(ENTRY_BY_KEY, (session, key)).fetchone():
            return None
        entry = self._journal.append(session, row, body, key, encoded)
        if isinstance(body, Reply | Compacted) and body.cost and row.payer:
            add_spend(self._db, row.payer, body.cost, entry.at)
        return entry

    def stop_and_fence(self, session: str, reason: str, partial: str) -> Entry | None:
        row = self._journal.session_row(session)
        if not row.has_work:
            return None
        body = Ended("interrupted", row.head, reason, partial)
        return self._journal.append(session, replace(row, generation=row.generation + 1), body, None, encode_body(body))

    def change(self, session: str, name: str, value: str) -> Entry:
        body = Changed(name, value)
        return self._journal.append(session, self._journal.session_row(session), body, None, encode_body(body))

    def record_client_result(self, session: str, result: Result) -> Entry | None:
        key = f"result/{result.call}"
        state = fold(read_entries(self._db, session, 0, 0))
        waits = any(call.id == result.call and call.tool in state.client_tools for call in state.calls)
        if not waits and not self._journal.entry_by_key(session, key):
            raise Refused(f"no call {result.call[:80]!r} is waiting for a result in this session")
        return self._journal.append_once(session, result, key)

    def seed_when_empty(self, session: str, history: Sequence[tuple[Body, bytes]]) -> bool:
        row = self._journal.session_row(session)
        if row.head:
            return False
        for body, encoded in history:
            self._journal.append(session, row, body, None, encoded)
            row = self._journal.session_row(session)
        self.release(session, row.generation)
        return True

    def _count_unseen(self, session: str, row: SessionRow) -> int:
        if row.newest_input <= row.saw:
            return 0
        (count,) = self._db.execute(COUNT_UNSEEN, (session, row.saw)).fetchone()
        return count
