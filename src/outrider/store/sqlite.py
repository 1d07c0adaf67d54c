"""The store of one process, all that is kept of a home, on threads to write, read, and do what takes long."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from outrider.core.approve import Permission, PermissionScope
from outrider.core.errors import Refused, StoreDamaged
from outrider.core.events import Body, Entry, Input, Result
from outrider.core.key_ports import Key, KeySpec, Person
from outrider.core.ports import Claim, SearchHit, Session, TaskEnd
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskSpec, TaskState
from outrider.store import bodies, hooks, read, read_keys, read_tasks
from outrider.store.blobs import FileBlobs
from outrider.store.check import find_problems
from outrider.store.connect import connect_reading
from outrider.store.faults import explain
from outrider.store.hooks import WebhookCount, WebhookDelivery
from outrider.store.lane import DatabaseThread
from outrider.store.rows import encode_spec
from outrider.store.search import SearchIndex
from outrider.store.write import SessionWrites

T = TypeVar("T")


class DatabaseThreads:
    """The threads of an open store, and what each of them works on."""

    def __init__(self, writing: DatabaseThread, reading: DatabaseThread, slow: DatabaseThread) -> None:
        self.writer, self.reader, self.background = writing, reading, slow


class SqliteStore:
    """Implements the ports Store, TaskStore and KeyStore, and `hooks.HookStore`. Made by `open_store`."""

    def __init__(
        self, home: Path, lanes: DatabaseThreads, writes: SessionWrites, reads: sqlite3.Connection, search: SearchIndex
    ) -> None:
        self._home, self._threads = home, lanes
        self._writes, self._reads, self._search = writes, reads, search
        self.blobs = FileBlobs(home / "blobs")
        self.notices: tuple[str, ...] = ()
        """What to tell the person: a damaged store set aside, an upgrade made."""
        self.is_damaged = False
        """Whether something unreadable was met; the next start then looks at everything."""

    async def create(self, person: str, name: str, workspace: str) -> Session:
        return await self._write(partial(self._writes.create_or_get, person, name, workspace))

    async def find(self, person: str, session: str) -> Session | None:
        return await self._read(partial(read.find_session, self._reads, person, session))

    async def look_up(self, person: str, session: str) -> Session | None:
        return await self._read(partial(read.look_up_session, self._reads, person, session))

    async def list(self, person: str, limit: int = 100) -> Sequence[Session]:
        return await self._read(partial(read.list_sessions, self._reads, person, limit))

    async def rename(self, person: str, session: str, name: str) -> Session:
        return await self._write(partial(self._writes.rename, person, session, name))

    async def delete(self, person: str, session: str) -> bool:
        searchable = await self._write(partial(self._writes.delete, person, session))
        if searchable is None:
            return False
        await self._run_on(self._threads.background, partial(self._search.remove_session, session, searchable))
        return True

    async def search(self, person: str, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._run_on(self._threads.background, partial(self._search.find, person, words, limit))

    async def accept(self, session: str, body: Input, key: str | None, queue: int) -> tuple[Entry, bool]:
        return await self._write(partial(self._writes.accept_once, session, body, key, queue, _encode_or_refuse(body)))

    async def claim(self, session: str) -> Claim:
        return await self._write(partial(self._writes.claim, session))

    async def release(self, session: str, generation: int) -> None:
        await self._write(partial(self._writes.release, session, generation))

    async def append(self, session: str, body: Body, generation: int, key: str | None = None) -> Entry | None:
        return await self._write(
            partial(self._writes.append_fenced, session, body, generation, key, _encode_or_refuse(body))
        )

    async def stop(self, session: str, reason: str, partial: str = "") -> Entry | None:
        return await self._write(lambda: self._writes.stop_and_fence(session, reason, partial))

    async def change(self, session: str, name: str, value: str) -> Entry:
        return await self._write(partial(self._writes.change, session, name, value))

    async def record_client_result(self, session: str, result: Result) -> Entry | None:
        return await self._write(partial(self._writes.record_client_result, session, result))

    async def seed(self, session: str, bodies: Sequence[Body]) -> bool:
        return await self._write(
            partial(self._writes.seed_when_empty, session, [(b, _encode_or_refuse(b)) for b in bodies])
        )

    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._read(partial(read.read_entries, self._reads, session, after, limit))

    async def sessions_with_work(self) -> Sequence[str]:
        return await self._read(partial(read.sessions_with_work, self._reads))

    async def create_task(self, session: str, wish: TaskSpec, most: int) -> tuple[Task, bool]:
        return await self._write(lambda: self._writes.tasks.create_once(session, wish, most, encode_spec(wish)))

    async def mark_task_started(self, task: str, mark: ProcessIdentity | None, child: str = "") -> Task:
        return await self._write(partial(self._writes.tasks.mark_started, task, mark, child))

    async def detach_task(self, task: str, notify: Notify) -> Task:
        return await self._write(partial(self._writes.tasks.detach, task, notify))

    async def end_task_and_notify(self, task: str, end: TaskEnd, notice: str) -> Task:
        return await self._write(partial(self._writes.tasks.end_task_and_notify, task, end, notice))

    async def update_task_and_notify(self, task: str, state: TaskState, notice: str, key: str) -> Task:
        return await self._write(partial(self._writes.tasks.update_and_notify, task, state, notice, key))

    async def find_task(self, person: str, task: str) -> Task | None:
        return await self._read(partial(read_tasks.find_task, self._reads, person, task))

    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]:
        return await self._read(
            partial(read_tasks.list_tasks, self._reads, person, session, limit, open_only=open_only)
        )

    async def open_tasks(self) -> Sequence[Task]:
        return await self._read(partial(read_tasks.list_open_tasks, self._reads))

    async def task_of_child(self, child: str) -> Task | None:
        return await self._read(partial(read_tasks.find_task_of_child, self._reads, child))

    async def answer(self, session: str, ask: str, answer: str, person: str) -> Entry | None:
        return await self._write(partial(self._writes.tasks.answer_once, session, ask, answer, person))

    async def add_permission(self, person: str, scope: PermissionScope, place: str, need: str) -> Permission:
        return await self._write(partial(self._writes.tasks.add_permission_once, person, scope, place, need))

    async def list_permissions(self, person: str) -> Sequence[Permission]:
        return await self._read(partial(read_tasks.list_permissions, self._reads, person))

    async def revoke_permission(self, person: str, grant: str) -> bool:
        return await self._write(partial(self._writes.tasks.revoke_permission, person, grant))

    async def add_webhook(self, session: str, seq: int) -> WebhookDelivery:
        return await self._write(partial(self._writes.webhooks.add_once, session, seq))

    async def pending_webhooks(self) -> Sequence[WebhookDelivery]:
        return await self._read(partial(hooks.list_pending_webhooks, self._reads))

    async def update_webhook(self, hook: WebhookDelivery) -> None:
        await self._write(partial(self._writes.webhooks.update, hook))

    async def count_webhooks(self) -> WebhookCount:
        return await self._read(partial(hooks.webhook_counts, self._reads))

    async def create_key(self, id: str, wish: KeySpec, digest: bytes) -> Key:
        return await self._write(partial(self._writes.keys.create, id, wish, digest))

    async def find_key(self, id: str) -> Key | None:
        return await self._read(partial(read_keys.find_key, self._reads, id))

    async def list_keys(self) -> Sequence[Key]:
        return await self._read(partial(read_keys.list_keys, self._reads))

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._read(partial(read_keys.spent_since, self._reads, id, since))

    async def people(self) -> Sequence[Person]:
        return await self._read(partial(read_keys.list_people, self._reads))

    async def revoke_key(self, id: str) -> bool:
        return await self._write(partial(self._writes.keys.revoke, id))

    async def touch_key(self, id: str) -> None:
        await self._write(partial(self._writes.keys.touch, id))

    async def check(self) -> Sequence[str]:
        """Look through everything that is stored; one line for each problem."""
        return await self._run_on(self._threads.background, self._find_problems)

    def _find_problems(self) -> Sequence[str]:
        db = connect_reading(self._home / "store.db")
        try:
            found = find_problems(db)
        finally:
            db.close()
        self.is_damaged = self.is_damaged or bool(found)
        return [*found, *self.blobs.problems()]

    async def _write(self, act: Callable[[], T]) -> T:
        return await self._run_on(self._threads.writer, act)

    async def _read(self, act: Callable[[], T]) -> T:
        return await self._run_on(self._threads.reader, act)

    async def _run_on(self, lane: DatabaseThread, act: Callable[[], T]) -> T:
        try:
            return await lane.run(act)
        except UnicodeEncodeError as error:
            raise _not_text_error(error) from error
        except StoreDamaged:
            self.is_damaged = True
            raise
        except (sqlite3.Error, OSError) as error:
            told = explain(error, self._home)
            self.is_damaged = self.is_damaged or isinstance(told, StoreDamaged)
            raise told from error


def _encode_or_refuse(body: Body) -> bytes:
    try:
        return bodies.encode_body(body)
    except UnicodeEncodeError as error:
        raise _not_text_error(error) from error


def _not_text_error(error: UnicodeEncodeError) -> Refused:
    return Refused(f"{error.object[:80]!r} holds a character that is none ({error.reason}); leave it out")
