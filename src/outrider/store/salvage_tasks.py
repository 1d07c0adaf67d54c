"""Carries what can still be read of a damaged store's tasks and grants into a fresh one, after its sessions."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from msgspec.structs import astuple, replace

from outrider.core.approve import Permission
from outrider.core.tasks import OPEN_STATES
from outrider.store import sql_tasks
from outrider.store.faults import is_environmental
from outrider.store.pages import raw_rows
from outrider.store.rows import TaskRow, parse_permission, parse_task

T = TypeVar("T")
RawRow = Sequence[Any]

LOST_TASKS = "Some tasks may have been lost; a command of theirs may still run."
LOST_PERMISSIONS = "Some of what you allowed once and for all was lost; you will be asked again."


def recover_tasks(
    damaged: sqlite3.Connection, pages: BinaryIO, fresh: sqlite3.Connection, owners: Mapping[str, str]
) -> list[str]:
    """One sentence for each kind of loss. `owners` are the persons of the sessions that were recovered."""
    loose: list[RawRow] = []
    tasks, are_tasks_whole = _rows_until_error(damaged, sql_tasks.ALL_TASKS, sql_tasks.ALL_TASKS_BACKWARDS)
    grants, are_grants_whole = _rows_until_error(
        damaged, sql_tasks.ALL_PERMISSIONS, sql_tasks.ALL_PERMISSIONS_BACKWARDS
    )
    if not are_tasks_whole or not are_grants_whole:
        loose = [
            row for row in raw_rows(pages) if _parse_or_none(parse_task, row) or _parse_or_none(parse_permission, row)
        ]
    has_tables = any(count for (count,) in _rows_until_error(damaged, sql_tasks.HAS_TASKS)[0])
    losses: list[str] = []
    _write_tasks(fresh, _parse_rows(parse_task, [*tasks, *loose]), owners)
    if _has_unparsed(parse_task, tasks) or (has_tables and not are_tasks_whole):
        losses.append(LOST_TASKS)
    # What lies in given-up pages may be what a person took back: of grants only the table itself is believed.
    _write_permissions(fresh, _parse_rows(parse_permission, grants), owners)
    if _has_unparsed(parse_permission, grants) or (
        not are_grants_whole and (has_tables or _parse_rows(parse_permission, loose))
    ):
        losses.append(LOST_PERMISSIONS)
    return losses


def _rows_until_error(db: sqlite3.Connection, *statements: str) -> tuple[list[RawRow], bool]:
    """Rows until the first that cannot be read, by each statement until one gives all; whether one did."""
    rows: list[RawRow] = []
    for statement in statements:
        try:
            rows.extend(db.execute(statement))
            return rows, True
        except sqlite3.Error as error:
            if is_environmental(error):
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
        fresh.execute(sql_tasks.RECOVER_TASK, astuple(replace(task, person=owners[task.session])))


def _write_permissions(fresh: sqlite3.Connection, grants: Iterable[Permission], owners: Mapping[str, str]) -> None:
    for grant in grants:
        if grant.scope != "session" or grant.applies_to in owners:
            fresh.execute(sql_tasks.RECOVER_PERMISSION, astuple(grant))


def _progress(task: TaskRow) -> tuple[bool, bool, int, bool]:
    """Greater in a later version of the same row, which may lie beside an older one."""
    return task.state not in OPEN_STATES, not task.is_awaited, task.notices, task.state != "queued"


def _parse_rows(parse: Callable[[RawRow], T], rows: Iterable[RawRow]) -> list[T]:
    return [parsed for row in rows if (parsed := _parse_or_none(parse, row)) is not None]


def _has_unparsed(parse: Callable[[RawRow], object], rows: Iterable[RawRow]) -> bool:
    return any(_parse_or_none(parse, row) is None for row in rows)


def _parse_or_none(parse: Callable[[RawRow], T], row: RawRow) -> T | None:
    try:
        return parse(row)
    except ValueError:
        return None
