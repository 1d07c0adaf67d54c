"""Finds words in sessions. The index reads the journals when someone searches; it can be thrown away at any time."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.core.events import Body, Input, Reply
from outrider.core.ports import SearchHit
from outrider.store import bodies, sql
from outrider.store.connect import connect_search, remove_database
from outrider.store.faults import is_environmental
from outrider.store.words import excerpt, match_expression, split_unspaced

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
        if db.execute(sql.INDEX_IS_AHEAD).fetchone():
            self._delete_index()
            db = self._open()
        for session, upto in db.execute(sql.UNINDEXED_SESSIONS, (person,)).fetchall():
            _index_new_entries(db, session, upto)
        rows = db.execute(sql.SEARCH_MATCHES, (wanted, person, limit)).fetchall()
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
                if place := db.execute(sql.INDEXED_ENTRY, (session, seq)).fetchone():
                    db.execute(sql.DELETE_TEXT, (place[0], split_unspaced(_searchable_text(bodies.decode_body(body)))))
            db.execute(sql.DELETE_INDEXED_ENTRIES, (session,))
            db.execute(sql.DELETE_CURSOR, (session,))

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect_search(self._path, self._store)
            if not self._db.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchone():
                self._db.executescript(f"BEGIN;{sql.SEARCH_SCHEMA}COMMIT;")
        return self._db

    def _delete_index(self) -> None:
        self.close()
        remove_database(self._path)


def _index_new_entries(db: sqlite3.Connection, session: str, upto: int) -> None:
    while rows := db.execute(sql.UNINDEXED_ENTRIES, (session, upto, _BATCH)).fetchall():
        with _transaction(db):
            for seq, at, kind, body in rows:
                upto = seq
                if text := _text_or_empty(body) if kind in ("input", "reply") else "":
                    place = db.execute(sql.INSERT_INDEXED_ENTRY, (session, seq, at)).lastrowid
                    db.execute(sql.INSERT_TEXT, (place, split_unspaced(text)))
            db.execute(sql.SET_CURSOR, (session, upto))


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
        return _searchable_text(bodies.decode_body(body))
    except ValueError:
        return ""


def _searchable_text(body: Body) -> str:
    return body.text if isinstance(body, Input | Reply) else ""
