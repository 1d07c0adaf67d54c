"""What our own routes share: reading a request into typed values, finding what it names, writing values back."""

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.agent import Agent
from outrider.channels.http.context import agent_of, caller
from outrider.channels.http.failures import HttpError
from outrider.core.errors import Refused
from outrider.core.ports import Session
from outrider.core.tasks import Task

T = TypeVar("T")


async def parse_body(request: Request, kind: type[T]) -> T:
    """The request's JSON as this type; an empty body is an empty object."""
    content = await request.body()
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"the body is not as it should be: {error}", "invalid_body") from error
    except RecursionError as error:
        raise HttpError(400, "the body is nested too deep", "nested_too_deep") from error


def parse_query(request: Request, kind: type[T]) -> T:
    """The request's query as this type."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"the query is not as it should be: {error}", "invalid_query") from error


def json_response(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def reader_agent(request: Request) -> Agent:
    """The agent, for someone who may at least read."""
    return agent_of(request, "chat" if caller(request).may("chat") else "read")


async def session_from_path(request: Request, agent: Agent) -> Session:
    """The session a path names by its id or name. Another person's is as good as none."""
    return await find_session(agent, request.path_params["id"])


async def find_session(agent: Agent, name: str) -> Session:
    try:
        return await agent.find(name)
    except Refused as error:
        raise _not_found(error, f"there is no session {name!r}") from error


async def task_from_path(request: Request, agent: Agent) -> Task:
    """The task a path names."""
    name: str = request.path_params["id"]
    try:
        if (task := await agent.find_task(name)).id == name:  # the beginning of an id is for people who type it
            return task
    except Refused as error:
        raise _not_found(error, f"there is no task {name!r}") from error
    raise HttpError(404, f"there is no task {name!r}", "not_found")


def _not_found(error: Refused, message: str) -> Exception:
    """Not found; unless what went wrong is another kind of trouble, such as a damaged store."""
    return HttpError(404, message, "not_found") if type(error) is Refused else error
