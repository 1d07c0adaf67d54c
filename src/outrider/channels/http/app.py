"""The HTTP application: its endpoints, and the middleware that every request passes before it reaches one."""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.channels.http import admin, health, questions, sessions, tasks
from outrider.channels.http.endpoints import (
    ApiCall,
    Endpoint,
    EndpointRoute,
    HttpContext,
    endpoint,
    json_response,
    openapi_document,
)
from outrider.channels.http.errors import HttpError, error_response
from outrider.channels.http.openai import chat, models, responses

Middleware = Callable[[ASGIApp], ASGIApp]


class RequestIdMiddleware:
    """Gives every request an id, which its response has in `x-request-id`, and counts responses by status."""

    def __init__(self, app: ASGIApp, responses: Counter[int]) -> None:
        self._app = app
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = "req_" + secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._responses[message["status"]] += 1
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


def build_app(context: HttpContext, endpoints: Sequence[Endpoint], middleware: Sequence[Middleware]) -> ASGIApp:
    """The application over an open home. A request passes the middleware from the first to the last."""

    async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        error = HttpError(404, f"there is nothing at {request.url.path}", "not_found")
        await error_response(request, error)(scope, receive, send)

    routes = [EndpointRoute(one, context) for one in endpoints]
    # A path with a trailing slash is another path, so Starlette must not redirect it.
    app: ASGIApp = Router(routes, redirect_slashes=False, default=not_found)
    for wrap in reversed(middleware):
        app = wrap(app)
    return RequestIdMiddleware(app, context.health.responses)


@endpoint("GET", "/openapi.json", scope="read")
async def get_openapi(call: ApiCall) -> Response:
    """Describe this API in OpenAPI."""
    return json_response(openapi_document(ENDPOINTS, call.context.version))


ENDPOINTS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    get_openapi,
    *sessions.ENDPOINTS,
    *tasks.ENDPOINTS,
    *questions.ENDPOINTS,
    *chat.ENDPOINTS,
    *models.ENDPOINTS,
    *responses.ENDPOINTS,
    *admin.ENDPOINTS,
)
