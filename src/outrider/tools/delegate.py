"""The built-in tool `delegate`: a child session as a task, whose output is the child's last message."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import Tasks
from outrider.core.tasks import Task, TaskSpec
from outrider.core.text import duration
from outrider.core.types import Replay
from outrider.tools.define import ToolContext, result, tool

MAX_WAIT = 3600.0
"""Seconds a call waits for a child session."""


class DelegateCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `delegate`."""

    work: Annotated[
        str, Meta(description="everything the child needs to know: it sees nothing of this session", min_length=1)
    ]
    description: Annotated[str, Meta(description="what it is for, in a few words")] = ""
    background: Annotated[bool, Meta(description="do not wait for it; you get a notice when it has ended")] = False
    model: Annotated[str, Meta(description="the name of a model other than yours")] = ""
    tools: Annotated[tuple[str, ...], Meta(description="the only tools it may use; empty for all of yours")] = ()
    steps: Annotated[int, Meta(description="maximum number of steps (default 60)", ge=0, le=200)] = 0


@tool(replay=Replay.NEVER)
async def delegate(context: ToolContext, arguments: DelegateCall) -> Result:
    """Delegate a piece of work to a child session in the same workspace, with its own tools and budget, and get its
    last message back. Several can run at once, in the background."""
    return await _run(context, _tasks(context), arguments)


@delegate.reconciles
async def _resume(context: ToolContext, arguments: DelegateCall) -> Result:
    return await _run(context, _tasks(context), arguments)


def _tasks(context: ToolContext) -> Tasks:
    if context.tasks is None:
        raise Refused("delegation is not available here")
    return context.tasks


async def _check_limits(tasks: Tasks, call: str) -> None:
    traits = await tasks.traits()
    if await tasks.depth() >= traits.depth:
        raise Refused(f"child sessions are nested {traits.depth} deep already (delegate.depth): do it yourself")
    running = [task for task in await tasks.list() if task.is_open and task.spec.kind == "session"]
    if len(running) >= traits.children and all(task.spec.call != call for task in running):
        raise Refused(f"{len(running)} child sessions are already running (delegate.children): wait for one to end")


async def _run(context: ToolContext, tasks: Tasks, arguments: DelegateCall) -> Result:
    await _check_limits(tasks, context.call)
    can_notify = context.delivery.can_deliver
    in_background = arguments.background and can_notify
    task = await tasks.start(
        TaskSpec(
            kind="session",
            call=context.call,
            command=arguments.work,
            description=arguments.description,
            address=context.address,
            notify="always" if in_background else "never",
            is_awaited=not in_background,
            ceiling=(await tasks.traits()).ceiling,
            model=arguments.model,
            tools=arguments.tools,
            steps=arguments.steps,
        )
    )
    # A call that continues after a crash keeps what it promised, wherever the turn answers to by now.
    can_notify = can_notify and task.spec.address == context.address
    if not task.spec.is_awaited and task.spec.notify != "never":
        message = "It is running. You will get a notice when it has ended; do not wait for it."
        return _render(task, {"status": "background_started", "notify": True, "message": message}, "in the background")
    task = await tasks.wait(task, MAX_WAIT)
    if task.is_open:
        task = await tasks.detach(task, "always" if can_notify else "never")
    if task.is_open:
        message = f"It is still running, as task {task.id}; no work was lost."
        return _render(task, {"status": "auto_backgrounded", "notify": can_notify, "message": message}, "still running")
    note = ""
    if arguments.background:
        why = context.delivery.why or "nothing could be delivered later where it was started"
        note = f"it ran in the foreground, because {why}"
    return await _finished(tasks, task, note)


async def _finished(tasks: Tasks, task: Task, note: str) -> Result:
    outcome: dict[str, object] = {
        "status": "done" if task.state == "succeeded" else task.state,
        "reply": await tasks.last_message(task),
        "reason": task.why or None,
        "note": note or None,
    }
    return _render(task, outcome, duration(task.ended - task.created), failed=task.state != "succeeded")


def _render(task: Task, outcome: dict[str, object], details: str, *, failed: bool = False) -> Result:
    answer = {"task": task.id, **{name: value for name, value in outcome.items() if value is not None}}
    return result(msgspec.json.encode(answer).decode(), details, failed=failed)
