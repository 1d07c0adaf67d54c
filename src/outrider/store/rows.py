"""Rows of tasks and grants as they are stored, checked whenever they are read back."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approve import Permission, PermissionScope
from outrider.core.errors import Refused, StoreDamaged
from outrider.core.tasks import Notify, ProcessIdentity, Task, TaskKind, TaskSpec, TaskState

_spec_encoder = msgspec.json.Encoder()
_spec_decoder = msgspec.json.Decoder(TaskSpec)


class TaskRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the table."""

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


def encode_spec(wish: TaskSpec) -> bytes:
    """Raises Refused for what would not come back as it is, and UnicodeEncodeError for text that no file can hold."""
    encoded = _spec_encoder.encode(wish)
    try:
        _spec_decoder.decode(encoded)
    except ValueError as error:
        # JSON has no infinity, say.
        raise Refused(f"this task cannot be written down: {error}") from error
    return encoded


def parse_task(row: Sequence[Any]) -> TaskRow:
    """Raises ValueError when this is no task."""
    parsed = msgspec.convert(row, TaskRow)
    _spec_decoder.decode(parsed.spec)
    return parsed


def parse_permission(row: Sequence[Any]) -> Permission:
    """Raises ValueError when this is no grant."""
    return Permission(*msgspec.structs.astuple(msgspec.convert(row, _PermissionRow)))


def task_of(row: Sequence[Any]) -> Task:
    """A row of `sql_tasks.TASK_BY_ID` and its like. Raises Damaged when it cannot be read."""
    *columns, workspace = row
    try:
        parsed = msgspec.convert(columns, TaskRow)
        wish = _spec_decoder.decode(parsed.spec)
    except ValueError as error:
        raise _damaged_row(f"task {row[0]}", error) from error
    return Task(
        id=parsed.id,
        session=parsed.session,
        person=parsed.person,
        workspace=workspace,
        spec=replace(wish, waited=bool(parsed.is_awaited), notify=parsed.notify),
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
    """Raises Damaged when it cannot be read."""
    try:
        return parse_permission(row)
    except ValueError as error:
        raise _damaged_row(f"grant {row[0]}", error) from error


def task_update_values(task: Task) -> tuple[Any, ...]:
    """The arguments of `sql_tasks.UPDATE_TASK`."""
    mark = task.process
    return (
        task.id,
        task.spec.is_awaited,
        task.spec.notify,
        task.state,
        mark and mark.pid,
        mark and mark.started,
        mark and mark.boot,
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


def _damaged_row(what: str, error: ValueError) -> StoreDamaged:
    return StoreDamaged(
        f"{what} is damaged ({error}); start Outrider again: "
        "it sets the damaged store aside and recovers what can be read"
    )
