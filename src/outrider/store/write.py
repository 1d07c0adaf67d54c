"""The store's writes, each one function that runs inside the writer's transaction. A raise undoes what it did."""

import secrets
import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from outrider.core.errors import NameTaken, QueueFull, Refused, StaleClaim
from outrider.core.events import Body, Changed, Compacted, Ended, Entry, Input, Reply, Result
from outrider.core.plan import fold
from outrider.core.ports import Claim, Session
from outrider.store import bodies, sql
from outrider.store.hooks import WebhookWrites
from outrider.store.journal import Clock, Journal, no_such_session
from outrider.store.read import read_entries, session_of
from outrider.store.standing import SessionRow
from outrider.store.write_keys import KeyWrites
from outrider.store.write_tasks import TaskWrites


class SessionWrites:
    """All that may change the store, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self._last_numbers: dict[
            str, int
        ] = {}  # of each person's last session without a name: counting them takes longer
        self._journal = Journal(db, clock)
        self.tasks = TaskWrites(db, self._journal, clock)
        self.keys = KeyWrites(db, clock)
        self.webhooks = WebhookWrites(db, clock)

    def create_or_get(self, person: str, name: str, workspace: str) -> Session:
        name = name or self._free_name(person)
        if found := self._db.execute(sql.SESSION_BY_NAME, (person, name)).fetchone():
            return session_of(found)
        id, now = secrets.token_hex(16), self._clock()
        self._db.execute(sql.INSERT_SESSION, (id, person, name, workspace, now // 1000, now, 0))
        return session_of(self._db.execute(sql.SESSION_BY_ID, (person, id)).fetchone())

    def _free_name(self, person: str) -> str:
        if (number := self._last_numbers.get(person)) is None:
            (number,) = self._db.execute(sql.COUNT_SESSIONS_OF, (person,)).fetchone()
        while True:
            number += 1
            name = f"session-{number}"
            if not self._db.execute(sql.SESSION_BY_NAME, (person, name)).fetchone():
                self._last_numbers[person] = number
                return name

    def rename(self, person: str, session: str, name: str) -> Session:
        for statement in (sql.SESSION_BY_NAME, sql.SESSION_BY_ID):
            found = self._db.execute(statement, (person, name)).fetchone()
            if found and session_of(found).id != session:
                raise NameTaken(f"another session is called {name!r}; choose another name")
        if not self._db.execute(sql.RENAME_SESSION, (person, session, name)).rowcount:
            raise no_such_session(session)
        return session_of(self._db.execute(sql.SESSION_BY_ID, (person, session)).fetchone())

    def delete(self, person: str, session: str) -> Sequence[tuple[int, bytes]] | None:
        """What was searchable of it, or None when this person has no such session."""
        if not self._db.execute(sql.SESSION_BY_ID, (person, session)).fetchone():
            return None
        searchable = self._db.execute(sql.SEARCHABLE_ENTRIES, (session,)).fetchall()
        self.tasks.delete_with_session(session)
        self.webhooks.delete_with_session(session)
        self._db.execute(sql.DELETE_ENTRIES, (session,))
        self._db.execute(sql.DELETE_SESSION, (session, person))
        return searchable

    def accept_once(self, session: str, body: Input, key: str | None, queue: int, encoded: bytes) -> tuple[Entry, bool]:
        standing = self._journal.session_row(session)
        if found := self._journal.entry_by_key(session, key):
            return found, False
        waiting = self._count_unseen(session, standing)
        if waiting >= queue:
            raise QueueFull(
                f"{waiting} messages already wait in this session; "
                "let it work through them, or stop it, before you send more"
            )
        return self._journal.append(session, standing, body, key, encoded), True

    def claim(self, session: str) -> Claim:
        found = self._db.execute(sql.SESSION_AND_OWNER, (session,)).fetchone()
        if found is None:
            raise no_such_session(session)
        *row, generation, handed_over = found
        self._db.execute(sql.SET_OWNER, (session, generation + 1))
        return Claim(session_of(row), generation + 1, bool(handed_over))

    def release(self, session: str, generation: int) -> None:
        self._db.execute(sql.RELEASE_SESSION, (session, generation))

    def append_fenced(self, session: str, body: Body, generation: int, key: str | None, encoded: bytes) -> Entry | None:
        standing = self._journal.session_row(session)
        if standing.generation != generation:
            raise StaleClaim(f"session {session} is at generation {standing.generation}, not {generation}")
        if key is not None and self._db.execute(sql.ENTRY_BY_KEY, (session, key)).fetchone():
            return None
        entry = self._journal.append(session, standing, body, key, encoded)
        if isinstance(body, Reply | Compacted) and body.cost and standing.payer:
            self.keys.add_spend(standing.payer, body.cost, entry.at)
        return entry

    def stop_and_fence(self, session: str, reason: str, partial: str) -> Entry | None:
        standing = self._journal.session_row(session)
        if not standing.has_work:
            return None
        body = Ended("interrupted", standing.head, reason, partial)
        return self._journal.append(
            session, replace(standing, generation=standing.generation + 1), body, None, bodies.encode_body(body)
        )

    def change(self, session: str, name: str, value: str) -> Entry:
        body = Changed(name, value)
        return self._journal.append(session, self._journal.session_row(session), body, None, bodies.encode_body(body))

    def record_client_result(self, session: str, result: Result) -> Entry | None:
        key = f"result/{result.call}"
        state = fold(read_entries(self._db, session, 0, 0))
        waits = any(call.id == result.call and call.tool in state.client_tools for call in state.calls)
        if not waits and not self._journal.entry_by_key(session, key):
            raise Refused(f"no call {result.call[:80]!r} waits for a result in this session")
        return self._journal.append_once(session, result, key)

    def seed_when_empty(self, session: str, past: Sequence[tuple[Body, bytes]]) -> bool:
        standing = self._journal.session_row(session)
        if standing.head:
            return False
        for body, encoded in past:
            self._journal.append(session, standing, body, None, encoded)
            standing = self._journal.session_row(session)
        self.release(session, standing.generation)
        return True

    def _count_unseen(self, session: str, standing: SessionRow) -> int:
        if standing.newest_input <= standing.saw:
            return 0
        (count,) = self._db.execute(sql.COUNT_UNSEEN, (session, standing.saw)).fetchone()
        return count
