"""Tasks for people: a table, a page, a line; and for programs, as JSON."""

from collections.abc import Mapping, Sequence

from outrider.cli.lines import Json
from outrider.cli.plain import one_line, printable
from outrider.cli.transcript import format_time
from outrider.core.tasks import Task, TaskState, duration

_MAX_DESCRIPTION = 60
_STATE_TEXT: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost",
    "timed_out": "was ended at its time limit",
    "stalled": "seems to wait for input",
    "queued": "waits to be started",
    "running": "runs",
}


def render_task(task: Task, session: str, output_file: str) -> Json:
    """A task, flat. `session` is its session's name."""
    wish = task.spec
    return {
        "id": task.id,
        "kind": wish.kind,
        "state": task.state,
        "session": task.session,
        "name": session,
        "command": wish.command,
        "description": wish.description,
        "workspace": task.workspace,
        "workdir": wish.workdir,
        "created": task.created,
        "ended": task.ended,
        "exit_code": task.exit_code,
        "why": task.why,
        "address": wish.address,
        "notify": wish.notify,
        "is_told": task.is_delivered,
        "is_interactive": wish.keeps_stdin_open,
        "watch": wish.watch,
        "grants": list(wish.grants),
        "child": task.child,
        "pid": task.process.pid if task.process else None,
        "output_file": output_file if wish.kind == "command" else "",
    }


def tasks_table(tasks: Sequence[Task], names: Mapping[str, str], now: int) -> list[str]:
    """One aligned line for each, under a head."""
    rows = [("TASK", "STATE", "TIME", "EXIT", "SESSION", "WHAT")]
    rows += [
        (
            task.id,
            task.state,
            duration((task.ended or now) - task.created),
            "" if task.exit_code is None else str(task.exit_code),
            one_line(names.get(task.session, task.session), 24),
            one_line(task.spec.description or task.spec.command, _MAX_DESCRIPTION),
        )
        for task in tasks
    ]
    return format_table(rows)


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def state_line(task: Task) -> str:
    """What is the matter with it, in one line."""
    code = "" if task.exit_code is None else f", exit code {task.exit_code}"
    why = f": {one_line(task.why, 200)}" if task.why else ""
    return f"task {task.id} {_STATE_TEXT[task.state]}{code}{why}"


def task_details(task: Task, session: str, output_file: str, now: int) -> list[str]:
    """All there is to say of a task but its output."""
    wish = task.spec
    span = duration((task.ended or now) - task.created)
    facts = {
        "state": f"{task.state} ({f'for {span}' if task.is_open else f'after {span}'})",
        "exit code": "" if task.exit_code is None else str(task.exit_code),
        "reason": one_line(task.why),
        "what": one_line(wish.description),
        "asked to" if wish.kind == "session" else "command": printable(wish.command),
        "session": one_line(session),
        "folder": f"{task.workspace}/{wish.workdir}" if wish.workdir else task.workspace,
        "begun": format_time(task.created),
        "ended": format_time(task.ended) if task.ended else "",
        "told": _notification_text(task),
        "watches": one_line(wish.watch),
        "input": "can be written to" if wish.keeps_stdin_open and task.is_open else "",
        "allowed": ", ".join(map(one_line, wish.grants)),
        "process": str(task.process.pid) if task.process and task.is_open else "",
        "child": task.child,
        "output": output_file if wish.kind == "command" else "",
    }
    indent = " " * 11
    lines = [f"{name:<10} " + value.replace("\n", f"\n{indent}") for name, value in facts.items() if value]
    return [f"task {task.id}", *lines]


def _notification_text(task: Task) -> str:
    """Where its end goes."""
    if not task.is_open:
        return "yes" if task.is_delivered else "no"
    if task.spec.is_awaited:
        return "a turn waits for it"
    when = {"always": "when it ends", "failures": "if it fails", "never": "nobody: look with `outrider tasks`"}
    return when[task.spec.notify]
