"""The HTTP application: which routes there are, and what every request passes before it reaches one.

Everything that is served.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.channels.http import admin, health, questions, sessions, tasks
from outrider.channels.http.errors import HttpError, error_response
from outrider.channels.http.inputs import HttpContext
from outrider.channels.http.openai import chat, models, responses


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


ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *sessions.ROUTES,
    *sessions.EVENT_ROUTES,
    *tasks.ROUTES,
    *questions.ROUTES,
    *chat.ROUTES,
    *models.ROUTES,
    *responses.ROUTES,
    *admin.ROUTES,
)
