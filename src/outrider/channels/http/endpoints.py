"""Endpoints of the HTTP API: typed query, body and result, from which the routes and the OpenAPI document follow.

A handler is declared once, with `@endpoint`. The decorator checks the caller's scope, parses the query and the body
into the types of the handler's parameters, encodes what the handler returns, and turns every exception into an error
response.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import cleandoc, signature
from typing import Any, Literal, Protocol, TypeVar, get_type_hints
from urllib.parse import unquote
from weakref import WeakValueDictionary

import anyio
import msgspec
from msgspec import Struct, field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from outrider.app.agent import Agent
from outrider.app.health import HealthMonitor
from outrider.channels.http.errors import HttpError, error_response, request_id
from outrider.core.errors import Refused
from outrider.core.store_port import Session, SpendLimit
from outrider.core.text import explain_validation

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
NO_KEY = "no key: send it as `Authorization: Bearer …`; see `outrider key`"
EndpointScope = Literal["chat", "read", "approve", "admin", "public"]
"""What a key must be allowed to do: `read` is implied by `chat`, everything by `admin`; `public` needs no key."""
CANNOT_APPROVE = (
    "this key may not approve anything: its questions wait for the owner of this Outrider, who answers them with "
    "`outrider questions`, in the chat, or with a key that has the scope 'approve'"
)
Handler = Callable[..., Awaitable[Any]]
T = TypeVar("T")
_log = logging.getLogger("outrider.http")
_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class Caller(Struct, frozen=True):
    """The sender of a request: the person its key belongs to, and what that key may do."""

    person: str
    key: str
    """The key's id, never the key."""
    scopes: frozenset[str]
    spend: SpendLimit | None = None
    rate: int | None = None
    """Requests a minute; None for the server's default."""
    concurrent: int | None = None
    """Requests at once; None for the server's default."""
    is_valid: Callable[[], Awaitable[bool]] | None = None
    """Whether the key has not been revoked since; None when it cannot be revoked."""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


ANONYMOUS = Caller("", "", frozenset())
"""The sender of a request without a key, which only public endpoints accept."""


class WebhookQueue(Protocol):
    async def enqueue(self, session: Session, seq: int) -> None: ...


def now_ms() -> int:
    """The wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class HttpContext(Struct, frozen=True):
    """The open home that requests are served from."""

    agent: Agent
    version: str
    health: HealthMonitor = field(default_factory=HealthMonitor)
    webhooks: WebhookQueue | None = None
    """None when no webhook is configured."""
    wall_clock: Callable[[], int] = now_ms
    session_locks: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary[str, anyio.Lock])

    def session_lock(self, session: str) -> anyio.Lock:
        """The lock to hold between reading the end of a session and writing to it."""
        return self.session_locks.setdefault(session, anyio.Lock())


class ApiCall(Struct, frozen=True):
    """One request whose caller has the scope that the endpoint requires."""

    request: Request
    context: HttpContext
    caller: Caller
    agent: Agent
    """Acts for the caller; for the owner where there is no caller."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """An operation of the API: its handler, and what the handler's signature says about it."""

    method: str
    path: str
    handler: Handler
    scope: EndpointScope
    status: int
    """Of a response that is not an error."""
    query: Any
    """The type of the query, each field one parameter; None without one."""
    body: Any
    """The type of the JSON body; None without one."""
    parses_body: bool
    """Whether the handler takes the parsed body; else it reads the request itself."""
    headers: Mapping[str, str]
    """Request headers with their descriptions."""
    results: Mapping[int, Any]
    """The type of the result by status; None for one that no type describes."""
    media_types: Sequence[str]
    """Of the result; the types describe the first."""

    @property
    def summary(self) -> str:
        return cleandoc(self.handler.__doc__ or self.path).partition("\n")[0]

    async def respond(self, request: Request, context: HttpContext) -> Response:
        """The response to a request, whatever happens."""
        try:
            arguments: dict[str, Any] = {"call": self._call(request, context), **request.path_params}
            if self.query:
                arguments["query"] = parse_query(request, self.query)
            if self.parses_body:
                arguments["body"] = await parse_body(request, self.body)
            value = await self.handler(**arguments)
        except Exception as error:  # noqa: BLE001 (the edge of the process: a bug is one failed request)
            if not isinstance(error, HttpError | ClientDisconnect):
                log_failure(request, error)
            return error_response(request, error)
        if isinstance(value, Response):
            return value
        return Response(status_code=204) if value is None else json_response(value, self.status)

    def _call(self, request: Request, context: HttpContext) -> ApiCall:
        caller = request.scope.get("state", {}).get("caller", ANONYMOUS)
        if caller is ANONYMOUS:
            if self.scope == "public":
                return ApiCall(request, context, caller, context.agent)
            raise HttpError(401, NO_KEY, "no_key")
        if self.scope != "public" and not caller.may(self.scope) and not (self.scope == "read" and caller.may("chat")):
            text = CANNOT_APPROVE if self.scope == "approve" else f"this key lacks the scope {self.scope!r}"
            raise HttpError(403, text, "missing_scope")
        agent = context.agent.for_person(caller.person, caller.key, can_approve=caller.may("approve"))
        return ApiCall(request, context, caller, agent)


def endpoint(
    method: str,
    path: str,
    *,
    scope: EndpointScope = "chat",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    results: Mapping[int, Any] | None = None,
    media_types: Sequence[str] = (JSON,),
) -> Callable[[Handler], Endpoint]:
    """Declare a handler: `async def handler(call: ApiCall, <path parameters>, query: Query, body: Body) -> Result`.

    A handler that returns None responds with 204. One that returns a `Response` describes it by `results` and
    `media_types`; one that reads the body itself describes that by `body`.
    """

    def declare(handler: Handler) -> Endpoint:
        hints = get_type_hints(handler, include_extras=True)
        parameters = set(signature(handler).parameters)
        expected = {"call", *_PATH_PARAMETER.findall(path)}
        if parameters - {"query", "body"} != expected or not handler.__doc__:
            raise TypeError(f"{method} {path}: a handler has a docstring and the parameters {sorted(expected)}")
        result = hints["return"]
        if result is type(None):
            result_types: Mapping[int, Any] = {204: None}
        elif isinstance(result, type) and issubclass(result, Response):
            result_types = results or {status: None}
        else:
            result_types = {status: result}
        return Endpoint(
            method=method,
            path=path,
            handler=handler,
            scope=scope,
            status=status,
            query=hints.get("query"),
            body=hints.get("body", body),
            parses_body="body" in hints,
            headers=headers or {},
            results=result_types,
            media_types=media_types,
        )

    return declare


async def parse_body(request: Request, kind: type[T]) -> T:
    """The JSON body as this type; an empty body is an empty object."""
    content = await request.body()
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"invalid body: {explain_validation(error)}", "invalid_body") from error
    except RecursionError as error:
        raise HttpError(400, "the body is nested too deeply", "nested_too_deep") from error


def parse_query(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"invalid query: {explain_validation(error)}", "invalid_query") from error


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, JSON)


def log_failure(request: Request, error: Exception) -> None:
    """Log what the response does not say, under the request's id."""
    _log.info("%s %s (%s) failed: %s", request.method, request.url.path, request_id(request), error, exc_info=error)


async def find_session(agent: Agent, name: str) -> Session:
    """The session of this name or id. Raises 404 when there is none, or when it is another person's."""
    try:
        return await agent.find(name)
    except Refused as error:
        raise not_found(error, f"there is no session {name!r}") from error


def not_found(error: Refused, message: str) -> Exception:
    """404, unless the error is of a more special kind, such as a damaged store."""
    return HttpError(404, message, "not_found") if type(error) is Refused else error


class EndpointRoute(Route):
    def __init__(self, endpoint: Endpoint, context: HttpContext) -> None:
        async def respond(request: Request) -> Response:
            return await endpoint.respond(request, context)

        super().__init__(endpoint.path, respond, methods=[endpoint.method])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As Starlette does, except that a slash written as %2F is part of a path parameter."""
        raw: bytes = scope.get("raw_path") or b""
        if b"%2f" not in raw.lower():
            return super().matches(scope)
        match, child_scope = super().matches({**scope, "path": raw.decode("latin-1")})
        parameters = {name: unquote(value) for name, value in child_scope.get("path_params", {}).items()}
        return match, {**child_scope, "path_params": parameters}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette does, with an error body of ours for a method that is not allowed."""
        if scope["method"] in (self.methods or ()):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        error = HttpError(405, f"{request.method} is not allowed for {request.url.path}", "method")
        await error_response(request, error)(scope, receive, send)


class ErrorDetail(Struct, frozen=True):
    """An error in the shape of OpenAI's API."""

    message: str
    type: str
    code: str | None
    param: str | None


class ErrorResponse(Struct, frozen=True):
    """The body of every error response."""

    error: ErrorDetail
    request_id: str


def openapi_document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The OpenAPI description of these endpoints."""
    types: dict[str, Any] = {repr(ErrorResponse): ErrorResponse}
    for one in endpoints:
        types |= {repr(kind): kind for kind in (one.body, *one.results.values()) if kind is not None}
    # What is free in our values has an empty schema: a call's arguments, a tool's own schema.
    rendered, components = msgspec.json.schema_components(
        types.values(), schema_hook=lambda kind: {}, ref_template=_REF
    )
    schemas = dict(zip(types, rendered, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = _PATH_PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(endpoint: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(endpoint.path)
    ]
    headers = [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "security": [{}, {"key": []}] if endpoint.scope == "public" else [{"key": []}],
        "parameters": [*path_parameters, *_query_parameters(endpoint.query), *headers],
        "responses": {
            **{str(status): _response(endpoint, status, schemas) for status in endpoint.results},
            "default": {"description": "Error", "content": {JSON: {"schema": schemas[repr(ErrorResponse)]}}},
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": any(one.required for one in msgspec.structs.fields(endpoint.body)),
            "content": {JSON: {"schema": schemas[repr(endpoint.body)]}},
        }
    return operation


def _response(endpoint: Endpoint, status: int, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if status == 204:
        return {"description": "No content"}
    contents: dict[str, Any] = {media_type: {"schema": {}} for media_type in endpoint.media_types}
    if (kind := endpoint.results[status]) is not None:
        contents[endpoint.media_types[0]] = {"schema": schemas[repr(kind)]}
    return {"description": "OK", "content": contents}


def _query_parameters(query: Any) -> list[dict[str, Any]]:
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
