"""Tasks over HTTP: list, show, read their output, write to them, end them."""

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from outrider.channels.http.endpoints import (
    EndpointSpec,
    find_session,
    json_response,
    parse_body,
    parse_query,
    reader_agent,
    route,
    task_from_path,
)
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import agent_of
from outrider.channels.http.schemas import NewTaskInput, OutputQuery, TaskList, TasksQuery, TaskView, render_task
from outrider.core.tasks import Task


async def list_tasks(request: Request) -> Response:
    agent = reader_agent(request)
    query = parse_query(request, TasksQuery)
    session = await find_session(agent, query.session) if query.session else None
    tasks = await agent.tasks(session, open_only=query.open, limit=query.limit)
    return json_response(TaskList([render_task(task) for task in tasks]))


async def get_task(request: Request) -> Response:
    return json_response(render_task(await task_from_path(request, reader_agent(request))))


async def get_task_output(request: Request) -> Response:
    agent = reader_agent(request)
    task = _require_command(await task_from_path(request, agent))
    query = parse_query(request, OutputQuery)
    commands = agent.commands

    def read() -> tuple[int, int, bytes]:
        size = commands.size(task)
        start = query.start if query.start >= 0 else max(0, size + query.start)
        content = commands.read(task, start, query.most)
        return start, max(size, start + len(content) if content else 0), content

    start, size, content = await anyio.to_thread.run_sync(read)
    headers = {"x-output-start": str(start), "x-output-size": str(size), "x-content-type-options": "nosniff"}
    return Response(content, headers=headers, media_type="application/octet-stream")


async def write_task_input(request: Request) -> Response:
    agent = agent_of(request)
    task = _require_command(await task_from_path(request, agent))
    wish = await parse_body(request, NewTaskInput)
    await anyio.to_thread.run_sync(lambda: agent.commands.write(task, wish.text.encode(), close=wish.close))
    return json_response(render_task(task))


def _require_command(task: Task) -> Task:
    if task.spec.kind != "command":
        raise HttpError(
            409, f"task {task.id} is a session, {task.child or 'not begun yet'}: read it there", "no_command"
        )
    return task


async def kill_task(request: Request) -> Response:
    agent = agent_of(request)
    return json_response(render_task(await agent.kill_task(await task_from_path(request, agent))))


ROUTES = (
    route(
        "/v1/tasks",
        list_tasks,
        "GET",
        about=EndpointSpec(summary="Your tasks, latest first", query=TasksQuery, answer=TaskList),
    ),
    route("/v1/tasks/{id}", get_task, "GET", about=EndpointSpec(summary="One task", answer=TaskView)),
    route(
        "/v1/tasks/{id}/output",
        get_task_output,
        "GET",
        about=EndpointSpec(
            summary="A part of what a command wrote, as bytes; `x-output-start` and `x-output-size` say where that is",
            query=OutputQuery,
            media="application/octet-stream",
        ),
    ),
    route(
        "/v1/tasks/{id}/input",
        write_task_input,
        "POST",
        about=EndpointSpec(summary="Give an interactive command something to read", body=NewTaskInput, answer=TaskView),
    ),
    route(
        "/v1/tasks/{id}/kill",
        kill_task,
        "POST",
        about=EndpointSpec(
            summary="End a task and all it started; it has ended when this is answered", answer=TaskView
        ),
    ),
)
