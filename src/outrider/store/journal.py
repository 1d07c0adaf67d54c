"""Journals of sessions: entries as JSON, and the columns of a session that repeat what its journal says.

An append writes the entry and those columns in one transaction. A new kind of entry needs a new version of the store:
an older Outrider then refuses the store instead of calling it damaged.
"""

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from outrider.core.events import Body, Ended, Entry, Input, Reply, Started
from outrider.core.text import one_line
from outrider.store.database import Clock
from outrider.store.errors import damaged_row, no_such_session

# All that an append depends on.
SESSION_ROW = """
SELECT title, touched, generation, head, saw, newest_input, is_open, waits_since, payer
FROM sessions WHERE id = ?1
"""

# What an append changes.
UPDATE_SESSION_ROW = """
UPDATE sessions SET title = ?2, touched = ?3, generation = ?4, head = ?5, saw = ?6, newest_input = ?7, is_open = ?8,
                    waits_since = ?9, payer = ?10
WHERE id = ?1
"""

# One more entry.
INSERT_ENTRY = "INSERT INTO entries (session, seq, at, kind, key, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"

# The entry that was written under this key.
ENTRY_BY_KEY = "SELECT seq, at, body FROM entries WHERE session = ?1 AND key = ?2"

# The journal after an entry; a negative limit means all of it.
ENTRIES_AFTER = "SELECT seq, at, body FROM entries WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"

# How many messages of people in a session no reply has seen yet. A notice names its source.
COUNT_UNSEEN = """
SELECT count(*) FROM entries WHERE session = ?1 AND seq > ?2 AND kind = 'input'
    AND coalesce(json_extract(CAST(body AS TEXT), '$.source'), 'person') = 'person'
"""

# Since when the oldest unseen input has waited.
OLDEST_UNSEEN = "SELECT min(at) * 1000 FROM entries WHERE session = ?1 AND seq > ?2 AND kind = 'input'"

_body_encoder = msgspec.json.Encoder()
_body_decoder = msgspec.json.Decoder(Body)


def encode_body(body: Body) -> bytes:
    """Raises UnicodeEncodeError for text that cannot be stored, such as half of a surrogate pair."""
    return _body_encoder.encode(body)


def decode_body(body: bytes) -> Body:
    """Raises ValueError if this is not a body."""
    return _body_decoder.decode(body)


def parse_entry(session: str, seq: int, at: int, body: bytes) -> Entry:
    """Raises StoreDamaged if the body cannot be read."""
    try:
        return Entry(seq, at, decode_body(body))
    except ValueError as error:
        raise damaged_row(f"entry {seq} of session {session}", error) from error


def entry_kind(body: Body) -> str:
    """Its tag, as in the database."""
    return str(body.__struct_config__.tag)


MAX_TITLE = 80


class SessionRow(Struct, frozen=True):
    """The columns of a session that an append reads and changes, in the order of `SESSION_ROW`."""

    title: str = ""
    touched: int = 0
    """Microseconds since 1970; greater with every entry, even if the clock jumps back."""
    generation: int = 0
    head: int = 0
    saw: int = 0
    newest_input: int = 0
    is_open: int = 0
    waits_since: int | None = None
    """Microseconds; None while there is nothing to do."""
    payer: str = ""
    """The key that pays for the work: that of the person's newest input."""

    @property
    def has_work(self) -> bool:
        return bool(self.is_open) or self.newest_input > self.saw


def apply_entry(before: SessionRow, body: Body, now: int) -> SessionRow:
    """The columns after one more entry, written at `now` (microseconds)."""
    head, touched = before.head + 1, max(now, before.touched + 1)
    after = replace(before, head=head, touched=touched)
    match body:
        case Input(text=text, source=source):
            payer = body.payer if source == "person" else before.payer
            after = replace(after, newest_input=head, title=before.title or make_title(text), payer=payer)
        case Started():
            after = replace(after, is_open=1)
        case Reply(saw=saw):
            after = replace(after, saw=max(before.saw, saw))
        case Ended(saw=saw):
            after = replace(after, saw=max(before.saw, saw), is_open=0)
        case _:
            pass
    if not after.has_work:
        return replace(after, waits_since=None)
    return after if after.waits_since is not None else replace(after, waits_since=touched)


def make_title(text: str) -> str:
    """The beginning of a text, in one line."""
    return one_line(text[: 4 * MAX_TITLE])[:MAX_TITLE]


class Journal:
    """The journals of all sessions, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def session_row(self, session: str) -> SessionRow:
        """Raises Refused if there is no such session."""
        row = self._db.execute(SESSION_ROW, (session,)).fetchone()
        if row is None:
            raise no_such_session(session)
        return SessionRow(*row)

    def entry_by_key(self, session: str, key: str | None) -> Entry | None:
        """The entry that was written under this key."""
        row = None if key is None else self._db.execute(ENTRY_BY_KEY, (session, key)).fetchone()
        return parse_entry(session, *row) if row else None

    def append(self, session: str, before: SessionRow, body: Body, key: str | None, encoded: bytes) -> Entry:
        after = apply_entry(before, body, self._clock())
        at = after.touched // 1000
        self._db.execute(INSERT_ENTRY, (session, after.head, at, entry_kind(body), key, encoded))
        if isinstance(body, Ended) and after.has_work:
            (since,) = self._db.execute(OLDEST_UNSEEN, (session, after.saw)).fetchone()
            after = replace(after, waits_since=since)
        self._db.execute(UPDATE_SESSION_ROW, (session, *astuple(after)))
        return Entry(after.head, at, body)

    def append_once(self, session: str, body: Body, key: str) -> Entry | None:
        """Append at any generation and queue length; None if an entry has this key."""
        if self.entry_by_key(session, key):
            return None
        return self.append(session, self.session_row(session), body, key, encode_body(body))


def read_entries(db: sqlite3.Connection, session: str, after: int, limit: int) -> Sequence[Entry]:
    rows = db.execute(ENTRIES_AFTER, (session, after, limit if limit > 0 else -1)).fetchall()
    return [parse_entry(session, *row) for row in rows]
