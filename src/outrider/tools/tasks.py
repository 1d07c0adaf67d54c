"""The built-in tool `tasks`: list, read, wait for, write to and kill background tasks."""

from typing import Annotated, Literal

import anyio
import msgspec
from msgspec import Meta, Struct

from outrider.core.approvals import ApprovalRequest, RequestDetail
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import Tasks, ToolContext
from outrider.core.tasks import Task, task_label
from outrider.core.text import clip, duration, plural
from outrider.core.types import Replay
from outrider.system.regex import check_pattern, matches_any_line
from outrider.tools.define import result, tool

MAX_WAIT = 600
POLL_SECONDS = 0.2
"""Seconds between two reads of the output while a call waits for a pattern."""
MAX_READ = 20_000
KEYS = {"enter": "\n", "tab": "\t", "esc": "\x1b", "space": " ", "up": "\x1b[A", "down": "\x1b[B"}


class TasksCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `tasks`."""

    action: Annotated[
        Literal["list", "read", "wait", "write", "kill"],
        Meta(description="list all; read output; wait for its end or for output; write to its stdin; kill it"),
    ]
    task: Annotated[str, Meta(description="the task's id; not needed for list")] = ""
    start: Annotated[int, Meta(description="read: the first byte; a negative number counts from the end")] = -MAX_READ
    most: Annotated[int, Meta(description="read: maximum number of bytes", ge=1, le=MAX_READ)] = MAX_READ
    until: Annotated[str, Meta(description="wait: `done`, `idle` (no output for 3 s), or a regular expression")] = (
        "done"
    )
    limit: Annotated[int, Meta(description="wait: maximum number of seconds", ge=1, le=MAX_WAIT)] = 30
    text: Annotated[str, Meta(description="write: the text to write")] = ""
    keys: Annotated[
        tuple[str, ...], Meta(description="write: then these keys: enter, tab, esc, space, up, down, ctrl-c, ctrl-d")
    ] = ()


@tool(replay=Replay.NEVER)
async def tasks(context: ToolContext, arguments: TasksCall) -> Result:
    """Manage the background tasks of this session: list them, read their output, wait for one, write to its stdin, or
    kill it. A wait that times out is a result, not an error."""
    return await _run_action(context, arguments)


@tasks.reconciles
async def _reconcile(context: ToolContext, arguments: TasksCall) -> Result | None:
    # Every other action can be repeated without harm.
    return None if arguments.action == "write" else await _run_action(context, arguments)


@tasks.requests_approval
async def _approval_request(context: ToolContext, arguments: TasksCall) -> ApprovalRequest | None:
    """Input to a command that was allowed something is asked about: it decides what the command does with that."""
    if arguments.action != "write" or context.tasks is None:
        return None
    task = await context.tasks.find(arguments.task)
    keys = [key for key in arguments.keys if key != "ctrl-c"]
    if not task.is_open or not task.spec.grants or not (arguments.text or keys):
        return None
    details = [RequestDetail("Then these keys", " ".join(arguments.keys))] if arguments.keys else []
    details += [RequestDetail("To the running task", f"{task.id}: {task.spec.command}")]
    return ApprovalRequest("tasks", arguments.text, task.spec.grants, context.session.workspace, details=tuple(details))


async def _run_action(context: ToolContext, arguments: TasksCall) -> Result:
    if context.tasks is None:
        raise Refused("tasks are not available here")
    if arguments.action == "list":
        return await _list(context.tasks)
    task = await context.tasks.find(arguments.task)
    match arguments.action:
        case "read":
            return await _read(context.tasks, task, arguments)
        case "wait":
            return await _wait(context.tasks, task, arguments)
        case "write":
            return await _write(context.tasks, task, arguments)
        case "kill":
            return _render(await context.tasks.kill(task), message="It and everything it started have ended.")


async def _list(tasks: Tasks) -> Result:
    session_tasks = await tasks.list()
    rows = [
        {"task": task.id, "state": task.state, "what": task_label(task), "exit_code": task.exit_code}
        for task in session_tasks[:50]
    ]
    return result(
        msgspec.json.encode({"tasks": rows, "count": len(session_tasks)}).decode(), plural(len(session_tasks), "task")
    )


async def _read(tasks: Tasks, task: Task, arguments: TasksCall) -> Result:
    if task.spec.kind == "session":
        return _render(task, output=await tasks.last_message(task))
    size = await anyio.to_thread.run_sync(tasks.commands.size, task)
    content = await anyio.to_thread.run_sync(tasks.commands.read, task, arguments.start, arguments.most)
    start = arguments.start if arguments.start >= 0 else max(0, size + arguments.start)
    return _render(
        task, output=content.decode("utf-8", "replace"), message=f"bytes {start}–{start + len(content)} of {size}"
    )


async def _wait(tasks: Tasks, task: Task, arguments: TasksCall) -> Result:
    if arguments.until == "done" or task.spec.kind == "session":
        task = await tasks.wait(task, arguments.limit)
        return _render(task, status=task.state if not task.is_open else "timeout", output=await _tail(tasks, task))
    pattern = None if arguments.until == "idle" else arguments.until
    if pattern:
        try:
            await check_pattern(pattern)
        except Refused as error:
            raise Refused(f"until is neither done, idle nor a usable pattern: {error}") from None
    last_size = -1
    with anyio.move_on_after(arguments.limit):
        while True:
            size = await anyio.to_thread.run_sync(tasks.commands.size, task)
            if pattern and size != last_size and await matches_any_line(pattern, await _tail(tasks, task, MAX_READ)):
                return _render(task, status="matched", output=await _tail(tasks, task))
            last_size = size
            if not task.is_open:
                break
            if not pattern and await anyio.to_thread.run_sync(tasks.commands.idle_seconds, task) >= 3:
                return _render(task, status="idle", output=await _tail(tasks, task))
            task = await tasks.wait(task, POLL_SECONDS)
    return _render(task, status=task.state if not task.is_open else "timeout", output=await _tail(tasks, task))


async def _write(tasks: Tasks, task: Task, arguments: TasksCall) -> Result:
    if not task.is_open:
        raise Refused(f"task {task.id} has ended ({task.state})")
    unknown = [key for key in arguments.keys if key not in KEYS and key not in ("ctrl-c", "ctrl-d")]
    if unknown:
        raise Refused(f"there is no key {unknown[0]!r}; use {', '.join(KEYS)}, ctrl-c or ctrl-d")
    text = arguments.text + "".join(KEYS.get(key, "") for key in arguments.keys)
    close = "ctrl-d" in arguments.keys

    def write() -> None:
        if text or close:
            tasks.commands.write(task, text.encode(), close=close)
        if "ctrl-c" in arguments.keys:
            tasks.commands.interrupt(task)

    await anyio.to_thread.run_sync(write)
    task = await tasks.refresh(task)
    return _render(task, message=f"wrote {len(text)} characters" + (" and closed its stdin" if close else ""))


async def _tail(tasks: Tasks, task: Task, max_bytes: int = 4_000) -> str:
    if task.spec.kind == "session":
        return await tasks.last_message(task)
    content = await anyio.to_thread.run_sync(tasks.commands.read, task, -max_bytes, max_bytes)
    return content.decode("utf-8", "replace")


def _render(task: Task, *, status: str = "", output: str | None = None, message: str = "") -> Result:
    answer = {
        "status": status or task.state,
        "task": task.id,
        "state": task.state,
        "what": clip(task.spec.command, 200),
        "exit_code": task.exit_code,
        "ran": duration((task.ended or task.created) - task.created) if task.ended else None,
        "reason": task.why or None,
        "output": output,
        "message": message or None,
    }
    present = {name: value for name, value in answer.items() if value is not None}
    return result(msgspec.json.encode(present).decode(), status or task.state)
