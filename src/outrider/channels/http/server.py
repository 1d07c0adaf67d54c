"""Listens: uvicorn's protocol in an event loop of ours, with bounds on all that a client may hold up."""

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

from outrider.channels.http.failures import error_body
from outrider.core.errors import Refused, Unavailable

_LAST_WORDS = 0.5
"""Seconds that what was written last may take to leave the machine."""
_RESERVE = 128
"""Open files that are kept for everything but connections."""
_MANY = 2**30


class Terms(Struct, frozen=True):
    """How much of us one client, and all of them together, may take."""

    head_bytes: int = 65_536
    head_seconds: float = 10.0
    body_seconds: float = 120.0
    """For the whole body, however it trickles in."""
    leftover_bytes: int = 10 * 1024 * 1024
    leftover_seconds: float = 5.0
    """How much, and how long, may still come of a body whose request has been answered."""
    idle_seconds: int = 75
    """How long a connection is kept open for a next request."""
    unread_seconds: float = 60.0
    """How long a client may leave what we send unread before it counts as gone."""
    connections: int = 1_000
    """When there are so many, the one that has asked for nothing for the longest time makes room for a new one."""
    backlog: int = 1_024


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int, backlog: int = Terms().backlog) -> socket.socket:
    """Take a port; clients that come early wait in its backlog. Raises Refused or Unavailable in words."""
    family, address = _resolve(host, port)
    # Named by its protocol, or asyncio leaves small writes waiting for one another.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} of {host} is in use; end what uses it, or name another with --port"
            ) from None
        raise Refused(f"port {port} of {host} cannot be used: {error.strerror}") from None
    return listener


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise Refused(f"{host!r} is no address of this machine; --host takes one, e.g. 127.0.0.1") from None
    family, _, _, _, address = min(found, key=lambda each: each[0] is not socket.AF_INET)
    return family, (str(address[0]), port)


def url_of(listener: socket.socket) -> str:
    """Where clients reach this socket; on every address of the machine, that is also loopback."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ended(app: ASGIApp) -> ASGIApp:
    """The application, for requests that are cancelled when the server ends: their clients have been told by then."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return call


def _make_room(connections: int) -> int:
    """How many connections there may be. More open files are asked for where the system lets us."""
    soft, hard = (_MANY if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(resource.RLIMIT_NOFILE))
    wanted = min(connections + _RESERVE, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files = max(soft, wanted)
    return min(connections, max(files - _RESERVE, files // 2))


class Server:
    """Answers requests on a socket until closed. Signals are somebody else's."""

    def __init__(self, app: ASGIApp, listener: socket.socket, terms: Terms = Terms()) -> None:  # noqa: B008 (frozen)
        self._config = uvicorn.Config(
            _ended(app),  # pyright: ignore[reportArgumentType] (Starlette and uvicorn name the same shapes differently)
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=terms.idle_seconds,
        )
        self._terms = terms
        self._listener = listener
        self._state = ServerState()
        self._quiet: dict[Connection, None] = {}
        self._accepting: asyncio.Server | None = None
        self._ending = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until closed or cancelled; then end those that are left."""
        self._terms = replace(self._terms, connections=_make_room(self._terms.connections))
        self._config.load()
        loop = asyncio.get_running_loop()
        self._accepting = await loop.create_server(self._connect, sock=self._listener, backlog=self._terms.backlog)
        task_status.started()
        try:
            await self._ending.wait()
        finally:
            self._accepting.close()
            with anyio.CancelScope(shield=True):
                await self._end_requests()

    async def close(self, grace: float) -> None:
        """Take no new connection, let requests end by themselves for so many seconds, then end those that are left."""
        if self._accepting:
            self._accepting.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        with anyio.move_on_after(grace):
            while self._state.tasks:
                await asyncio.wait(tuple(self._state.tasks))
        self._ending.set()

    def _connect(self) -> "Connection":
        return Connection(self._terms, self._config, self._state, self._quiet)

    async def _end_requests(self) -> None:
        connections: list[Connection] = [each for each in self._state.connections if isinstance(each, Connection)]
        for connection in connections:
            connection.leave()
        left = tuple(self._state.tasks)
        for request in left:
            request.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        with anyio.move_on_after(_LAST_WORDS):
            while self._state.connections:  # noqa: ASYNC110 (the set is uvicorn's, and tells nobody)
                await anyio.sleep(_LAST_WORDS / 20)
        for connection in connections:
            connection.transport.abort()


class Connection(HttpToolsProtocol):
    """One client's connection. What takes too long or grows too big is answered as an error and closed."""

    def __init__(
        self, terms: Terms, config: uvicorn.Config, state: ServerState, quiet: "dict[Connection, None]"
    ) -> None:
        super().__init__(config, state, {})
        self._terms = terms
        self._quiet = quiet
        """Those that owe us a request, the longest waiting first."""
        self._is_in_head = True
        self._is_refused = False
        self._beside = 0
        """Bytes since a request began, or since its body last grew: the head; what is between and after its pieces."""
        self._leftover = 0
        self._due: TimerHandle | None = None
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self._terms.connections:
            if not self._quiet:
                self._turn_away(503, "too many connections are open; come back later", "busy")
                return
            next(iter(self._quiet)).yield_room()
        self._quiet[self] = None
        self._allow(self._terms.head_seconds, "the request's head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._quiet.pop(self, None)
        if self._unread:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head and self._due is None:
            self._allow(self._terms.head_seconds, "the request's head")
        self._beside += len(data)
        super().data_received(data)
        if self._beside > self._terms.head_bytes:
            self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # what follows a body is no header, whatever it is called
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head > self._terms.head_bytes:
            self._too_long()
        elif any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            self._turn_away(501, "a body comes as it is, or in chunks", "transfer_encoding")
        elif not self._is_for_its_host():
            self._turn_away(400, "a request names the one host it is for", "bad_host")
        else:
            self._is_in_head, self._beside, self._leftover = False, 0, 0
            self._quiet.pop(self, None)
            self._allow(self._terms.body_seconds, "the request's body")
            super().on_headers_complete()

    def _is_for_its_host(self) -> bool:
        """Whether a target that is a whole URL names the host that the headers name."""
        if self.url.startswith((b"/", b"*")):
            return True
        host = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        return [host.lower()] == [value.lower() for name, value in self.headers if name == b"host"]

    def on_message_complete(self) -> None:
        if self._is_refused:
            return
        self._settle()
        self._is_in_head, self._beside = True, 0
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._beside = 0
        if self.cycle.response_complete:
            self._leftover += len(body)
            if self._leftover > self._terms.leftover_bytes:
                self.transport.close()
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._quiet[self] = None
        if self._is_answered_early:
            if self.cycle.waiting_for_100_continue:  # then nobody knows whether the body will come
                self.transport.close()
            self._allow(self._terms.leftover_seconds, "the request's body")

    @property
    def _is_answered_early(self) -> bool:
        """Whether a request has its answer while its body is still to come."""
        return not self._is_in_head and self.cycle.response_complete

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of: who asks for another protocol, as some clients always do, is answered in this one."""

    def send_400_response(self, msg: str) -> None:
        self._turn_away(400, "this is not HTTP/1.1 as we understand it", "bad_request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._terms.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def leave(self) -> None:
        """The server ends: say so to a client that has no answer yet, and close."""
        is_answered = not self.cycle or self.cycle.response_complete
        if is_answered:
            self.transport.close()
            return
        self._turn_away(503, "Outrider is restarting; ask again in a moment", "unavailable")
        self.cycle.disconnected = True

    def yield_room(self) -> None:
        """Leave for another connection; one that was about to ask is told so."""
        self._quiet.pop(self, None)
        if self._beside:
            self._turn_away(503, "too many connections are open; come back later", "busy")
        self.transport.close()

    def _allow(self, seconds: float, what: str) -> None:
        self._settle()
        self._due = self.loop.call_later(seconds, self._too_slow, f"{what} took longer than {seconds:g} s")

    def _settle(self) -> None:
        if self._due:
            self._due.cancel()
            self._due = None

    def _too_long(self) -> None:
        self._turn_away(431, f"a request's head has at most {self._terms.head_bytes:,} bytes", "head_too_long")

    def _too_slow(self, what: str) -> None:
        self._due = None
        self._turn_away(408, what, "too_slow")

    def _turn_away(self, status: int, message: str, code: str) -> None:
        """Answer with an error, unless an answer is under way already or was given, and close."""
        self._settle()
        self._is_refused = True
        if self.transport.is_closing():
            return
        is_owed = not self.cycle or self.cycle.response_complete or not self.cycle.response_started
        if is_owed and not (self.cycle and self._is_answered_early):
            content = msgspec.json.encode(error_body(status, message, code, ""))
            fields = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(content)
            if status == 503:
                fields += b"retry-after: 1\r\n"
            self.transport.write(STATUS_LINE[status] + fields + b"\r\n" + content)
        self.transport.close()
