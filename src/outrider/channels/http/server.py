"""The HTTP server: uvicorn's protocol in our event loop, with limits on what a client may occupy.

`BoundedConnection` extends uvicorn's `HttpToolsProtocol`, because its parser refuses requests that other parsers
accept and that could be used for request smuggling. `tests/unit/test_http_server.py` fails when a new version of
uvicorn changes what is relied on here.
"""

import asyncio
import errno
import resource
import socket
from asyncio.events import TimerHandle
from contextlib import suppress
from ipaddress import ip_address

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskStatus
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from outrider.channels.http.errors import error_body
from outrider.core.errors import Refused, Unavailable

_FLUSH_SECONDS = 0.5
"""Seconds to send what was written before the end."""
_RESERVED_FILES = 128
"""Open files reserved for everything except connections."""
_UNLIMITED = 2**30


class ServerLimits(Struct, frozen=True):
    """Limits for one connection and for all of them."""

    head_bytes: int = 65_536
    head_seconds: float = 10.0
    body_seconds: float = 120.0
    """For the whole body, however slowly it arrives."""
    leftover_bytes: int = 10 * 1024 * 1024
    leftover_seconds: float = 5.0
    """How much of a body, and for how long, may still arrive after its request was answered."""
    idle_seconds: int = 75
    """How long a connection stays open without a request."""
    unread_seconds: float = 60.0
    """How long a client may not read a response before its connection is cut."""
    connections: int = 1_000
    """When there are this many, a new one replaces the one that has been idle for longest."""
    backlog: int = 1_024


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int, backlog: int = ServerLimits().backlog) -> socket.socket:
    """Listen on a port; early clients wait in its backlog. Raises Refused or Unavailable."""
    family, address = _resolve(host, port)
    # asyncio sets TCP_NODELAY only for sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} on {host} is in use; stop the program that uses it, or choose another port with --port"
            ) from None
        raise Refused(f"port {port} on {host} cannot be used: {error.strerror}") from None
    return listener


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise Refused(f"{host!r} is not an address of this machine; use --host with one, e.g. 127.0.0.1") from None
    family, _, _, _, address = min(addresses, key=lambda each: each[0] is not socket.AF_INET)
    return family, (str(address[0]), port)


def url_of(listener: socket.socket) -> str:
    """The URL of this socket; loopback for one that listens on every address."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ignore_cancellation(app: ASGIApp) -> ASGIApp:
    """The application, without an error for requests that are cancelled at shutdown: their clients have a response."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return call


def _raise_file_limit(connections: int) -> int:
    """The number of connections that the limit on open files allows, after raising that as far as possible."""
    soft, hard = (
        _UNLIMITED if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    needed = min(connections + _RESERVED_FILES, hard)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files = max(soft, needed)
    return min(connections, max(files - _RESERVED_FILES, files // 2))


class HttpServer:
    """Serves HTTP on a socket until closed. It handles no signals."""

    def __init__(self, app: ASGIApp, listener: socket.socket, limits: ServerLimits = ServerLimits()) -> None:  # noqa: B008 (frozen)
        self._config = uvicorn.Config(
            _ignore_cancellation(app),  # pyright: ignore[reportArgumentType] (Starlette and uvicorn name the same shapes differently)
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_seconds,
        )
        self._limits = limits
        self._listener = listener
        self._state = ServerState()
        self._asyncio_server: asyncio.Server | None = None
        self._closed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until closed or cancelled, then end the requests that are left."""
        limits = replace(self._limits, connections=_raise_file_limit(self._limits.connections))
        connections: dict[BoundedConnection, None] = {}
        self._config.load()
        loop = asyncio.get_running_loop()
        self._asyncio_server = await loop.create_server(
            lambda: BoundedConnection(limits, self._config, self._state, connections),
            sock=self._listener,
            backlog=limits.backlog,
        )
        task_status.started()
        try:
            await self._closed.wait()
        finally:
            self._asyncio_server.close()
            with anyio.CancelScope(shield=True):
                await self._end_requests()

    async def close(self, grace: float) -> None:
        """Accept no new connection, wait up to `grace` seconds for requests to end, then end those that are left."""
        if self._asyncio_server:
            self._asyncio_server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        with anyio.move_on_after(grace):
            while self._state.tasks:
                await asyncio.wait(tuple(self._state.tasks))
        self._closed.set()

    async def _end_requests(self) -> None:
        connections: list[BoundedConnection] = [
            each for each in self._state.connections if isinstance(each, BoundedConnection)
        ]
        for connection in connections:
            connection.close_for_shutdown()
        requests = tuple(self._state.tasks)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        with anyio.move_on_after(_FLUSH_SECONDS):
            while self._state.connections:  # noqa: ASYNC110 (uvicorn's set raises no event)
                await anyio.sleep(_FLUSH_SECONDS / 20)
        for connection in connections:
            connection.transport.abort()


class BoundedConnection(HttpToolsProtocol):
    """One client's connection. A request that is too slow or too large gets an error, and the connection is closed."""

    def __init__(
        self, limits: ServerLimits, config: uvicorn.Config, state: ServerState, idle: "dict[BoundedConnection, None]"
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._idle_connections = idle
        """Connections without a request, the longest idle first. All connections share it."""
        self._awaits_head = True
        self._is_rejected = False
        self._overhead_bytes = 0
        """Bytes since a request began or its body last grew: the head, chunk extensions, trailers."""
        self._leftover_bytes = 0
        self._deadline: TimerHandle | None = None
        self._unread_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            if not self._idle_connections:
                self._reject(503, "too many connections are open; try again later", "busy")
                return
            next(iter(self._idle_connections)).evict()
        self._idle_connections[self] = None
        self._start_deadline(self._limits.head_seconds, "the request's head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._idle_connections.pop(self, None)
        if self._unread_timer:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._awaits_head and self._deadline is None:
            self._start_deadline(self._limits.head_seconds, "the request's head")
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._overhead_bytes > self._limits.head_bytes:
            self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._awaits_head:  # a trailer after the body is not a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head > self._limits.head_bytes:
            self._too_long()
        elif any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            self._reject(501, "the only supported transfer-encoding is chunked", "transfer_encoding")
        elif not self._target_matches_host():
            self._reject(400, "a request must name one host", "bad_host")
        else:
            self._awaits_head, self._overhead_bytes, self._leftover_bytes = False, 0, 0
            self._idle_connections.pop(self, None)
            self._start_deadline(self._limits.body_seconds, "the request's body")
            super().on_headers_complete()

    def _target_matches_host(self) -> bool:
        """Whether a request target that is a whole URL has the same host as the host header."""
        if self.url.startswith((b"/", b"*")):
            return True
        host = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        return [host.lower()] == [value.lower() for name, value in self.headers if name == b"host"]

    def on_message_complete(self) -> None:
        if self._is_rejected:
            return
        self._cancel_deadline()
        self._awaits_head, self._overhead_bytes = True, 0
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self._is_rejected:
            return
        self._overhead_bytes = 0
        if self.cycle.response_complete:
            self._leftover_bytes += len(body)
            if self._leftover_bytes > self._limits.leftover_bytes:
                self.transport.close()
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._awaits_head and self.cycle.response_complete and not self.transport.is_closing():
            self._idle_connections[self] = None
        if self._is_answered_early:
            if self.cycle.waiting_for_100_continue:  # the body may or may not come
                self.transport.close()
            self._start_deadline(self._limits.leftover_seconds, "the request's body")

    @property
    def _is_answered_early(self) -> bool:
        """Whether a request has its response before its whole body has arrived."""
        return not self._awaits_head and self.cycle.response_complete

    def _unsupported_upgrade_warning(self) -> None:
        """No warning: some clients always ask for another protocol, and get a response in this one."""

    def send_400_response(self, msg: str) -> None:
        self._reject(400, "this is not valid HTTP/1.1", "bad_request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self._limits.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer:
            self._unread_timer.cancel()
            self._unread_timer = None

    def close_for_shutdown(self) -> None:
        """Close, with an error for a request that has no response yet."""
        if not self.cycle or self.cycle.response_complete:
            self.transport.close()
            return
        self._reject(503, "Outrider is restarting; try again in a moment", "unavailable")
        self.cycle.disconnected = True  # uvicorn then sends nothing more

    def evict(self) -> None:
        """Close in favour of another connection, with an error if a request has begun."""
        self._idle_connections.pop(self, None)
        if self._overhead_bytes:
            self._reject(503, "too many connections are open; try again later", "busy")
        self.transport.close()

    def _start_deadline(self, seconds: float, what: str) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._too_slow, f"{what} took longer than {seconds:g} s")

    def _cancel_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _too_long(self) -> None:
        self._reject(431, f"a request's head may have at most {self._limits.head_bytes:,} bytes", "head_too_long")

    def _too_slow(self, what: str) -> None:
        self._deadline = None
        self._reject(408, what, "too_slow")

    def _reject(self, status: int, message: str, code: str) -> None:
        """Close, with an error response unless a response has already begun."""
        self._cancel_deadline()
        self._is_rejected = True
        if self.transport.is_closing():
            return
        has_no_response = not self.cycle or self.cycle.response_complete or not self.cycle.response_started
        if has_no_response and not (self.cycle and self._is_answered_early):
            content = msgspec.json.encode(error_body(status, message, code, ""))
            fields = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(content)
            if status == 503:
                fields += b"retry-after: 1\r\n"
            self.transport.write(STATUS_LINE[status] + fields + b"\r\n" + content)
        self.transport.close()
