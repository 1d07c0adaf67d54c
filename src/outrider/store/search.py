"""Full-text search in sessions. The index reads new entries when a person searches, and can be deleted at any time."""

import re
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.core.events import Body, Input, Reply
from outrider.core.store_port import SearchHit
from outrider.core.text import one_line
from outrider.store import journal
from outrider.store.database import connect_search, remove_database
from outrider.store.errors import is_environmental

# The search index: texts without their content, the entry of each, and how far each journal was read.
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

# Whether the index has read further than a journal goes: then it belongs to another store.
INDEX_IS_AHEAD = "SELECT 1 FROM cursors c JOIN store.sessions s ON s.id = c.session WHERE c.upto > s.head LIMIT 1"

# The entries of a session the index has not read.
UNINDEXED_ENTRIES = """
SELECT seq, at, kind, body FROM store.entries WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3
"""

# Put one text into the index, and remember how far its journal was read.
INSERT_INDEXED_ENTRY = "INSERT INTO places (session, seq, at) VALUES (?1, ?2, ?3)"
INSERT_TEXT = "INSERT INTO texts (rowid, body) VALUES (?1, ?2)"
SET_CURSOR = "INSERT INTO cursors (session, upto) VALUES (?1, ?2) ON CONFLICT (session) DO UPDATE SET upto = ?2"

# Remove one session from the index; a text without content is removed by repeating it.
INDEXED_ENTRY = "SELECT n FROM places WHERE session = ?1 AND seq = ?2"
DELETE_TEXT = "INSERT INTO texts (texts, rowid, body) VALUES ('delete', ?1, ?2)"
DELETE_INDEXED_ENTRIES = "DELETE FROM places WHERE session = ?1"
DELETE_CURSOR = "DELETE FROM cursors WHERE session = ?1"

# The entries of this person's sessions that match, the latest first.
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
    """Separate the characters of unspaced scripts, so that each is a word."""
    return _UNSPACED.sub(r" \1 ", text)


def match_expression(words: str) -> str:
    """A valid FTS5 query for all of these words or words that begin with them; empty if there is nothing to search for.

    A word of an unspaced script becomes a phrase of its characters.
    """
    text = words.encode("utf-8", "replace").decode("utf-8")
    terms = (split_unspaced(term).replace('"', " ").replace("\0", " ").strip() for term in text.split())
    return " AND ".join(f'"{term}" *' for term in terms if any(map(str.isalnum, term)))


def excerpt(text: str, words: str) -> str:
    """One line of the text around the first word that it contains."""
    flat = one_line(text)
    positions = [flat.lower().find(word.strip('"').lower()) for word in words.split()]
    first = min((position for position in positions if position >= 0), default=0)
    start = max(0, min(first - _EXCERPT_LEAD, len(flat) - _EXCERPT_LENGTH))
    return flat[start : start + _EXCERPT_LENGTH]


_BATCH = 1000


class SearchIndex:
    """The search index of one home. Used from one thread."""

    def __init__(self, home: Path) -> None:
        self._path, self._store = home / "search.db", home / "store.db"
        self._db: sqlite3.Connection | None = None

    def find(self, person: str, words: str, limit: int) -> Sequence[SearchHit]:
        query = match_expression(words)
        if not query or limit <= 0:
            return []
        try:
            return self._find(person, words, query, limit)
        except sqlite3.Error as error:
            if is_environmental(error):
                raise
        # The index is damaged or has an older format: a new one costs only time.
        self._delete_index()
        return self._find(person, words, query, limit)

    def remove_session(self, session: str, searchable: Sequence[tuple[int, bytes]]) -> None:
        """Remove a deleted session, whose searchable entries are passed."""
        try:
            self._remove_session(session, searchable)
        except (sqlite3.Error, ValueError):
            # No word of a deleted session may stay behind.
            self._delete_index()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _find(self, person: str, words: str, query: str, limit: int) -> Sequence[SearchHit]:
        db = self._open()
        if db.execute(INDEX_IS_AHEAD).fetchone():
            self._delete_index()
            db = self._open()
        for session, upto in db.execute(UNINDEXED_SESSIONS, (person,)).fetchall():
            _index_new_entries(db, session, upto)
        rows = db.execute(SEARCH_MATCHES, (query, person, limit)).fetchall()
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
                if row := db.execute(INDEXED_ENTRY, (session, seq)).fetchone():
                    db.execute(DELETE_TEXT, (row[0], split_unspaced(_searchable_text(journal.decode_body(body)))))
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
                    number = db.execute(INSERT_INDEXED_ENTRY, (session, seq, at)).lastrowid
                    db.execute(INSERT_TEXT, (number, split_unspaced(text)))
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
    """A damaged entry has no text here; reading its session reports it."""
    try:
        return _searchable_text(journal.decode_body(body))
    except ValueError:
        return ""


def _searchable_text(body: Body) -> str:
    return body.text if isinstance(body, Input | Reply) else ""
