"""MCP server for Outrider's tools: external programs call them over HTTP on loopback, each with a token of its own.

The listener opens when it is first needed. A token belongs to one thread of an external program and decides to which
turn a call belongs. Every part of a request is bounded, and its head is checked before its body is read. The HTTP layer
is our own because uvicorn bounds neither the time of a request's head nor connections that send nothing.
"""

import hmac
import logging
import secrets
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup, TaskStatus
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Raw, Struct

import outrider
from outrider.runtimes.jsonrpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    parse_message,
    render_message,
)

PROTOCOL_VERSIONS = ("2025-06-18", "2025-03-26", "2025-11-25")
"""Supported versions of MCP; the first is offered to a client that asks for an unknown one."""
PATH = "/mcp"
_PARSE_ERROR = -32700
_MAX_CALLS = 256
"""Calls of one session that may be pending, and finished ones that are remembered."""
_CHUNK = 64 * 1024
_LINGER = 1.0
_NO_TURN = "not run: no turn of Outrider is running here"
_ENDED = "the turn ended before this was done; it may or may not have happened"
_FULL = "not run: too many calls at once"
_SINGLE_HEADERS = frozenset({"host", "authorization", "content-length", "content-type", "origin"})
_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_EXTRA_HEADERS = {401: "WWW-Authenticate: Bearer\r\n", 405: "Allow: POST\r\n"}
log = logging.getLogger("outrider.mcp")


class McpLimits(Struct, frozen=True):
    max_head: int = 16 * 1024
    max_body: int = 10 * 1024 * 1024
    max_connections: int = 256
    request_timeout: float = 30.0
    """Seconds for one whole request from its first byte, and for a response to be read."""
    idle_timeout: float = 600.0
    """Seconds between two requests of a connection; longer than clients keep one open."""


class ToolListing(Struct, frozen=True):
    """A tool as `tools/list` returns it."""

    name: str
    description: str
    schema: Mapping[str, object]


class PendingCall:
    """A tool call that waits for its answer."""

    def __init__(self, id: str, tool: str, args: Mapping[str, object]) -> None:
        self.id = id
        """The external program's id of the call; empty when it sends none."""
        self.tool = tool
        self.args = args
        self.text = ""
        self.failed = False
        self._answered = anyio.Event()

    def answer(self, text: str, *, failed: bool = False) -> None:
        """Set the answer, unless there is one."""
        if not self._answered.is_set():
            self.text, self.failed = text, failed
            self._answered.set()

    async def wait(self) -> None:
        await self._answered.wait()


class McpSession:
    """The holder of one token. Its calls run while a turn of it is running, and fail otherwise."""

    def __init__(self, server: "McpServer", tools: Sequence[ToolListing], instructions: str, token: str) -> None:
        self.tools = tools
        self.instructions = instructions
        self.token = token
        self._server = server
        self._deliver: Callable[[PendingCall], None] | None = None
        self._calls_by_id: dict[str, PendingCall] = {}
        self._pending: set[PendingCall] = set()

    @property
    def url(self) -> str:
        return self._server.url

    @contextmanager
    def deliver_to(self, deliver: Callable[[PendingCall], None]) -> Generator[None]:
        """Pass calls to `deliver` until the context is left; then the pending ones fail."""
        self._deliver = deliver
        try:
            yield
        finally:
            self._deliver = None
            for call in list(self._pending):
                call.answer(_ENDED, failed=True)

    async def call(self, call: PendingCall) -> PendingCall:
        """The call with its answer. A call that comes twice under the same id runs once, and gets one answer."""
        if call.id in self._calls_by_id:
            call = self._calls_by_id[call.id]
            await call.wait()
            return call
        if self._deliver is None or len(self._pending) >= _MAX_CALLS:
            call.answer(_FULL if self._deliver else _NO_TURN, failed=True)
            return call
        if call.id:
            self._calls_by_id[call.id] = call
            self._forget_oldest()
        self._pending.add(call)
        try:
            self._deliver(call)
            await call.wait()
        finally:
            self._pending.discard(call)
        return call

    def close(self) -> None:
        """Revoke the token."""
        self._server.revoke(self)

    def _forget_oldest(self) -> None:
        for id, call in list(self._calls_by_id.items()):
            if len(self._calls_by_id) <= _MAX_CALLS:
                return
            if call not in self._pending:
                del self._calls_by_id[id]


class _InitializeParams(Struct, rename="camel"):
    protocol_version: str = ""


class _Meta(Struct):
    """The id of a call, under the name that Codex or Claude Code gives it."""

    call_id: Any = msgspec.field(name="callId", default="")
    tool_use_id: Any = msgspec.field(name="claudecode/toolUseId", default="")

    @property
    def id(self) -> str:
        return next((id for id in (self.call_id, self.tool_use_id) if isinstance(id, str) and id), "")


class _CallParams(Struct):
    name: str
    arguments: dict[str, Any] | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


async def handle_message(body: bytes, session: McpSession) -> tuple[int, bytes]:
    """The status and body of the response to one message; the body is empty for a notification."""
    try:
        message = parse_message(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return 400, _error(None, _PARSE_ERROR, f"not a message of JSON-RPC: {error}")
    match message:
        case RpcNotification() | RpcResponse():
            return 202, b""
        case RpcRequest():
            return 200, await _respond(message, session)


async def _respond(request: RpcRequest, session: McpSession) -> bytes:
    match request.method:
        case "initialize":
            return _result(request, _initialize_result(request.params, session))
        case "ping":
            return _result(request, {})
        case "tools/list":
            tools = [
                {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
                for tool in session.tools
            ]
            return _result(request, {"tools": tools})
        case "tools/call":
            return await _call_tool(request, session)
        case _:
            return _error(request.id, METHOD_NOT_FOUND, f"there is no method {request.method[:100]!r} here")


async def _call_tool(request: RpcRequest, session: McpSession) -> bytes:
    try:
        params = msgspec.json.decode(request.params, type=_CallParams)
    except (msgspec.DecodeError, RecursionError) as error:
        return _error(request.id, INVALID_PARAMS, str(error))
    if params.name not in {tool.name for tool in session.tools}:
        return _error(request.id, INVALID_PARAMS, f"there is no tool {params.name[:100]!r} here")
    id = params.meta.id if params.meta else ""
    call = await session.call(PendingCall(id, params.name, params.arguments or {}))
    # Only text: with structured content, some clients show the model nothing else.
    return _result(request, {"content": [{"type": "text", "text": call.text}], "isError": call.failed})


def _initialize_result(params: Raw, session: McpSession) -> dict[str, object]:
    try:
        version = msgspec.json.decode(params, type=_InitializeParams).protocol_version
    except msgspec.DecodeError:
        version = ""
    return {
        "protocolVersion": version if version in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "outrider", "title": "Outrider", "version": outrider.__version__},
        "instructions": session.instructions,
    }


def _result(request: RpcRequest, result: Mapping[str, object]) -> bytes:
    return render_message({"id": request.id, "result": result}, "2.0")


def _error(id: object, code: int, message: str) -> bytes:
    return render_message({"id": id, "error": {"code": code, "message": message}}, "2.0")


class HTTPException(Exception):
    """A request that is refused with this status; the connection is closed."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status_code = status


class McpHttpRequest:
    """One request, as far as it was received."""

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.closes_connection = False
        """Whether the client wants the connection closed after it."""
        self.error_status = 0
        self.has_head = False

    def add_path(self, part: bytes) -> None:
        self.path += part.decode("latin-1")

    def add_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in _SINGLE_HEADERS and key in self.headers:
            self.error_status = 400
        self.headers[key] = value.decode("latin-1").strip()

    def end_head(self, method: str) -> None:
        self.method = method
        self.has_head = True

    def add_body(self, part: bytes, limit: int) -> None:
        if len(self.body) + len(part) > limit:
            self.error_status = 413
        else:
            self.body += part

    def end(self, *, closes_connection: bool) -> None:
        self.closes_connection = closes_connection


class _RequestParser:
    """Callbacks of the parser: collects requests."""

    def __init__(self, max_body: int) -> None:
        self._parser = HttpRequestParser(self)
        self._max_body = max_body
        self.current: McpHttpRequest | None = None
        self.complete: deque[McpHttpRequest] = deque()

    def feed(self, chunk: bytes) -> None:
        """Raises HTTPException for what is not HTTP."""
        try:
            self._parser.feed_data(chunk)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise HTTPException(400) from error

    def on_message_begin(self) -> None:
        self.current = McpHttpRequest()

    def on_url(self, url: bytes) -> None:
        if self.current:
            self.current.add_path(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.current:
            self.current.add_header(name, value)

    def on_headers_complete(self) -> None:
        if self.current:
            self.current.end_head(self._parser.get_method().decode("latin-1"))

    def on_body(self, part: bytes) -> None:
        if self.current:
            self.current.add_body(part, self._max_body)

    def on_message_complete(self) -> None:
        if self.current:
            self.current.end(closes_connection=not self._parser.should_keep_alive())
            self.complete.append(self.current)
            self.current = None


class McpHttpConnection:
    """The requests of one connection, one after the other."""

    def __init__(self, stream: ByteStream, check_head: Callable[[McpHttpRequest], None], limits: McpLimits) -> None:
        """`check_head` raises HTTPException when a request is refused because of its head."""
        self._stream = stream
        self._check_head = check_head
        self._limits = limits
        self._parser = _RequestParser(limits.max_body)
        self._head_size = 0
        self._accepted: McpHttpRequest | None = None
        """The request whose head was checked last."""

    async def next_request(self, within: float) -> McpHttpRequest | None:
        """The next request; None when the client closed the connection or sent nothing within this many seconds.

        Raises HTTPException, and what the stream raises.
        """
        if not self._parser.complete and self._parser.current is None:
            with anyio.move_on_after(within) as scope:
                if not await self._read():
                    return None
            if scope.cancelled_caught:
                return None
        with anyio.move_on_after(self._limits.request_timeout):
            while not self._parser.complete:
                if not await self._read():
                    return None
        if self._parser.complete:
            request = self._parser.complete.popleft()
            self._check(request)
            return request
        if self._parser.current:
            raise HTTPException(408)
        return None

    async def respond(self, status: int, body: bytes = b"", *, is_last: bool = False) -> None:
        content_type = "Content-Type: application/json\r\n" if body else ""
        close = "Connection: close\r\n" if is_last else ""
        headers = f"{_EXTRA_HEADERS.get(status, '')}{content_type}{close}Content-Length: {len(body)}\r\n\r\n"
        with anyio.move_on_after(self._limits.request_timeout) as scope:
            await self._stream.send(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{headers}".encode() + body)
        if scope.cancelled_caught:
            raise anyio.BrokenResourceError

    async def refuse(self, status: int) -> None:
        """Respond with an error, and wait until it can be read: closing at once would discard it."""
        await self.respond(status, is_last=True)
        left = self._limits.max_body
        with anyio.move_on_after(_LINGER):
            await self._stream.send_eof()
            while left > 0:
                left -= len(await self._stream.receive(_CHUNK))

    async def _read(self) -> bool:
        """Read and parse some bytes. False when the client has closed the connection."""
        try:
            chunk = await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            return False
        before = len(self._parser.complete)
        self._parser.feed(chunk)
        current = self._parser.current
        if len(self._parser.complete) > before or (current and current.has_head):
            self._head_size = 0
        else:
            self._head_size += len(chunk)
        if self._head_size > self._limits.max_head:
            raise HTTPException(431)
        if current and current.has_head:
            self._check(current)
        return True

    def _check(self, request: McpHttpRequest) -> None:
        if request is not self._accepted:
            if sum(len(name) + len(value) for name, value in request.headers.items()) > self._limits.max_head:
                raise HTTPException(431)
            length = request.headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > self._limits.max_body:
                raise HTTPException(413)
            self._check_head(request)
            self._accepted = request
        if request.error_status:
            raise HTTPException(request.error_status)


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


class McpServer:
    """The listener and its sessions."""

    def __init__(
        self, group: TaskGroup, limits: McpLimits | None = None, create_token: Callable[[], str] = new_token
    ) -> None:
        """The listener and its connections run in this group."""
        self._url = ""
        self._group = group
        self._limits = limits or McpLimits()
        self._create_token = create_token
        self._host = ""
        self._start_lock = anyio.Lock()
        self._sessions: dict[bytes, McpSession] = {}
        self._connections = 0

    @property
    def url(self) -> str:
        """Empty until the first session was opened."""
        return self._url

    async def open_session(self, tools: Sequence[ToolListing], instructions: str) -> McpSession:
        """A new session with a token of its own. Raises OSError when no port is available."""
        async with self._start_lock:
            if not self._url:
                await self._group.start(self._listen)
        session = McpSession(self, tools, instructions, self._create_token())
        self._sessions[_digest(session.token)] = session
        return session

    def revoke(self, session: McpSession) -> None:
        self._sessions.pop(_digest(session.token), None)

    async def _listen(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            self._host = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            self._url = f"http://{self._host}{PATH}"
            task_status.started()
            try:
                await listener.serve(self._handle_connection)
            except OSError as error:
                # The next session opens another listener.
                log.warning("the MCP server stopped: %s", error)
                self._url = ""

    async def _handle_connection(self, stream: SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                await self._serve_requests(McpHttpConnection(stream, self._check_head, self._limits))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError) as error:
            log.debug("a connection ended: %r", error)
        finally:
            self._connections -= 1

    async def _serve_requests(self, connection: McpHttpConnection) -> None:
        try:
            if self._connections > self._limits.max_connections:
                log.warning("more than %d connections at once; one was refused", self._limits.max_connections)
                raise HTTPException(503)
            within = self._limits.request_timeout
            while request := await connection.next_request(within):
                session = self._authenticate(request)
                status, body = await handle_message(bytes(request.body), session)
                await connection.respond(status, body, is_last=request.closes_connection)
                if request.closes_connection:
                    return
                within = self._limits.idle_timeout
        except HTTPException as error:
            await connection.refuse(error.status_code)

    def _check_head(self, request: McpHttpRequest) -> None:
        if request.headers.get("host") != self._host:
            raise HTTPException(421)
        if "origin" in request.headers:
            # From a browser: no web page may use this server.
            raise HTTPException(403)
        self._authenticate(request)
        if request.path != PATH:
            raise HTTPException(404)
        if request.method != "POST":
            raise HTTPException(405)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415)

    def _authenticate(self, request: McpHttpRequest) -> McpSession:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        session = self._sessions.get(_digest(token))
        if (
            scheme.lower() != "bearer"
            or session is None
            or not hmac.compare_digest(session.token.encode(), _bytes(token))
        ):
            raise HTTPException(401)
        return session


def _digest(token: str) -> bytes:
    return blake2b(_bytes(token), digest_size=32).digest()


def _bytes(token: str) -> bytes:
    return token.encode(errors="replace")
