"""What is said over MCP: the few methods that a client of tools needs, and an error for every other."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

import outrider
from outrider.runtimes.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Notification, Request
from outrider.runtimes.jsonrpc.wire import Answer, parse, render
from outrider.runtimes.mcp.visit import Visit

VERSIONS = ("2025-06-18", "2025-03-26", "2025-11-25")
"""Of the protocol; the first is offered to who asks for another."""
_PARSE_ERROR = -32700


class Offer(Struct, frozen=True):
    """A tool as it is listed."""

    name: str
    description: str
    schema: Mapping[str, object]


class Host(Protocol):
    """Whose tools they are."""

    @property
    def offers(self) -> Sequence[Offer]: ...
    @property
    def about(self) -> str: ...
    async def call(self, visit: Visit) -> Visit:
        """The call, answered: this one, or the same one that came before."""
        ...


class _Hello(Struct, rename="camel"):
    protocol_version: str = ""


class _Meta(Struct, rename="camel"):
    call_id: str = ""


class _Called(Struct):
    name: str
    arguments: dict[str, Any] | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


async def reply(body: bytes, host: Host) -> tuple[int, bytes]:
    """The status and the body of the answer to one message; no body for what wants no answer."""
    try:
        message = parse(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return 400, _error(None, _PARSE_ERROR, f"not a message of JSON-RPC: {error}")
    match message:
        case Notification() | Answer():
            return 202, b""
        case Request():
            return 200, await _answered(message, host)


async def _answered(request: Request, host: Host) -> bytes:
    match request.method:
        case "initialize":
            return _result(request, _greeting(request.params, host))
        case "ping":
            return _result(request, {})
        case "tools/list":
            listed = [{"name": o.name, "description": o.description, "inputSchema": o.schema} for o in host.offers]
            return _result(request, {"tools": listed})
        case "tools/call":
            return await _call(request, host)
        case _:
            return _error(request.id, METHOD_NOT_FOUND, f"there is no method {request.method[:100]!r} here")


async def _call(request: Request, host: Host) -> bytes:
    try:
        called = msgspec.json.decode(request.params, type=_Called)
    except (msgspec.DecodeError, RecursionError) as error:
        return _error(request.id, INVALID_PARAMS, str(error))
    if called.name not in {offer.name for offer in host.offers}:
        return _error(request.id, INVALID_PARAMS, f"there is no tool {called.name[:100]!r} here")
    named = called.meta.call_id if called.meta else ""
    visit = await host.call(Visit(named, called.name, called.arguments or {}))
    # Text alone: some clients show a model nothing else when there is structured content.
    return _result(request, {"content": [{"type": "text", "text": visit.text}], "isError": visit.failed})


def _greeting(params: Raw, host: Host) -> dict[str, object]:
    try:
        wanted = msgspec.json.decode(params, type=_Hello).protocol_version
    except msgspec.DecodeError:
        wanted = ""
    return {
        "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "outrider", "title": "Outrider", "version": outrider.__version__},
        "instructions": host.about,
    }


def _result(request: Request, result: Mapping[str, object]) -> bytes:
    return render({"id": request.id, "result": result}, "2.0")


def _error(id: object, code: int, message: str) -> bytes:
    return render({"id": id, "error": {"code": code, "message": message}}, "2.0")
