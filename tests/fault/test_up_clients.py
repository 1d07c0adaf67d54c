"""Clients that are slow, greedy, silent or make no sense: each costs a bounded time and a bounded room."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.channels.http.server import Server, Terms, listen

pytestmark = pytest.mark.anyio

SHORT = Terms(head_bytes=2_000, head_seconds=0.3, body_seconds=0.5, idle_seconds=1, unread_seconds=0.5)
LONG = Terms(head_bytes=2_000)


FLOOD = 10_000 * 65_536


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with how many bytes came, on `/never` not at all."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/never":
        await receive()
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


@asynccontextmanager
async def serving(terms: Terms, echo: ASGIApp = echo) -> AsyncGenerator[tuple[Server, int]]:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = Server(echo, listener, terms)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                await group.start(server.run)
                yield server, port
                group.cancel_scope.cancel()


class Caller:
    """A socket, and nothing that would correct what is sent through it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def sends(self, content: bytes) -> None:
        await anyio.to_thread.run_sync(self.socket.sendall, content)

    async def hears(self) -> bytes:
        """Everything until the server closes."""

        def read() -> bytes:
            heard = b""
            try:
                while piece := self.socket.recv(65_536):
                    heard += piece
            except ConnectionResetError:
                pass
            return heard

        return await anyio.to_thread.run_sync(read)

    async def status(self) -> str:
        """What was answered before the connection was closed."""
        heard = await self.hears()
        return heard.split(b" ")[1].decode() if heard else "closed"


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n12345",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\n1234",
    ],
    ids=["nothing", "a letter", "an empty line", "half a head", "half a body", "half a chunk"],
)
async def test_a_request_that_does_not_come_to_its_end_is_answered_and_closed(sent: bytes) -> None:
    async with serving(SHORT) as (_, port), Caller(port) as caller:
        await caller.sends(sent)
        assert await caller.status() == "408"


@pytest.mark.promise("L7")
async def test_a_head_that_trickles_in_gets_no_more_time_than_one_that_stalls() -> None:
    async with serving(SHORT) as (_, port), Caller(port) as caller:
        heard = anyio.Event()

        async def trickle() -> None:
            await caller.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
            try:
                while not heard.is_set():
                    await caller.sends(b"x: y\r\n")
                    await anyio.sleep(0.05)
            except OSError:  # closed, as it should be
                return

        async with anyio.create_task_group() as group:
            group.start_soon(trickle)
            assert await caller.status() == "408"
            heard.set()


@pytest.mark.promise("L7")
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_head_that_is_too_long_is_refused(is_whole: bool) -> None:
    async with serving(LONG) as (_, port), Caller(port) as caller:
        head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 3_000
        await caller.sends(head + (b"\r\n\r\n" if is_whole else b""))
        assert await caller.status() == "431"


@pytest.mark.promise("L7")
@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_no_http_is_refused(sent: bytes) -> None:
    async with serving(LONG) as (_, port), Caller(port) as caller:
        await caller.sends(sent)
        assert await caller.status() == "400"


@pytest.mark.promise("L7")
async def test_more_connections_than_there_is_room_for_are_told_so() -> None:
    async with serving(replace(LONG, connections=2)) as (_, port), Caller(port) as one, Caller(port) as two:
        for caller in (one, two):
            await caller.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await anyio.to_thread.run_sync(caller.socket.recv, 65_536)).startswith(b"HTTP/1.1 200 ")
        async with Caller(port) as three:
            assert await three.status() == "503"


@pytest.mark.promise("L7")
async def test_a_client_that_reads_nothing_is_let_go() -> None:
    over = anyio.Event()

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(FLOOD // 65_536):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        over.set()

    async with serving(SHORT, flood) as (_, port), Caller(port) as caller:
        await caller.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await over.wait()
        assert len(await caller.hears()) < FLOOD


@pytest.mark.promise("L7")
async def test_requests_on_one_connection_are_answered_in_order_and_an_idle_one_is_closed() -> None:
    async with serving(SHORT) as (_, port), Caller(port) as caller:
        one = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
        await caller.sends(b"".join(one % (n, b"x" * n) for n in (1, 2, 3)))
        heard = await caller.hears()
    assert [part[:1] for part in heard.split(b"\r\n1\r\n")[1:]] == [b"1", b"2", b"3"]


@pytest.mark.promise("L12")
async def test_a_request_that_has_no_answer_when_the_server_ends_is_told_to_come_back() -> None:
    async with serving(LONG) as (server, port), Caller(port) as caller, Caller(port) as idle:
        await caller.sends(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await idle.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await anyio.to_thread.run_sync(idle.socket.recv, 65_536)
        await server.close(0.1)
        heard = await caller.hears()
        assert heard.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in heard
        assert await idle.hears() == b""
