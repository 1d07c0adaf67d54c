"""The store's reads of tasks and grants, each one function on a connection that cannot write."""

import sqlite3
from collections.abc import Sequence

from outrider.core.approve import Permission
from outrider.core.tasks import Task
from outrider.store import sql_tasks
from outrider.store.read import MIN_ID_PREFIX
from outrider.store.rows import permission_of, task_of


def find_task(db: sqlite3.Connection, person: str, task: str) -> Task | None:
    if (row := db.execute(sql_tasks.TASK_BY_ID, (task,)).fetchone()) and (found := task_of(row)).person == person:
        return found
    if len(task) < MIN_ID_PREFIX:
        return None
    rows = db.execute(sql_tasks.TASKS_BY_PREFIX, (person, task)).fetchall()
    return task_of(rows[0]) if len(rows) == 1 else None


def list_tasks(db: sqlite3.Connection, person: str, session: str, limit: int, *, open_only: bool) -> Sequence[Task]:
    if session:
        statement = sql_tasks.OPEN_TASKS_IN if open_only else sql_tasks.TASKS_IN
        return [task_of(row) for row in db.execute(statement, (person, limit, session))]
    statement = sql_tasks.OPEN_TASKS_OF if open_only else sql_tasks.TASKS_OF
    return [task_of(row) for row in db.execute(statement, (person, limit))]


def list_open_tasks(db: sqlite3.Connection) -> Sequence[Task]:
    return [task_of(row) for row in db.execute(sql_tasks.OPEN_TASKS)]


def find_task_of_child(db: sqlite3.Connection, child: str) -> Task | None:
    row = db.execute(sql_tasks.TASK_OF_CHILD, (child,)).fetchone()
    return task_of(row) if row else None


def list_permissions(db: sqlite3.Connection, person: str) -> Sequence[Permission]:
    return [permission_of(row) for row in db.execute(sql_tasks.PERMISSIONS_OF, (person,))]
