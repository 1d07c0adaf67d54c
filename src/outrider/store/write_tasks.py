"""The store's writes of tasks, answers and grants, each one function that runs inside the writer's transaction."""

import secrets
import sqlite3

from msgspec.structs import replace

from outrider.core.approve import Permission, PermissionScope
from outrider.core.errors import Refused
from outrider.core.events import Answered, Asked, Entry, Input
from outrider.core.ports import TaskEnd
from outrider.core.tasks import OPEN_STATES, Notify, ProcessIdentity, Task, TaskSpec, TaskState, should_notify
from outrider.store import bodies, sql_tasks
from outrider.store.journal import Clock, Journal, no_such_session
from outrider.store.rows import permission_of, task_of, task_update_values

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_ID_LENGTH = 6


class TaskWrites:
    """All that may change tasks and grants, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, journal: Journal, clock: Clock) -> None:
        self._db, self._journal, self._clock = db, journal, clock

    def create_once(self, session: str, wish: TaskSpec, most: int, encoded: bytes) -> tuple[Task, bool]:
        if found := self._db.execute(sql_tasks.TASK_BY_CALL, (session, wish.call)).fetchone():
            return task_of(found), False
        owner = self._db.execute(sql_tasks.SESSION_OF_TASK, (session,)).fetchone()
        if owner is None:
            raise no_such_session(session)
        (running,) = self._db.execute(sql_tasks.COUNT_OPEN_TASKS, (session,)).fetchone()
        if running >= most:
            raise Refused(
                f"{running} tasks of this session have not ended; "
                "wait for one of them, or kill one, before you begin another"
            )
        person, workspace = owner
        task = Task(
            id=self._free_id("t", sql_tasks.TASK_BY_ID),
            session=session,
            person=person,
            workspace=workspace,
            spec=wish,
            state="queued",
            created=self._clock() // 1000,
        )
        (number,) = self._db.execute(sql_tasks.NEXT_TASK_NUMBER, (person,)).fetchone()
        fixed = (task.id, session, person, number, wish.kind, wish.call, encoded, task.created)
        self._db.execute(sql_tasks.INSERT_TASK, (*fixed, *task_update_values(task)[1:]))
        return task, True

    def mark_started(self, task: str, mark: ProcessIdentity | None, child: str) -> Task:
        found = self._get_task(task)
        if not found.is_open:
            return found
        return self._save(replace(found, state="running", mark=mark or found.process, child=child or found.child))

    def detach(self, task: str, notify: Notify) -> Task:
        found = self._get_task(task)
        if not found.is_open:
            return found
        return self._save(replace(found, wish=replace(found.spec, waited=False, notify=notify)))

    def end_task_and_notify(self, task: str, end: TaskEnd, notice: str) -> Task:
        if end.state in OPEN_STATES:
            raise ValueError(f"no task ends {end.state}")
        found = self._get_task(task)
        if not found.is_open:
            return found
        is_told = found.spec.is_awaited
        if should_notify(found, end.state):
            self._notify(found, notice, f"task/{found.id}")
            is_told = True
        ended = replace(found, state=end.state, exit_code=end.exit_code, why=end.why, ended=end.ended, is_told=is_told)
        return self._save(ended)

    def update_and_notify(self, task: str, state: TaskState, notice: str, key: str) -> Task:
        """Without a notice only the state changes."""
        if state not in OPEN_STATES:
            raise ValueError(f"a task that is {state} has ended")
        found = self._get_task(task)
        if not found.is_open:
            return found
        is_new = bool(notice) and self._notify(found, notice, key)
        return self._save(replace(found, state=state, notices=found.notices + is_new))

    def answer_once(self, session: str, ask: str, answer: str, person: str) -> Entry | None:
        standing = self._journal.session_row(session)
        rows = self._db.execute(sql_tasks.QUESTIONS_AND_ANSWERS, (session,)).fetchall()
        known = [body for row in rows if _is_about_question(body := bodies.parse_entry(session, *row).body, ask)]
        if not any(isinstance(body, Asked) for body in known):
            raise Refused(f"nothing of the name {ask[:80]!r} was asked in this session")
        if any(isinstance(body, Answered) for body in known):
            return None
        body = Answered(ask, answer, person)
        return self._journal.append(session, standing, body, f"answer/{ask}", bodies.encode_body(body))

    def add_permission_once(self, person: str, scope: PermissionScope, place: str, need: str) -> Permission:
        if scope == "once":
            raise Refused("a yes to one call is an answer; only what reaches further is kept as a grant")
        if found := self._db.execute(sql_tasks.SAME_PERMISSION, (person, scope, place, need)).fetchone():
            return permission_of(found)
        id, created = self._free_id("g", sql_tasks.PERMISSION_BY_ID), self._clock() // 1000
        self._db.execute(sql_tasks.INSERT_PERMISSION, (id, person, scope, place, need, created))
        return Permission(id, person, scope, place, need, created)

    def revoke_permission(self, person: str, grant: str) -> bool:
        return self._db.execute(sql_tasks.DELETE_PERMISSION, (person, grant)).rowcount > 0

    def delete_with_session(self, session: str) -> None:
        self._db.execute(sql_tasks.DELETE_TASKS, (session,))
        self._db.execute(sql_tasks.DELETE_SESSION_PERMISSIONS, (session,))

    def _get_task(self, task: str) -> Task:
        found = self._db.execute(sql_tasks.TASK_BY_ID, (task,)).fetchone()
        if found is None:
            raise Refused(f"this task does not exist (any more): {task}")
        return task_of(found)

    def _save(self, task: Task) -> Task:
        self._db.execute(sql_tasks.UPDATE_TASK, task_update_values(task))
        return task

    def _notify(self, task: Task, notice: str, key: str) -> bool:
        """Whether this is new to the session."""
        body = Input(notice, "task", person=task.person, address=task.spec.address)
        return self._journal.append_once(task.session, body, key) is not None

    def _free_id(self, kind: str, statement: str) -> str:
        while True:
            id = f"{kind}-" + "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
            if not self._db.execute(statement, (id,)).fetchone():
                return id


def _is_about_question(body: object, ask: str) -> bool:
    return isinstance(body, Asked | Answered) and body.ask == ask
