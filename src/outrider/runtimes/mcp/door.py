"""Where other programs call our tools: one listener on loopback, opened when first needed, and a token for each guest.

A guest is one thread or session of another program. Its token says whose turn a call belongs to, and nothing else does.
"""

import hmac
import logging
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup, TaskStatus

from outrider.runtimes.mcp.http import REQUEST_TIMEOUT, HTTPException, McpHttpConnection, McpHttpRequest
from outrider.runtimes.mcp.speech import ToolListing, handle_message
from outrider.runtimes.mcp.visit import PendingCall

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

    def __init__(self, door: "McpServer", offers: Sequence[ToolListing], about: str) -> None:
        self.tools = offers
        self.instructions = about
        self.token = new_token()
        self._server = door
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

    async def call(self, visit: PendingCall) -> PendingCall:
        """One that comes twice under the same id is done once, and both are told what came of it."""
        if visit.id in self._calls_by_id:
            visit = self._calls_by_id[visit.id]
            await visit.wait()
            return visit
        if self._deliver is None or len(self._pending) >= _MAX_CALLS:
            visit.answer(_FULL if self._deliver else _NO_TURN, failed=True)
            return visit
        if visit.id:
            self._calls_by_id[visit.id] = visit
            self._evict()
        self._pending.add(visit)
        try:
            self._deliver(visit)
            await visit.wait()
        finally:
            self._pending.discard(visit)
        return visit

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

    def revoke(self, guest: McpSession) -> None:
        self._sessions.pop(_digest(guest.token), None)

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

    async def _serve_requests(self, talk: McpHttpConnection) -> None:
        try:
            if self._connections > MAX_CONNECTIONS:
                log.warning("more than %d connections at once; one was refused", MAX_CONNECTIONS)
                raise HTTPException(503)
            patience = REQUEST_TIMEOUT
            while heard := await talk.next_request(patience):
                guest = self._authenticate(heard)
                status, body = await handle_message(bytes(heard.body), guest)
                await talk.respond(status, body, is_last=heard.closes_connection)
                if heard.closes_connection:
                    return
                patience = IDLE_TIMEOUT
        except HTTPException as unfit:
            await talk.refuse(unfit)

    def _check_head(self, heard: McpHttpRequest) -> None:
        if heard.headers.get("host") != self._host:
            raise HTTPException(421)
        if "origin" in heard.headers:
            # A browser: no page has any business here.
            raise HTTPException(403)
        self._authenticate(heard)
        if heard.path != PATH:
            raise HTTPException(404)
        if heard.method != "POST":
            raise HTTPException(405)
        if heard.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415)

    def _authenticate(self, heard: McpHttpRequest) -> McpSession:
        scheme, _, token = heard.headers.get("authorization", "").partition(" ")
        guest = self._sessions.get(_digest(token))
        if scheme.lower() != "bearer" or guest is None or not hmac.compare_digest(guest.token.encode(), _bytes(token)):
            raise HTTPException(401)
        return guest


def _digest(token: str) -> bytes:
    return blake2b(_bytes(token), digest_size=32).digest()


def _bytes(token: str) -> bytes:
    return token.encode(errors="replace")
