"""Tasks over HTTP: list, show, read their output, write to them, end them."""

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from outrider.channels.http.app import route
from outrider.channels.http.context import agent_of
from outrider.channels.http.failures import HttpError
from outrider.channels.http.openapi import Operation
from outrider.channels.http.reading import answer, find_session, parse_body, parse_query, reading, task_of
from outrider.channels.http.shapes import NewTaskInput, OutputQuery, TaskList, TasksQuery, TaskView, render_task
from outrider.core.tasks import Task


async def list_tasks(request: Request) -> Response:
    agent = reading(request)
    query = parse_query(request, TasksQuery)
    session = await find_session(agent, query.session) if query.session else None
    tasks = await agent.tasks(session, open_only=query.open, limit=query.limit)
    return answer(TaskList([render_task(task) for task in tasks]))


async def show(request: Request) -> Response:
    return answer(render_task(await task_of(request, reading(request))))


async def output(request: Request) -> Response:
    agent = reading(request)
    task = _command(await task_of(request, agent))
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


async def write(request: Request) -> Response:
    agent = agent_of(request)
    task = _command(await task_of(request, agent))
    wish = await parse_body(request, NewTaskInput)
    await anyio.to_thread.run_sync(lambda: agent.commands.write(task, wish.text.encode(), close=wish.close))
    return answer(render_task(task))


def _command(task: Task) -> Task:
    if task.spec.kind != "command":
        raise HttpError(
            409, f"task {task.id} is a session, {task.child or 'not begun yet'}: read it there", "no_command"
        )
    return task


async def kill(request: Request) -> Response:
    agent = agent_of(request)
    return answer(render_task(await agent.kill_task(await task_of(request, agent))))


ROUTES = (
    route(
        "/v1/tasks",
        list_tasks,
        "GET",
        about=Operation(summary="Your tasks, latest first", query=TasksQuery, answer=TaskList),
    ),
    route("/v1/tasks/{id}", show, "GET", about=Operation(summary="One task", answer=TaskView)),
    route(
        "/v1/tasks/{id}/output",
        output,
        "GET",
        about=Operation(
            summary="A part of what a command wrote, as bytes; `x-output-start` and `x-output-size` say where that is",
            query=OutputQuery,
            media="application/octet-stream",
        ),
    ),
    route(
        "/v1/tasks/{id}/input",
        write,
        "POST",
        about=Operation(summary="Give an interactive command something to read", body=NewTaskInput, answer=TaskView),
    ),
    route(
        "/v1/tasks/{id}/kill",
        kill,
        "POST",
        about=Operation(summary="End a task and all it started; it has ended when this is answered", answer=TaskView),
    ),
)
