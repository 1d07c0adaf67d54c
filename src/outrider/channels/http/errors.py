"""Error responses in the shape of OpenAI's API: a status, a type, a one-line message, and the request's id."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from outrider.core.errors import HomeBusy, NameTaken, QueueFull, Refused, StoreDamaged, Unavailable
from outrider.core.text import one_line


class HttpError(Exception):
    """An error response; its text is for the client."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


QUOTA, PERMANENT_QUOTA = "insufficient_quota", "billing_hard_limit_reached"
"""A key has reached its spending limit: until the next day or month, or permanently."""
QUEUE_RETRY_SECONDS = 5
"""Seconds after which a client may try a full session again."""
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    424: "server_error",
    429: "rate_limit_error",
}


def error_body(status: int, message: str, code: str, request_id: str) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    kind = QUOTA if code in (QUOTA, PERMANENT_QUOTA) else kind
    return {"error": {"message": message, "type": kind, "code": code or None, "param": None}, "request_id": request_id}


def request_id(request: Request) -> str:
    """The id that `RequestIdMiddleware` gave this request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed. It has no traceback, path or secret."""
    status, code, headers = 500, "internal_error", dict[str, str]()
    message = "internal error; see the log for this request's id"
    match error:
        case HttpError():
            status, code, message, headers = error.status, error.code, str(error), error.headers
        case HomeBusy() | Unavailable():
            status, code, message = 503, "unavailable", str(error)
            after = getattr(error, "retry_after", None)
            headers = {"retry-after": str(max(1, int(after or 1)))}
        case StoreDamaged():
            code, message = "damaged", "the store is damaged; run `outrider doctor` on the server"
        case QueueFull():
            status, code, message, headers = 429, "queue_full", str(error), {"retry-after": str(QUEUE_RETRY_SECONDS)}
        case NameTaken():
            status, code, message = 409, "taken", str(error)
        case Refused():
            status, code, message = 400, "refused", str(error)
        case RecursionError():
            status, code, message = 400, "nested_too_deep", "the body is nested too deeply"
        case ClientDisconnect():
            status, code, message = 400, "cut_short", "the request ended before its body did"
        case _:
            pass
    body = error_body(status, one_line(message), code, request_id(request))
    return Response(msgspec.json.encode(body), status, headers, "application/json")
