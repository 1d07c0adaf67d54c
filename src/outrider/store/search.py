"""Finds words in sessions. The index reads the journals when someone searches; it can be thrown away at any time."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.core.events import Body, Input, Reply
from outrider.core.ports import SearchHit
from outrider.store import bodies, sql
from outrider.store.connect import connect_search, remove
from outrider.store.faults import is_outside
from outrider.store.words import excerpt, query, spaced

_AT_ONCE = 1000


class Search:
    """The index of one home. Used from one thread."""

    def __init__(self, home: Path) -> None:
        self._path, self._store = home / "search.db", home / "store.db"
        self._db: sqlite3.Connection | None = None

    def find(self, person: str, words: str, limit: int) -> Sequence[SearchHit]:
        wanted = query(words)
        if not wanted or limit <= 0:
            return []
        try:
            return self._find(person, words, wanted, limit)
        except sqlite3.Error as error:
            if is_outside(error):
                raise
        # The index is damaged or of an older make: a new one costs time only.
        self._drop()
        return self._find(person, words, wanted, limit)

    def forget(self, session: str, searchable: Sequence[tuple[int, bytes]]) -> None:
        """Take a deleted session out of the index, given what it held."""
        try:
            self._forget(session, searchable)
        except (sqlite3.Error, ValueError):
            # The session is deleted, whatever becomes of the index: no word of it may stay behind.
            self._drop()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _find(self, person: str, words: str, wanted: str, limit: int) -> Sequence[SearchHit]:
        db = self._open()
        if db.execute(sql.AHEAD).fetchone():
            self._drop()
            db = self._open()
        for session, upto in db.execute(sql.UNREAD, (person,)).fetchall():
            _catch_up(db, session, upto)
        rows = db.execute(sql.MATCHES, (wanted, person, limit)).fetchall()
        return [
            SearchHit(session, name, seq, at, excerpt(_readable(body), words)) for session, name, seq, at, body in rows
        ]

    def _forget(self, session: str, searchable: Sequence[tuple[int, bytes]]) -> None:
        if self._db is None and not self._path.exists():
            return
        db = self._open()
        with _transaction(db):
            for seq, body in searchable:
                if place := db.execute(sql.PLACE_OF, (session, seq)).fetchone():
                    db.execute(sql.DELETE_TEXT, (place[0], spaced(_text(bodies.decode(body)))))
            db.execute(sql.DELETE_PLACES, (session,))
            db.execute(sql.DELETE_CURSOR, (session,))

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect_search(self._path, self._store)
            if not self._db.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchone():
                self._db.executescript(f"BEGIN;{sql.SEARCH_SCHEMA}COMMIT;")
        return self._db

    def _drop(self) -> None:
        self.close()
        remove(self._path)


def _catch_up(db: sqlite3.Connection, session: str, upto: int) -> None:
    while rows := db.execute(sql.UNREAD_ENTRIES, (session, upto, _AT_ONCE)).fetchall():
        with _transaction(db):
            for seq, at, kind, body in rows:
                upto = seq
                if text := _readable(body) if kind in ("input", "reply") else "":
                    place = db.execute(sql.INSERT_PLACE, (session, seq, at)).lastrowid
                    db.execute(sql.INSERT_TEXT, (place, spaced(text)))
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


def _readable(body: bytes) -> str:
    """A damaged entry has no text here; whoever reads its session is told."""
    try:
        return _text(bodies.decode(body))
    except ValueError:
        return ""


def _text(body: Body) -> str:
    return body.text if isinstance(body, Input | Reply) else ""
