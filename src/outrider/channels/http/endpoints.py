"""The description of the API, made from the routes themselves and from the values they read and write.

What our own routes share: reading a request into typed values, finding what it names, writing values back.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from outrider.app.agent import Agent
from outrider.channels.http.errors import HttpError, error_response
from outrider.channels.http.inputs import agent_of, caller
from outrider.core.errors import Refused
from outrider.core.store_port import Session
from outrider.core.tasks import Task

_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_JSON = "application/json"
_EVENTS = "text/event-stream"


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """What one route takes and gives."""

    summary: str
    body: Any = None
    """The type of its JSON body, if it reads one."""
    query: Any = None
    """The type of its query: each field is a parameter."""
    headers: Mapping[str, str] = {}
    """Headers it reads, each with what it is for."""
    answer: Any = None
    """The type of what it gives; None for nothing, or for anything where `media` says more."""
    status: int = 200
    media: str = _JSON
    streams: bool = False
    """Whether it gives events instead, when asked to."""
    others: Mapping[int, Any] = {}
    """The types of what it gives with other statuses that are no errors in our error's shape."""
    needs_key: bool = True


class RouteOperation(Struct, frozen=True):
    """One operation where it is reached."""

    path: str
    method: str
    about: EndpointSpec


class ErrorDetail(Struct, frozen=True):
    """What went wrong, in the words of OpenAI's API."""

    message: str
    type: str
    code: str | None
    param: str | None


class ErrorResponse(Struct, frozen=True):
    """The body of every answer that is an error."""

    error: ErrorDetail
    request_id: str


def openapi_document(operations: Sequence[RouteOperation], version: str) -> dict[str, Any]:
    """The OpenAPI description of these operations."""
    types = _types(operations)
    found, components = msgspec.json.schema_components(types, schema_hook=_any_schema, ref_template=_REF)
    schemas = dict(zip(map(repr, types), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        path = _PATH_PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operations: Sequence[RouteOperation]) -> list[Any]:
    """Every type that is read or written, once."""
    found: dict[str, Any] = {repr(ErrorResponse): ErrorResponse}
    for each in operations:
        about = each.about
        found |= {repr(one): one for one in (about.body, about.answer, *about.others.values()) if one is not None}
    return list(found.values())


def _any_schema(kind: type) -> dict[str, Any]:
    """What is free in our values: a call's arguments, a tool's own schema."""
    return {}


def _operation(each: RouteOperation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    about = each.about
    places = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(each.path)
    ]
    headers = [
        {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}
        for name, what in about.headers.items()
    ]
    operation: dict[str, Any] = {
        "summary": about.summary,
        "security": [{"key": []}] if about.needs_key else [{}, {"key": []}],
        "parameters": [*places, *_parameters(about.query), *headers],
        "responses": {
            str(about.status): _response(about, schemas),
            **{str(status): _response_content({_JSON: schemas[repr(kind)]}) for status, kind in about.others.items()},
            "default": {"description": "an error", "content": {_JSON: {"schema": schemas[repr(ErrorResponse)]}}},
        },
    }
    if about.body is not None:
        is_needed = any(field.required for field in msgspec.structs.fields(about.body))
        content = {_JSON: {"schema": schemas[repr(about.body)]}}
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _response(about: EndpointSpec, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if about.status == 204:
        return {"description": "nothing"}
    schema: Any = {} if about.answer is None else schemas[repr(about.answer)]
    return _response_content({about.media: schema, **({_EVENTS: {}} if about.streams else {})})


def _response_content(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": "done", "content": {media: {"schema": schema} for media, schema in contents.items()}}


def _parameters(query: Any) -> list[dict[str, Any]]:
    """Each field of a query as a parameter."""
    if query is None:
        return []
    _, components = msgspec.json.schema_components([query], ref_template=_REF)
    whole = components[query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in whole["required"],
            **({"description": schema.pop("description")} if "description" in schema else {}),
            "schema": schema,
        }
        for name, schema in whole["properties"].items()
    ]


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


Endpoint = Callable[[Request], Awaitable[Response]]


def with_error_responses(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with every error it raises turned into an answer."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 (the edge of the process: a bug is one failed request)
            if not isinstance(error, HttpError | ClientDisconnect):
                log_failure(request, error)
            return error_response(request, error)

    return call


def log_failure(request: Request, error: Exception) -> None:
    """Keep what the caller is not told."""
    import logging

    state = request.scope.get("state", {})
    logging.getLogger("outrider.http").info(
        "%s %s failed: %s", request.method, request.url.path, error, exc_info=error, extra={"request": state}
    )


class EndpointRoute(Route):
    """A route that says what it takes and gives."""

    def __init__(self, path: str, endpoint: Endpoint, methods: Sequence[str], about: EndpointSpec) -> None:
        super().__init__(path, endpoint, methods=list(methods))
        self.operations = tuple(RouteOperation(path, method, about) for method in methods)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """A slash that is written as %2F is part of a name and divides nothing."""
        raw: bytes = scope.get("raw_path") or b""
        if b"%2f" not in raw.lower():
            return super().matches(scope)
        match, found = super().matches({**scope, "path": raw.decode("latin-1")})
        named = {name: unquote(value) for name, value in found.get("path_params", {}).items()}
        return match, {**found, "path_params": named}


def route(path: str, endpoint: Endpoint, *methods: str, about: EndpointSpec | None = None) -> Route:
    """A route; without `about`, the first line of the endpoint's docstring describes it."""
    words = (endpoint.__doc__ or path).strip().partition("\n")[0]
    return EndpointRoute(path, with_error_responses(endpoint), methods, about or EndpointSpec(summary=words))
