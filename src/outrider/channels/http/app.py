"""The HTTP application: which routes there are, and what every request passes before it reaches one."""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.channels.http.context import HttpContext
from outrider.channels.http.failures import HttpError, error_response
from outrider.channels.http.openapi import EndpointSpec, RouteOperation

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


class RequestIdMiddleware:
    """Gives every request an id, told in `x-request-id`, and counts how requests were answered."""

    def __init__(self, app: ASGIApp, answers: Counter[int]) -> None:
        self._app = app
        self._responses = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = "req_" + secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = name

        async def named(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                self._responses[int(str(message["status"]))] += 1
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]  # type: ignore[misc]
            await send(message)

        await self._app(scope, receive, named)  # type: ignore[arg-type]


def build_app(context: HttpContext, routes: Sequence[Route], guards: Sequence[Callable[[ASGIApp], ASGIApp]]) -> ASGIApp:
    """The application over an open home. Guards are passed from the first to the last, then a route is found."""

    async def missing(request: Request, error: Exception) -> Response:
        return error_response(request, HttpError(404, f"there is nothing at {request.url.path}", "not_found"))

    async def wrong_method(request: Request, error: Exception) -> Response:
        return error_response(request, HttpError(405, f"{request.method} is not for {request.url.path}", "method"))

    app = Starlette(routes=list(routes), exception_handlers={404: missing, 405: wrong_method})
    app.router.redirect_slashes = False  # a path with a slash too many is nothing's path, not a way to another
    app.state.context = context
    whole: ASGIApp = app
    for guard in reversed(guards):
        whole = guard(whole)
    return RequestIdMiddleware(whole, context.health.responses)
