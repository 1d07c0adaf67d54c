"""As much of HTTP as the server needs, each part bounded. A request is judged by its head before its body is read."""

from collections import deque
from collections.abc import Callable

import anyio
from anyio.abc import ByteStream
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

LONGEST_HEAD = 16 * 1024
LONGEST_BODY = 10 * 1024 * 1024
SLOWEST = 30.0
"""Seconds for one whole request, from its first byte; and for one answer to be taken."""
_CHUNK = 64 * 1024
_LINGER = 1.0
_ONCE = frozenset({"host", "authorization", "content-length", "content-type", "origin"})
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
_MORE = {401: "WWW-Authenticate: Bearer\r\n", 405: "Allow: POST\r\n"}


class Unfit(Exception):
    """A request that is refused with this status; the connection is closed."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status = status


class Heard:
    """One request, as far as it has come."""

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_last = False
        """Whether the other side wants the connection closed after it."""
        self.fault = 0
        self.has_head = False
        self.is_admitted = False


class _Parts:
    """Takes what the parser finds."""

    def __init__(self) -> None:
        self.parser = HttpRequestParser(self)
        self.now: Heard | None = None
        self.whole: deque[Heard] = deque()

    def on_message_begin(self) -> None:
        self.now = Heard()

    def on_url(self, url: bytes) -> None:
        if self.now:
            self.now.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.now:
            known = name.decode("latin-1").lower()
            if known in _ONCE and known in self.now.headers:
                self.now.fault = 400
            self.now.headers[known] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self.now:
            self.now.method = self.parser.get_method().decode("latin-1")
            self.now.has_head = True

    def on_body(self, piece: bytes) -> None:
        if self.now and len(self.now.body) + len(piece) > LONGEST_BODY:
            self.now.fault = 413
        elif self.now:
            self.now.body += piece

    def on_message_complete(self) -> None:
        if self.now:
            self.now.is_last = not self.parser.should_keep_alive()
            self.whole.append(self.now)
            self.now = None


class Talk:
    """The requests of one connection, one after the other."""

    def __init__(self, stream: ByteStream, admit: Callable[[Heard], None]) -> None:
        """`admit` raises Unfit when a request is not to be answered; it knows its head alone."""
        self._stream = stream
        self._admit = admit
        self._parts = _Parts()
        self._head = 0

    async def next(self, patience: float) -> Heard | None:
        """The next request; None when there is none, because the other side left or said nothing for so long.

        Raises Unfit, and what the stream raises.
        """
        with anyio.move_on_after(SLOWEST if self._parts.now else patience) as scope:
            while not self._parts.whole:
                try:
                    chunk = await self._stream.receive(_CHUNK)
                except anyio.EndOfStream:
                    return None
                if self._parts.now is None:
                    scope.deadline = anyio.current_time() + SLOWEST
                self._feed(chunk)
        if scope.cancelled_caught and self._parts.now:
            raise Unfit(408)
        if not self._parts.whole:
            return None
        heard = self._parts.whole.popleft()
        self._judge(heard)
        return heard

    async def answer(self, status: int, body: bytes = b"", *, is_last: bool = False) -> None:
        kind = "Content-Type: application/json\r\n" if body else ""
        closing = "Connection: close\r\n" if is_last else ""
        more = f"{_MORE.get(status, '')}{kind}{closing}Content-Length: {len(body)}\r\n\r\n"
        with anyio.move_on_after(SLOWEST) as scope:
            await self._stream.send(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{more}".encode() + body)
        if scope.cancelled_caught:
            raise anyio.BrokenResourceError

    async def refuse(self, unfit: Unfit) -> None:
        """Say so, and let it be read: to close at once would take it back while the other side still sends."""
        await self.answer(unfit.status, is_last=True)
        left = LONGEST_BODY
        with anyio.move_on_after(_LINGER):
            await self._stream.send_eof()
            while left > 0:
                left -= len(await self._stream.receive(_CHUNK))

    def _feed(self, chunk: bytes) -> None:
        before = len(self._parts.whole)
        try:
            self._parts.parser.feed_data(chunk)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise Unfit(400) from error
        now = self._parts.now
        if len(self._parts.whole) > before or (now and now.has_head):
            self._head = 0
        else:
            self._head += len(chunk)
        if self._head > LONGEST_HEAD:
            raise Unfit(431)
        if now and now.has_head:
            self._judge(now)

    def _judge(self, heard: Heard) -> None:
        if not heard.is_admitted:
            if sum(len(name) + len(value) for name, value in heard.headers.items()) > LONGEST_HEAD:
                raise Unfit(431)
            length = heard.headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > LONGEST_BODY:
                raise Unfit(413)
            self._admit(heard)
            heard.is_admitted = True
        if heard.fault:
            raise Unfit(heard.fault)
