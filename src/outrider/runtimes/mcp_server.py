"""Our tools in another program's turn, over MCP: a small server of our own process, on loopback, behind tokens.

One call of a tool of ours that came over MCP: taken by the turn it belongs to, answered once.

What is said over MCP: the few methods that a client of tools needs, and an error for every other.

As much of HTTP as the server needs, each part bounded. A request is judged by its head before its body is read.

Where other programs call our tools: one listener on loopback, opened when first needed, and a token for each guest.

A guest is one thread or session of another program. Its token says whose turn a call belongs to, and nothing else does.
"""

import hmac
import logging
import secrets
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Protocol

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


class PendingCall:
    """A call that waits for its answer. Whoever takes it answers it; the end of its turn answers what is left."""

    def __init__(self, id: str, tool: str, args: Mapping[str, object]) -> None:
        self.id = id
        """What the other program calls this call; empty when it does not say."""
        self.tool = tool
        self.args = args
        self.text = ""
        self.failed = False
        self._answered = anyio.Event()

    def answer(self, text: str, *, failed: bool = False) -> None:
        """The first answer holds."""
        if not self._answered.is_set():
            self.text, self.failed = text, failed
            self._answered.set()

    async def wait(self) -> None:
        await self._answered.wait()


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
    async def call(self, pending: PendingCall) -> PendingCall:
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


MAX_HEAD = 16 * 1024
MAX_BODY = 10 * 1024 * 1024
REQUEST_TIMEOUT = 30.0
"""Seconds for one whole request, from its first byte; and for one answer to be taken."""
_CHUNK = 64 * 1024
_LINGER = 1.0
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


class HTTPException(Exception):
    """A request that is refused with this status; the connection is closed."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status_code = status


class McpHttpRequest:
    """One request, as far as it has come."""

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.closes_connection = False
        """Whether the other side wants the connection closed after it."""
        self.error_status = 0
        self.has_head = False
        self.is_accepted = False


class _ParserCallbacks:
    """Takes what the parser finds."""

    def __init__(self) -> None:
        self.parser = HttpRequestParser(self)
        self.current: McpHttpRequest | None = None
        self.complete: deque[McpHttpRequest] = deque()

    def on_message_begin(self) -> None:
        self.current = McpHttpRequest()

    def on_url(self, url: bytes) -> None:
        if self.current:
            self.current.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.current:
            known = name.decode("latin-1").lower()
            if known in _SINGLE_HEADERS and known in self.current.headers:
                self.current.error_status = 400
            self.current.headers[known] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self.current:
            self.current.method = self.parser.get_method().decode("latin-1")
            self.current.has_head = True

    def on_body(self, piece: bytes) -> None:
        if self.current and len(self.current.body) + len(piece) > MAX_BODY:
            self.current.error_status = 413
        elif self.current:
            self.current.body += piece

    def on_message_complete(self) -> None:
        if self.current:
            self.current.closes_connection = not self.parser.should_keep_alive()
            self.complete.append(self.current)
            self.current = None


class McpHttpConnection:
    """The requests of one connection, one after the other."""

    def __init__(self, stream: ByteStream, admit: Callable[[McpHttpRequest], None]) -> None:
        """`admit` raises Unfit when a request is not to be answered; it knows its head alone."""
        self._stream = stream
        self._check_head = admit
        self._parser = _ParserCallbacks()
        self._head = 0

    async def next_request(self, patience: float) -> McpHttpRequest | None:
        """The next request; None when there is none, because the other side left or said nothing for so long.

        Raises Unfit, and what the stream raises.
        """
        with anyio.move_on_after(REQUEST_TIMEOUT if self._parser.current else patience) as scope:
            while not self._parser.complete:
                try:
                    chunk = await self._stream.receive(_CHUNK)
                except anyio.EndOfStream:
                    return None
                if self._parser.current is None:
                    scope.deadline = anyio.current_time() + REQUEST_TIMEOUT
                self._feed(chunk)
        if scope.cancelled_caught and self._parser.current:
            raise HTTPException(408)
        if not self._parser.complete:
            return None
        heard = self._parser.complete.popleft()
        self._check(heard)
        return heard

    async def respond(self, status: int, body: bytes = b"", *, is_last: bool = False) -> None:
        kind = "Content-Type: application/json\r\n" if body else ""
        closing = "Connection: close\r\n" if is_last else ""
        more = f"{_EXTRA_HEADERS.get(status, '')}{kind}{closing}Content-Length: {len(body)}\r\n\r\n"
        with anyio.move_on_after(REQUEST_TIMEOUT) as scope:
            await self._stream.send(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{more}".encode() + body)
        if scope.cancelled_caught:
            raise anyio.BrokenResourceError

    async def refuse(self, unfit: HTTPException) -> None:
        """Say so, and let it be read: to close at once would take it back while the other side still sends."""
        await self.respond(unfit.status_code, is_last=True)
        left = MAX_BODY
        with anyio.move_on_after(_LINGER):
            await self._stream.send_eof()
            while left > 0:
                left -= len(await self._stream.receive(_CHUNK))

    def _feed(self, chunk: bytes) -> None:
        before = len(self._parser.complete)
        try:
            self._parser.parser.feed_data(chunk)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise HTTPException(400) from error
        now = self._parser.current
        if len(self._parser.complete) > before or (now and now.has_head):
            self._head = 0
        else:
            self._head += len(chunk)
        if self._head > MAX_HEAD:
            raise HTTPException(431)
        if now and now.has_head:
            self._check(now)

    def _check(self, request: McpHttpRequest) -> None:
        if not request.is_accepted:
            if sum(len(name) + len(value) for name, value in request.headers.items()) > MAX_HEAD:
                raise HTTPException(431)
            length = request.headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MAX_BODY:
                raise HTTPException(413)
            self._check_head(request)
            request.is_accepted = True
        if request.error_status:
            raise HTTPException(request.error_status)


PATH = "/mcp"
MAX_CONNECTIONS = 256
IDLE_TIMEOUT = 600.0
"""Seconds a connection of a guest may be silent; longer than clients keep one for the next request."""
_MAX_CALLS = 256
_NO_TURN = "not run: no turn of Outrider is under way here"
_ENDED = "the turn ended before this was done; it may or may not have happened"
_FULL = "not run: too many calls at once"
log = logging.getLogger("outrider.mcp")


def new_token() -> str:
    """256 bits that nobody can guess."""
    return secrets.token_urlsafe(32)


class McpSession:
    """Who holds one token. Its calls are taken while a turn of it goes on, and refused in words otherwise."""

    def __init__(self, server: "McpServer", offers: Sequence[ToolListing], about: str) -> None:
        self.tools = offers
        self.instructions = about
        self.token = new_token()
        self._server = server
        self._deliver: Callable[[PendingCall], None] | None = None
        self._calls_by_id: dict[str, PendingCall] = {}
        self._pending: set[PendingCall] = set()

    @property
    def url(self) -> str:
        return self._server.url

    @contextmanager
    def deliver_to(self, take: Callable[[PendingCall], None]) -> Generator[None]:
        """Calls go to `take` until this is left; what is not answered then is told that the turn is over."""
        self._deliver = take
        try:
            yield
        finally:
            self._deliver = None
            for visit in list(self._pending):
                visit.answer(_ENDED, failed=True)

    async def call(self, pending: PendingCall) -> PendingCall:
        """One that comes twice under the same id is done once, and both are told what came of it."""
        if pending.id in self._calls_by_id:
            pending = self._calls_by_id[pending.id]
            await pending.wait()
            return pending
        if self._deliver is None or len(self._pending) >= _MAX_CALLS:
            pending.answer(_FULL if self._deliver else _NO_TURN, failed=True)
            return pending
        if pending.id:
            self._calls_by_id[pending.id] = pending
            self._evict()
        self._pending.add(pending)
        try:
            self._deliver(pending)
            await pending.wait()
        finally:
            self._pending.discard(pending)
        return pending

    def close(self) -> None:
        """The token is worth nothing from now on."""
        self._server.revoke(self)

    def _evict(self) -> None:
        for id, visit in list(self._calls_by_id.items()):
            if len(self._calls_by_id) <= _MAX_CALLS:
                return
            if visit not in self._pending:
                del self._calls_by_id[id]


class McpServer:
    """The listener and its guests."""

    def __init__(self, group: TaskGroup) -> None:
        """The listener and its connections live in this group, and end with it."""
        self.url = ""
        """Empty until somebody needed it."""
        self._group = group
        self._host = ""
        self._start_lock = anyio.Lock()
        self._sessions: dict[bytes, McpSession] = {}
        self._connections = 0

    async def open_session(self, offers: Sequence[ToolListing], about: str) -> McpSession:
        """A new guest with a token of its own. Raises OSError when there is no port to be had."""
        async with self._start_lock:
            if not self.url:
                await self._group.start(self._listen)
        guest = McpSession(self, offers, about)
        self._sessions[_digest(guest.token)] = guest
        return guest

    def revoke(self, session: McpSession) -> None:
        self._sessions.pop(_digest(session.token), None)

    async def _listen(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            self._host = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            self.url = f"http://{self._host}{PATH}"
            task_status.started()
            try:
                await listener.serve(self._handle_connection)
            except OSError as error:
                # Who comes next finds another one.
                log.warning("our tools cannot be called any more: %s", error)
                self.url = ""

    async def _handle_connection(self, stream: SocketStream) -> None:
        self._connections += 1
        talk = McpHttpConnection(stream, self._check_head)
        try:
            async with stream:
                await self._serve_requests(talk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError) as error:
            log.debug("a connection ended: %r", error)
        finally:
            self._connections -= 1

    async def _serve_requests(self, connection: McpHttpConnection) -> None:
        try:
            if self._connections > MAX_CONNECTIONS:
                log.warning("more than %d connections at once; one was refused", MAX_CONNECTIONS)
                raise HTTPException(503)
            patience = REQUEST_TIMEOUT
            while heard := await connection.next_request(patience):
                guest = self._authenticate(heard)
                status, body = await handle_message(bytes(heard.body), guest)
                await connection.respond(status, body, is_last=heard.closes_connection)
                if heard.closes_connection:
                    return
                patience = IDLE_TIMEOUT
        except HTTPException as unfit:
            await connection.refuse(unfit)

    def _check_head(self, request: McpHttpRequest) -> None:
        if request.headers.get("host") != self._host:
            raise HTTPException(421)
        if "origin" in request.headers:
            # A browser: no page has any business here.
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
        guest = self._sessions.get(_digest(token))
        if scheme.lower() != "bearer" or guest is None or not hmac.compare_digest(guest.token.encode(), _bytes(token)):
            raise HTTPException(401)
        return guest


def _digest(token: str) -> bytes:
    return blake2b(_bytes(token), digest_size=32).digest()


def _bytes(token: str) -> bytes:
    return token.encode(errors="replace")
