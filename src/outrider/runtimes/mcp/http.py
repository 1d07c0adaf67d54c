"""As much of HTTP as the server needs, each part bounded. A request is judged by its head before its body is read."""

from collections import deque
from collections.abc import Callable

import anyio
from anyio.abc import ByteStream
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

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

    def _check(self, heard: McpHttpRequest) -> None:
        if not heard.is_accepted:
            if sum(len(name) + len(value) for name, value in heard.headers.items()) > MAX_HEAD:
                raise HTTPException(431)
            length = heard.headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MAX_BODY:
                raise HTTPException(413)
            self._check_head(heard)
            heard.is_accepted = True
        if heard.error_status:
            raise HTTPException(heard.error_status)
