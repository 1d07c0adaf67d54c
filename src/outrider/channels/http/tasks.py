"""`/v1/tasks`: list and read tasks, read their output, write to their input, kill them."""

import anyio.to_thread
from starlette.responses import Response

from outrider.app.agent import Agent
from outrider.channels.http.endpoints import CANNOT_APPROVE, ApiCall, endpoint, find_session, not_found
from outrider.channels.http.errors import HttpError
from outrider.channels.http.schemas import NewTaskInput, OutputQuery, TaskList, TasksQuery, TaskView, render_task
from outrider.core.errors import Refused
from outrider.core.tasks import Task

_BYTES = "application/octet-stream"


@endpoint("GET", "/v1/tasks", scope="read")
async def list_tasks(call: ApiCall, query: TasksQuery) -> TaskList:
    """List your tasks, latest first."""
    session = await find_session(call.agent, query.session) if query.session else None
    tasks = await call.agent.tasks(session, open_only=query.open, limit=query.limit)
    return TaskList([render_task(task) for task in tasks])


@endpoint("GET", "/v1/tasks/{id}", scope="read")
async def get_task(call: ApiCall, id: str) -> TaskView:
    """Get one task."""
    return render_task(await _find_task(call.agent, id))


@endpoint("GET", "/v1/tasks/{id}/output", scope="read", media_types=[_BYTES])
async def get_task_output(call: ApiCall, id: str, query: OutputQuery) -> Response:
    """Read part of a command's output as bytes; `x-output-start` is its offset, `x-output-size` the total size."""
    task = await _find_command(call.agent, id)
    commands = call.agent.commands

    def read() -> tuple[int, int, bytes]:
        size = commands.size(task)
        start = query.start if query.start >= 0 else max(0, size + query.start)
        content = commands.read(task, start, query.most)
        return start, max(size, start + len(content) if content else 0), content

    start, size, content = await anyio.to_thread.run_sync(read)
    headers = {"x-output-start": str(start), "x-output-size": str(size), "x-content-type-options": "nosniff"}
    return Response(content, headers=headers, media_type=_BYTES)


@endpoint("POST", "/v1/tasks/{id}/input")
async def write_task_input(call: ApiCall, id: str, body: NewTaskInput) -> TaskView:
    """Write to the standard input of an interactive command; the scope `approve` is needed if it has permissions."""
    task = await _find_command(call.agent, id)
    if task.spec.grants and not call.caller.may("approve"):
        raise HttpError(403, CANNOT_APPROVE, "missing_scope")
    await anyio.to_thread.run_sync(lambda: call.agent.commands.write(task, body.text.encode(), close=body.close))
    return render_task(await call.agent.refresh_task(task))


@endpoint("POST", "/v1/tasks/{id}/kill")
async def kill_task(call: ApiCall, id: str) -> TaskView:
    """Kill a task and everything it started, and respond when it has ended."""
    return render_task(await call.agent.kill_task(await _find_task(call.agent, id)))


async def _find_task(agent: Agent, id: str) -> Task:
    """The task of this whole id. Raises 404."""
    message = f"there is no task {id!r}"
    try:
        task = await agent.find_task(id)
    except Refused as error:
        raise not_found(error, message) from error
    if task.id != id:  # only a person at a terminal may shorten an id
        raise HttpError(404, message, "not_found")
    return task


async def _find_command(agent: Agent, id: str) -> Task:
    task = await _find_task(agent, id)
    if task.spec.kind != "command":
        child = f"{task.child}: read it there" if task.child else "not started yet"
        raise HttpError(409, f"task {task.id} is a child session, {child}", "no_command")
    return task


ENDPOINTS = (list_tasks, get_task, get_task_output, write_task_input, kill_task)
