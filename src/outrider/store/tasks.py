"""Tasks, answers and permissions: their statements, rows, reads and writes.

A row is checked whenever it is read. A read is a function on a connection that cannot write; a write is a method that
runs inside the writer's transaction. The end of a task and the notice about it are one transaction.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import Permission, PermissionScope
from outrider.core.errors import Refused
from outrider.core.events import Answered, Asked, Entry, Input
from outrider.core.store_port import TaskEnd
from outrider.core.tasks import (
    OPEN_STATES,
    KeyedNotice,
    Notify,
    ProcessIdentity,
    Task,
    TaskKind,
    TaskNotice,
    TaskSpec,
    TaskState,
    render_notice,
    shortened_notice,
    should_notify,
    should_report,
)
from outrider.store.database import MIN_ID_PREFIX, Clock, parse_identity, random_id
from outrider.store.errors import damaged_row, no_such_session
from outrider.store.journal import Journal, encode_body, parse_entry

# The columns of a task, in the order of the table and of `TaskRow`.
_TASK_COLUMNS = (
    "id, session, person, number, kind, call, wish, created, waited, notify, state, pid, started, boot, child, "
    "exit_code, ended, why, is_told, notices"
)

# A task that has not ended. The index of open tasks has the same condition.
_IS_OPEN = "state IN ('queued', 'running', 'stalled')"

# Tasks, each with the workspace of its session.
_SELECT_TASK = (
    f"SELECT {', '.join(f't.{name}' for name in _TASK_COLUMNS.split(', '))}, s.workspace, s.folder FROM tasks t "
)
_JOIN_SESSION = "JOIN sessions s ON s.id = t.session "

# A task by its id.
TASK_BY_ID = _SELECT_TASK + _JOIN_SESSION + "WHERE t.id = ?1"

# The task that a call of a session started.
TASK_BY_CALL = _SELECT_TASK + _JOIN_SESSION + "WHERE t.session = ?1 AND t.call = ?2"

# Tasks of this person whose id begins like this; two rows mean that it is ambiguous.
TASKS_BY_PREFIX = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 AND t.id >= ?2 AND t.id < ?2 || '{' LIMIT 2"

# This person's tasks, the latest first: all, those of one session, and the open ones of either.
TASKS_OF = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 ORDER BY t.number DESC LIMIT ?2"
TASKS_IN = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 AND t.session = ?3 ORDER BY t.number DESC LIMIT ?2"
_SELECT_OPEN_TASK = _SELECT_TASK + "INDEXED BY tasks_open " + _JOIN_SESSION + f"WHERE t.{_IS_OPEN} "
OPEN_TASKS_OF = _SELECT_OPEN_TASK + "AND t.person = ?1 ORDER BY t.number DESC LIMIT ?2"
OPEN_TASKS_IN = _SELECT_OPEN_TASK + "AND t.person = ?1 AND t.session = ?3 ORDER BY t.number DESC LIMIT ?2"

# Every open task, the oldest first.
OPEN_TASKS = _SELECT_OPEN_TASK + "ORDER BY t.created, t.id"

# The open task whose body is this session.
TASK_OF_CHILD = (
    _SELECT_TASK
    + _JOIN_SESSION
    + f"WHERE t.child = ?1 AND t.child <> '' AND t.{_IS_OPEN} ORDER BY t.number DESC LIMIT 1"
)

# The keys of the notices of a task, except that of its end.
NOTICE_KEYS = "SELECT key FROM entries WHERE session = ?1 AND key > ?2 AND key < ?2 || '{'"

# The owner and the workspace of a session, for a new task.
SESSION_OF_TASK = "SELECT person, workspace, folder FROM sessions WHERE id = ?1"

# How many tasks of a session are open.
COUNT_OPEN_TASKS = f"SELECT count(*) FROM tasks INDEXED BY tasks_open WHERE session = ?1 AND {_IS_OPEN}"

# The number of the next task of a person.
NEXT_TASK_NUMBER = "SELECT coalesce(max(number), 0) + 1 FROM tasks WHERE person = ?1"

# One more task.
INSERT_TASK = f"""
INSERT INTO tasks ({_TASK_COLUMNS})
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
"""

# All columns of a task that can change.
UPDATE_TASK = """
UPDATE tasks SET waited = ?2, notify = ?3, state = ?4, pid = ?5, started = ?6, boot = ?7, child = ?8, exit_code = ?9,
                 ended = ?10, why = ?11, is_told = ?12, notices = ?13
WHERE id = ?1
"""

# Delete what belongs to a session.
DELETE_TASKS = "DELETE FROM tasks WHERE session = ?1"
DELETE_SESSION_PERMISSIONS = "DELETE FROM grants WHERE scope = 'session' AND place = ?1"

# The questions of a session and their answers.
QUESTIONS_AND_ANSWERS = """
SELECT seq, at, body FROM entries WHERE session = ?1 AND kind IN ('asked', 'answered') ORDER BY seq
"""

# Permissions, in the order of `core.approvals.Permission`.
_SELECT_PERMISSION = "SELECT id, person, scope, place, need, created FROM grants "
PERMISSION_BY_ID = _SELECT_PERMISSION + "WHERE id = ?1"
SAME_PERMISSION = _SELECT_PERMISSION + "WHERE person = ?1 AND scope = ?2 AND place = ?3 AND need = ?4"

# All permissions of a person, those for the same scope together.
PERMISSIONS_OF = _SELECT_PERMISSION + "WHERE person = ?1 ORDER BY scope, place, need"

# Add and revoke a permission.
INSERT_PERMISSION = "INSERT INTO grants (id, person, scope, place, need, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
DELETE_PERMISSION = "DELETE FROM grants WHERE person = ?1 AND id = ?2"

# Every task and permission, to check and to recover them: from both ends, in case the middle cannot be read.
ALL_TASKS = f"SELECT {_TASK_COLUMNS} FROM tasks ORDER BY id"
ALL_TASKS_BACKWARDS = ALL_TASKS + " DESC"
ALL_PERMISSIONS = _SELECT_PERMISSION + "ORDER BY id"
ALL_PERMISSIONS_BACKWARDS = ALL_PERMISSIONS + " DESC"

# What a recovery writes; of two rows that contradict each other, the first stays.
RECOVER_TASK = INSERT_TASK.replace("INSERT", "INSERT OR IGNORE", 1)
RECOVER_PERMISSION = INSERT_PERMISSION.replace("INSERT", "INSERT OR IGNORE", 1)
_spec_encoder = msgspec.json.Encoder()
_spec_decoder = msgspec.json.Decoder(TaskSpec)


class TaskRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A row of the table, in its order."""

    id: str
    session: str
    person: str
    number: int
    kind: TaskKind
    call: str
    spec: bytes
    created: int
    is_awaited: int
    notify: Notify
    state: TaskState
    pid: int | None
    started: int | None
    boot: str | None
    child: str
    exit_code: int | None
    ended: int
    why: str
    is_delivered: int
    notices: int


class _PermissionRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: str
    person: str
    scope: PermissionScope
    applies_to: str
    need: str
    created: int


def encode_spec(spec: TaskSpec) -> bytes:
    """Raises Refused for a value that JSON cannot hold, and UnicodeEncodeError for text that cannot be stored."""
    encoded = _spec_encoder.encode(spec)
    try:
        _spec_decoder.decode(encoded)
    except ValueError as error:
        raise Refused(f"this task cannot be stored: {error}") from error  # JSON has no infinity, for example
    return encoded


def parse_task(row: Sequence[Any]) -> TaskRow:
    """Raises ValueError if this is not a task."""
    parsed = msgspec.convert(row, TaskRow)
    _spec_decoder.decode(parsed.spec)
    return parsed


def parse_permission(row: Sequence[Any]) -> Permission:
    """Raises ValueError if this is not a permission."""
    return Permission(*msgspec.structs.astuple(msgspec.convert(row, _PermissionRow)))


def task_of(row: Sequence[Any]) -> Task:
    """Parse a row of `TASK_BY_ID` and similar statements. Raises StoreDamaged if it cannot be read."""
    *columns, workspace, folder = row
    try:
        parsed = msgspec.convert(columns, TaskRow)
        spec = _spec_decoder.decode(parsed.spec)
    except ValueError as error:
        raise damaged_row(f"task {row[0]}", error) from error
    return Task(
        id=parsed.id,
        session=parsed.session,
        person=parsed.person,
        workspace=workspace,
        identity=parse_identity(folder),
        spec=replace(spec, is_awaited=bool(parsed.is_awaited), notify=parsed.notify),
        state=parsed.state,
        created=parsed.created,
        process=_process_of(parsed),
        child=parsed.child,
        exit_code=parsed.exit_code,
        ended=parsed.ended,
        why=parsed.why,
        is_delivered=bool(parsed.is_delivered),
        notices=parsed.notices,
    )


def permission_of(row: Sequence[Any]) -> Permission:
    """Raises StoreDamaged if it cannot be read."""
    try:
        return parse_permission(row)
    except ValueError as error:
        raise damaged_row(f"permission {row[0]}", error) from error


def task_update_values(task: Task) -> tuple[Any, ...]:
    process = task.process
    return (
        task.id,
        task.spec.is_awaited,
        task.spec.notify,
        task.state,
        process and process.pid,
        process and process.started,
        process and process.boot,
        task.child,
        task.exit_code,
        task.ended,
        task.why,
        task.is_delivered,
        task.notices,
    )


def _process_of(row: TaskRow) -> ProcessIdentity | None:
    if row.pid is None or row.started is None or row.boot is None:
        return None
    return ProcessIdentity(row.pid, row.started, row.boot)


def find_task(db: sqlite3.Connection, person: str, task: str) -> Task | None:
    if (row := db.execute(TASK_BY_ID, (task,)).fetchone()) and (match := task_of(row)).person == person:
        return match
    if len(task) < MIN_ID_PREFIX:
        return None
    rows = db.execute(TASKS_BY_PREFIX, (person, task)).fetchall()
    return task_of(rows[0]) if len(rows) == 1 else None


def list_tasks(db: sqlite3.Connection, person: str, session: str, limit: int, *, open_only: bool) -> Sequence[Task]:
    if session:
        statement = OPEN_TASKS_IN if open_only else TASKS_IN
        return [task_of(row) for row in db.execute(statement, (person, limit, session))]
    statement = OPEN_TASKS_OF if open_only else TASKS_OF
    return [task_of(row) for row in db.execute(statement, (person, limit))]


def list_open_tasks(db: sqlite3.Connection) -> Sequence[Task]:
    return [task_of(row) for row in db.execute(OPEN_TASKS)]


def find_task_of_child(db: sqlite3.Connection, child: str) -> Task | None:
    row = db.execute(TASK_OF_CHILD, (child,)).fetchone()
    return task_of(row) if row else None


def list_notice_keys(db: sqlite3.Connection, session: str, task: str) -> Sequence[str]:
    return [key for (key,) in db.execute(NOTICE_KEYS, (session, f"task/{task}/"))]


def list_permissions(db: sqlite3.Connection, person: str) -> Sequence[Permission]:
    return [permission_of(row) for row in db.execute(PERMISSIONS_OF, (person,))]


class TaskWrites:
    """Writes to tasks and permissions, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, journal: Journal, clock: Clock) -> None:
        self._db, self._journal, self._clock = db, journal, clock

    def create_once(self, session: str, spec: TaskSpec, most: int) -> tuple[Task, bool]:
        if row := self._db.execute(TASK_BY_CALL, (session, spec.call)).fetchone():
            return task_of(row), False
        owner = self._db.execute(SESSION_OF_TASK, (session,)).fetchone()
        if owner is None:
            raise no_such_session(session)
        (running,) = self._db.execute(COUNT_OPEN_TASKS, (session,)).fetchone()
        if running >= most:
            raise Refused(
                f"{running} tasks of this session have not ended; "
                "wait for one of them, or kill one, before you start another"
            )
        person, workspace, folder = owner
        task = Task(
            id=self._free_id("t", TASK_BY_ID),
            session=session,
            person=person,
            workspace=workspace,
            identity=parse_identity(folder),
            spec=spec,
            state="queued",
            created=self._clock() // 1000,
        )
        (number,) = self._db.execute(NEXT_TASK_NUMBER, (person,)).fetchone()
        fixed = (task.id, session, person, number, spec.kind, spec.call, encode_spec(spec), task.created)
        self._db.execute(INSERT_TASK, (*fixed, *task_update_values(task)[1:]))
        return task, True

    def mark_started(self, task: str, process: ProcessIdentity | None, child: str) -> Task:
        current = self._get_task(task)
        if not current.is_open:
            return current
        process, child = process or current.process, child or current.child
        return self._save(replace(current, state="running", process=process, child=child))

    def detach(self, task: str, notify: Notify) -> Task:
        current = self._get_task(task)
        if not current.is_open:
            return current
        # A stall that was found while a call waited has not been reported: it is found again.
        is_unreported = current.spec.is_awaited and current.state == "stalled"
        state = "running" if is_unreported else current.state
        return self._save(replace(current, state=state, spec=replace(current.spec, is_awaited=False, notify=notify)))

    def end_task_and_notify(
        self, task: str, end: TaskEnd, notice: TaskNotice, matches: KeyedNotice | None = None
    ) -> Task:
        if end.state in OPEN_STATES:
            raise ValueError(f"a task cannot end as {end.state}")
        current = self._get_task(task)
        if not current.is_open:
            return current
        is_new = matches is not None and self._report(current, matches.notice, matches.key)
        is_notified = should_notify(current, end.state)
        if is_notified:
            self._notify(current, notice, f"task/{current.id}")
        ended = replace(
            current,
            state=end.state,
            exit_code=end.exit_code,
            why=end.why,
            ended=end.ended,
            is_delivered=is_notified or current.spec.is_awaited,
            notices=current.notices + is_new,
        )
        return self._save(ended)

    def update_and_notify(self, task: str, state: TaskState | None, notice: TaskNotice | None, key: str) -> Task:
        if state and state not in OPEN_STATES:
            raise ValueError(f"a task that is {state} has ended")
        current = self._get_task(task)
        if not current.is_open:
            return current
        is_new = notice is not None and self._report(current, notice, key)
        return self._save(replace(current, state=state or current.state, notices=current.notices + is_new))

    def answer_once(self, session: str, question_id: str, answer: str, person: str) -> Entry | None:
        session_row = self._journal.session_row(session)
        bodies = [parse_entry(session, *row).body for row in self._db.execute(QUESTIONS_AND_ANSWERS, (session,))]
        if not any(isinstance(body, Asked) and body.ask == question_id for body in bodies):
            raise Refused(f"there is no question {question_id[:80]!r} in this session")
        if any(isinstance(body, Answered) and body.ask == question_id for body in bodies):
            return None
        body = Answered(question_id, answer, person)
        return self._journal.append(session, session_row, body, f"answer/{question_id}", encode_body(body))

    def add_permission_once(self, person: str, scope: PermissionScope, applies_to: str, need: str) -> Permission:
        if scope == "once":
            raise Refused("an approval of one call is an answer; a permission is for a session or a workspace")
        if row := self._db.execute(SAME_PERMISSION, (person, scope, applies_to, need)).fetchone():
            return permission_of(row)
        id, created = self._free_id("g", PERMISSION_BY_ID), self._clock() // 1000
        self._db.execute(INSERT_PERMISSION, (id, person, scope, applies_to, need, created))
        return Permission(id, person, scope, applies_to, need, created)

    def revoke_permission(self, person: str, permission_id: str) -> bool:
        return self._db.execute(DELETE_PERMISSION, (person, permission_id)).rowcount > 0

    def _get_task(self, task: str) -> Task:
        row = self._db.execute(TASK_BY_ID, (task,)).fetchone()
        if row is None:
            raise Refused(f"this task does not exist or was deleted: {task}")
        return task_of(row)

    def _save(self, task: Task) -> Task:
        self._db.execute(UPDATE_TASK, task_update_values(task))
        return task

    def _report(self, task: Task, notice: TaskNotice, key: str) -> bool:
        return should_report(task, notice) and self._notify(task, notice, key)

    def _notify(self, task: Task, notice: TaskNotice, key: str) -> bool:
        """Whether the session did not have this notice yet."""
        body = Input(
            render_notice(notice),
            "task",
            person=task.person,
            address=task.spec.address,
            notice=shortened_notice(notice),
        )
        return self._journal.append_once(task.session, body, key) is not None

    def _free_id(self, kind: str, statement: str) -> str:
        while True:
            id = f"{kind}-{random_id(6)}"
            if not self._db.execute(statement, (id,)).fetchone():
                return id
