"""Carries what can still be read of a damaged store's tasks and grants into a fresh one, after its sessions."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from msgspec.structs import astuple, replace

from outrider.core.approve import Permission
from outrider.core.tasks import OPEN_STATES
from outrider.store import sql_tasks
from outrider.store.faults import is_outside
from outrider.store.pages import raw_rows
from outrider.store.rows import TaskRow, parse_grant, parse_task

T = TypeVar("T")
Row = Sequence[Any]

LOST_TASKS = "Some tasks may have been lost; a command of theirs may still run."
LOST_GRANTS = "Some of what you allowed once and for all was lost; you will be asked again."


def salvage_tasks(
    damaged: sqlite3.Connection, pages: BinaryIO, fresh: sqlite3.Connection, owners: Mapping[str, str]
) -> list[str]:
    """One sentence for each kind of loss. `owners` are the persons of the sessions that were recovered."""
    loose: list[Row] = []
    tasks, are_tasks_whole = _rows(damaged, sql_tasks.ALL_TASKS, sql_tasks.ALL_TASKS_BACKWARDS)
    grants, are_grants_whole = _rows(damaged, sql_tasks.ALL_GRANTS, sql_tasks.ALL_GRANTS_BACKWARDS)
    if not are_tasks_whole or not are_grants_whole:
        loose = [row for row in raw_rows(pages) if _parsed(parse_task, row) or _parsed(parse_grant, row)]
    has_tables = any(count for (count,) in _rows(damaged, sql_tasks.HAS_TASKS)[0])
    losses: list[str] = []
    _write_tasks(fresh, _read(parse_task, [*tasks, *loose]), owners)
    if _unread(parse_task, tasks) or (has_tables and not are_tasks_whole):
        losses.append(LOST_TASKS)
    # What lies in given-up pages may be what a person took back: of grants only the table itself is believed.
    _write_grants(fresh, _read(parse_grant, grants), owners)
    if _unread(parse_grant, grants) or (not are_grants_whole and (has_tables or _read(parse_grant, loose))):
        losses.append(LOST_GRANTS)
    return losses


def _rows(db: sqlite3.Connection, *statements: str) -> tuple[list[Row], bool]:
    """Rows until the first that cannot be read, by each statement until one gives all; whether one did."""
    rows: list[Row] = []
    for statement in statements:
        try:
            rows.extend(db.execute(statement))
            return rows, True
        except sqlite3.Error as error:
            if is_outside(error):
                raise
        except UnicodeDecodeError:
            continue
    return rows, False


def _write_tasks(fresh: sqlite3.Connection, tasks: Iterable[TaskRow], owners: Mapping[str, str]) -> None:
    latest: dict[str, TaskRow] = {}
    for task in tasks:
        known = latest.get(task.id)
        if task.session in owners and (known is None or _progress(task) > _progress(known)):
            latest[task.id] = task
    for task in latest.values():
        fresh.execute(sql_tasks.SALVAGE_TASK, astuple(replace(task, person=owners[task.session])))


def _write_grants(fresh: sqlite3.Connection, grants: Iterable[Permission], owners: Mapping[str, str]) -> None:
    for grant in grants:
        if grant.scope != "session" or grant.applies_to in owners:
            fresh.execute(sql_tasks.SALVAGE_GRANT, astuple(grant))


def _progress(task: TaskRow) -> tuple[bool, bool, int, bool]:
    """Greater in a later version of the same row, which may lie beside an older one."""
    return task.state not in OPEN_STATES, not task.waited, task.notices, task.state != "queued"


def _read(parse: Callable[[Row], T], rows: Iterable[Row]) -> list[T]:
    return [parsed for row in rows if (parsed := _parsed(parse, row)) is not None]


def _unread(parse: Callable[[Row], object], rows: Iterable[Row]) -> bool:
    return any(_parsed(parse, row) is None for row in rows)


def _parsed(parse: Callable[[Row], T], row: Row) -> T | None:
    try:
        return parse(row)
    except ValueError:
        return None
