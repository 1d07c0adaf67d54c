"""What is said over MCP: the few methods that a client of tools needs, and an error for every other."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

import outrider
from outrider.runtimes.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcNotification, RpcRequest
from outrider.runtimes.jsonrpc.wire import RpcResponse, parse_message, render_message
from outrider.runtimes.mcp.visit import PendingCall

PROTOCOL_VERSIONS = ("2025-06-18", "2025-03-26", "2025-11-25")
"""Of the protocol; the first is offered to who asks for another."""
_PARSE_ERROR = -32700


class ToolListing(Struct, frozen=True):
    """A tool as it is listed."""

    name: str
    description: str
    schema: Mapping[str, object]


class ToolHost(Protocol):
    """Whose tools they are."""

    @property
    def tools(self) -> Sequence[ToolListing]: ...
    @property
    def instructions(self) -> str: ...
    async def call(self, visit: PendingCall) -> PendingCall:
        """The call, answered: this one, or the same one that came before."""
        ...


class _InitializeParams(Struct, rename="camel"):
    protocol_version: str = ""


class _Meta(Struct, rename="camel"):
    call_id: str = ""


class _CallParams(Struct):
    name: str
    arguments: dict[str, Any] | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


async def handle_message(body: bytes, host: ToolHost) -> tuple[int, bytes]:
    """The status and the body of the answer to one message; no body for what wants no answer."""
    try:
        message = parse_message(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return 400, _error(None, _PARSE_ERROR, f"not a message of JSON-RPC: {error}")
    match message:
        case RpcNotification() | RpcResponse():
            return 202, b""
        case RpcRequest():
            return 200, await _respond(message, host)


async def _respond(request: RpcRequest, host: ToolHost) -> bytes:
    match request.method:
        case "initialize":
            return _result(request, _initialize_result(request.params, host))
        case "ping":
            return _result(request, {})
        case "tools/list":
            listed = [{"name": o.name, "description": o.description, "inputSchema": o.schema} for o in host.tools]
            return _result(request, {"tools": listed})
        case "tools/call":
            return await _call(request, host)
        case _:
            return _error(request.id, METHOD_NOT_FOUND, f"there is no method {request.method[:100]!r} here")


async def _call(request: RpcRequest, host: ToolHost) -> bytes:
    try:
        called = msgspec.json.decode(request.params, type=_CallParams)
    except (msgspec.DecodeError, RecursionError) as error:
        return _error(request.id, INVALID_PARAMS, str(error))
    if called.name not in {offer.name for offer in host.tools}:
        return _error(request.id, INVALID_PARAMS, f"there is no tool {called.name[:100]!r} here")
    named = called.meta.call_id if called.meta else ""
    visit = await host.call(PendingCall(named, called.name, called.arguments or {}))
    # Text alone: some clients show a model nothing else when there is structured content.
    return _result(request, {"content": [{"type": "text", "text": visit.text}], "isError": visit.failed})


def _initialize_result(params: Raw, host: ToolHost) -> dict[str, object]:
    try:
        wanted = msgspec.json.decode(params, type=_InitializeParams).protocol_version
    except msgspec.DecodeError:
        wanted = ""
    return {
        "protocolVersion": wanted if wanted in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "outrider", "title": "Outrider", "version": outrider.__version__},
        "instructions": host.instructions,
    }


def _result(request: RpcRequest, result: Mapping[str, object]) -> bytes:
    return render_message({"id": request.id, "result": result}, "2.0")


def _error(id: object, code: int, message: str) -> bytes:
    return render_message({"id": id, "error": {"code": code, "message": message}}, "2.0")
