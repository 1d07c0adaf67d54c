"""Finds words in sessions. The index reads the journals when someone searches; it can be thrown away at any time.

Text as the search index reads it, and a person's words as a query that is always valid.
"""

import re
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.core.events import Body, Input, Reply
from outrider.core.store_port import SearchHit
from outrider.store import journal
from outrider.store.database import connect_search, remove_database
from outrider.store.errors import is_environmental

# The search index: texts without their content, where each stands in the journals, and how far each journal was read.
SEARCH_SCHEMA = """
CREATE VIRTUAL TABLE texts USING fts5(body, content='', tokenize='unicode61 remove_diacritics 2');
CREATE TABLE places (n INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE UNIQUE INDEX places_by_session ON places (session, seq);
CREATE TABLE cursors (session TEXT NOT NULL PRIMARY KEY, upto INTEGER NOT NULL) WITHOUT ROWID;
"""


# This person's sessions with entries the index has not read.
UNINDEXED_SESSIONS = """
SELECT s.id, coalesce(c.upto, 0) FROM store.sessions s LEFT JOIN cursors c ON c.session = s.id
WHERE s.person = ?1 AND s.head > coalesce(c.upto, 0)
"""


# Whether the index has read further than a journal goes: then it belongs to another past.
INDEX_IS_AHEAD = "SELECT 1 FROM cursors c JOIN store.sessions s ON s.id = c.session WHERE c.upto > s.head LIMIT 1"


# The entries of a session the index has not read.
UNINDEXED_ENTRIES = """
SELECT seq, at, kind, body FROM store.entries WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3
"""


# Put one text into the index, and remember how far its journal was read.
INSERT_INDEXED_ENTRY = "INSERT INTO places (session, seq, at) VALUES (?1, ?2, ?3)"
INSERT_TEXT = "INSERT INTO texts (rowid, body) VALUES (?1, ?2)"
SET_CURSOR = "INSERT INTO cursors (session, upto) VALUES (?1, ?2) ON CONFLICT (session) DO UPDATE SET upto = ?2"


# Take one session out of the index; a text without content is removed by repeating it.
INDEXED_ENTRY = "SELECT n FROM places WHERE session = ?1 AND seq = ?2"
DELETE_TEXT = "INSERT INTO texts (texts, rowid, body) VALUES ('delete', ?1, ?2)"
DELETE_INDEXED_ENTRIES = "DELETE FROM places WHERE session = ?1"
DELETE_CURSOR = "DELETE FROM cursors WHERE session = ?1"


# Where this person's sessions hold the words, the latest first.
SEARCH_MATCHES = """
SELECT s.id, s.name, e.seq, e.at, e.body
FROM texts
JOIN places p ON p.n = texts.rowid
JOIN store.sessions s ON s.id = p.session AND s.person = ?2
JOIN store.entries e ON e.session = p.session AND e.seq = p.seq AND e.at = p.at
WHERE texts MATCH ?1
ORDER BY e.at DESC, e.seq DESC
LIMIT ?3
"""
_EXCERPT_LENGTH = 160
_EXCERPT_LEAD = 50


# Scripts written without spaces between words: kana, Han and its extensions, Hangul, and their half-width forms.
_UNSPACED = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff])"
)


def split_unspaced(text: str) -> str:
    """Each character of an unspaced script as a word of its own."""
    return _UNSPACED.sub(r" \1 ", text)


def match_expression(words: str) -> str:
    """All of these words, each as it stands or as a beginning; empty when there is nothing to look for.

    A word of an unspaced script becomes a phrase of its characters.
    """
    terms = (split_unspaced(term).replace('"', " ").replace("\0", " ").strip() for term in _valid_utf8(words).split())
    return " AND ".join(f'"{term}" *' for term in terms if any(map(str.isalnum, term)))


def excerpt(text: str, words: str) -> str:
    """A line of the text around the first of the words that is in it."""
    flat = " ".join(text.split())
    places = [flat.lower().find(word.strip('"').lower()) for word in words.split()]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, min(first - _EXCERPT_LEAD, len(flat) - _EXCERPT_LENGTH))
    return flat[start : start + _EXCERPT_LENGTH]


def _valid_utf8(words: str) -> str:
    return words.encode("utf-8", "replace").decode("utf-8")


_BATCH = 1000


class SearchIndex:
    """The index of one home. Used from one thread."""

    def __init__(self, home: Path) -> None:
        self._path, self._store = home / "search.db", home / "store.db"
        self._db: sqlite3.Connection | None = None

    def find(self, person: str, words: str, limit: int) -> Sequence[SearchHit]:
        wanted = match_expression(words)
        if not wanted or limit <= 0:
            return []
        try:
            return self._find(person, words, wanted, limit)
        except sqlite3.Error as error:
            if is_environmental(error):
                raise
        # The index is damaged or of an older make: a new one costs time only.
        self._delete_index()
        return self._find(person, words, wanted, limit)

    def remove_session(self, session: str, searchable: Sequence[tuple[int, bytes]]) -> None:
        """Take a deleted session out of the index, given what it held."""
        try:
            self._remove_session(session, searchable)
        except (sqlite3.Error, ValueError):
            # The session is deleted, whatever becomes of the index: no word of it may stay behind.
            self._delete_index()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _find(self, person: str, words: str, wanted: str, limit: int) -> Sequence[SearchHit]:
        db = self._open()
        if db.execute(INDEX_IS_AHEAD).fetchone():
            self._delete_index()
            db = self._open()
        for session, upto in db.execute(UNINDEXED_SESSIONS, (person,)).fetchall():
            _index_new_entries(db, session, upto)
        rows = db.execute(SEARCH_MATCHES, (wanted, person, limit)).fetchall()
        return [
            SearchHit(session, name, seq, at, excerpt(_text_or_empty(body), words))
            for session, name, seq, at, body in rows
        ]

    def _remove_session(self, session: str, searchable: Sequence[tuple[int, bytes]]) -> None:
        if self._db is None and not self._path.exists():
            return
        db = self._open()
        with _transaction(db):
            for seq, body in searchable:
                if place := db.execute(INDEXED_ENTRY, (session, seq)).fetchone():
                    db.execute(DELETE_TEXT, (place[0], split_unspaced(_searchable_text(journal.decode_body(body)))))
            db.execute(DELETE_INDEXED_ENTRIES, (session,))
            db.execute(DELETE_CURSOR, (session,))

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect_search(self._path, self._store)
            if not self._db.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchone():
                self._db.executescript(f"BEGIN;{SEARCH_SCHEMA}COMMIT;")
        return self._db

    def _delete_index(self) -> None:
        self.close()
        remove_database(self._path)


def _index_new_entries(db: sqlite3.Connection, session: str, upto: int) -> None:
    while rows := db.execute(UNINDEXED_ENTRIES, (session, upto, _BATCH)).fetchall():
        with _transaction(db):
            for seq, at, kind, body in rows:
                upto = seq
                if text := _text_or_empty(body) if kind in ("input", "reply") else "":
                    place = db.execute(INSERT_INDEXED_ENTRY, (session, seq, at)).lastrowid
                    db.execute(INSERT_TEXT, (place, split_unspaced(text)))
            db.execute(SET_CURSOR, (session, upto))


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _text_or_empty(body: bytes) -> str:
    """A damaged entry has no text here; whoever reads its session is told."""
    try:
        return _searchable_text(journal.decode_body(body))
    except ValueError:
        return ""


def _searchable_text(body: Body) -> str:
    return body.text if isinstance(body, Input | Reply) else ""
