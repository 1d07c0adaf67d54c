"""Clients that are slow, greedy, silent or invalid: each costs limited time and memory."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.channels.http.server import HttpServer, ServerLimits, listen

pytestmark = pytest.mark.anyio

SHORT = ServerLimits(head_bytes=2_000, head_seconds=0.3, body_seconds=0.5, idle_seconds=1, unread_seconds=0.5)
LONG = ServerLimits(head_bytes=2_000)


FLOOD = 10_000 * 65_536


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the number of received bytes; on `/never`, do not respond."""
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
async def serving(limits: ServerLimits, echo: ASGIApp = echo) -> AsyncGenerator[tuple[HttpServer, int]]:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = HttpServer(echo, listener, limits)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                await group.start(server.run)
                yield server, port
                group.cancel_scope.cancel()


class Caller:
    """A socket without anything that would correct what is sent."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def sends(self, content: bytes) -> None:
        await anyio.to_thread.run_sync(self.socket.sendall, content)

    async def hears(self) -> bytes:
        """Everything until the server closes."""

        def read() -> bytes:
            received = b""
            try:
                while piece := self.socket.recv(65_536):
                    received += piece
            except ConnectionResetError:
                pass
            return received

        return await anyio.to_thread.run_sync(read)

    async def hears_some(self) -> bytes:
        return await anyio.to_thread.run_sync(self.socket.recv, 65_536)

    async def status(self) -> str:
        """The status before the connection was closed."""
        received = await self.hears()
        return received.split(b" ")[1].decode() if received else "closed"


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
async def test_an_unfinished_request_gets_408_and_is_closed(sent: bytes) -> None:
    async with serving(SHORT) as (_, port), Caller(port) as caller:
        await caller.sends(sent)
        assert await caller.status() == "408"


@pytest.mark.promise("L7")
async def test_a_slow_head_gets_no_more_time_than_a_stalled_one() -> None:
    async with serving(SHORT) as (_, port), Caller(port) as caller:
        received = anyio.Event()

        async def trickle() -> None:
            await caller.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
            try:
                while not received.is_set():
                    await caller.sends(b"x: y\r\n")
                    await anyio.sleep(0.05)
            except OSError:  # closed, as it should be
                return

        async with anyio.create_task_group() as group:
            group.start_soon(trickle)
            assert await caller.status() == "408"
            received.set()


@pytest.mark.promise("L7")
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_head_that_is_too_long_is_refused(is_whole: bool) -> None:
    async with serving(LONG) as (_, port), Caller(port) as caller:
        head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 3_000
        await caller.sends(head + (b"\r\n\r\n" if is_whole else b""))
        assert await caller.status() == "431"


@pytest.mark.promise("L7")
@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_invalid_http_is_refused(sent: bytes) -> None:
    async with serving(LONG) as (_, port), Caller(port) as caller:
        await caller.sends(sent)
        assert await caller.status() == "400"


@pytest.mark.promise("L7")
async def test_connections_beyond_the_limit_get_503() -> None:
    begun, end = anyio.Semaphore(0), anyio.Event()

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        begun.release()
        await end.wait()
        await echo(scope, receive, send)

    limits = replace(LONG, connections=2)
    async with serving(limits, busy) as (_, port), Caller(port) as one, Caller(port) as two:
        for caller in (one, two):
            await caller.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await begun.acquire()
        async with Caller(port) as three:
            assert await three.status() == "503"
        end.set()
        for caller in (one, two):
            assert (await caller.hears_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("L7")
async def test_an_idle_connection_is_replaced_by_a_new_one() -> None:
    request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with serving(replace(LONG, connections=2)) as (_, port), Caller(port) as first, Caller(port) as slow:
        await first.sends(request)
        assert (await first.hears_some()).startswith(b"HTTP/1.1 200 ")
        await slow.sends(b"GET / HT")
        async with Caller(port) as third, Caller(port) as fourth:
            for caller in (third, fourth):
                await caller.sends(request)
                assert (await caller.hears_some()).startswith(b"HTTP/1.1 200 ")
            assert await first.hears() == b""
            assert (await slow.hears())[:13] in (b"", b"HTTP/1.1 503 ")  # 503 if its request had begun to arrive


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    ("after", "status"),
    [
        (b"0\r\nx: " + b"x" * 3_000, "431"),
        (b"0\r\n" + b"x: y\r\n" * 500, "431"),
        (b"1;" + b"x" * 3_000, "431"),
        (b"0\r\nhost: elsewhere\r\n\r\n", "200"),
    ],
    ids=["a long trailer", "many trailers", "a long extension", "a trailer"],
)
async def test_chunk_extensions_and_trailers_are_limited_and_are_not_headers(after: bytes, status: str) -> None:
    async def headers(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        is_same = [name for name, _ in scope["headers"]] == [b"host", b"transfer-encoding"]
        await send({"type": "http.response.start", "status": 200 if is_same else 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(LONG, headers) as (_, port), Caller(port) as caller:
        await caller.sends(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await anyio.sleep(0.05)  # so that it arrives after the body; the result is the same if it does not
        await caller.sends(after)
        assert (await caller.hears_some()).split(b" ")[1].decode() == status


@pytest.mark.promise("L7")
async def test_a_client_that_sends_on_after_the_response_is_cut_and_gets_no_second_response() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    limits = replace(LONG, leftover_bytes=100_000, leftover_seconds=0.3)
    async with serving(limits, refuse) as (_, port):
        async with Caller(port) as patient:
            for _ in range(2):
                await patient.sends(head % 50_000)
                assert (await patient.hears_some()).startswith(b"HTTP/1.1 401 ")
                await patient.sends(b"x" * 50_000)
        async with Caller(port) as endless:
            await endless.sends(head % 10**9)
            sent = 0
            with suppress(OSError):
                while sent < 10**9:
                    await endless.sends(b"x" * 65_536)
                    sent += 65_536
            assert sent < 10**8
        async with Caller(port) as silent:
            await silent.sends(head % 10)
            assert (await silent.hears()).count(b"HTTP/1.1 ") == 1
        async with Caller(port) as asking:
            await asking.sends(head.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n") % 10)
            assert (await asking.hears()).count(b"HTTP/1.1 ") == 1


@pytest.mark.promise("L7")
async def test_a_client_that_reads_nothing_is_disconnected() -> None:
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
    async with serving(replace(LONG, idle_seconds=1)) as (_, port), Caller(port) as caller:
        one = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
        await caller.sends(b"".join(one % (n, b"x" * n) for n in (1, 2, 3)))
        received = await caller.hears()
    assert [part[:1] for part in received.split(b"\r\n1\r\n")[1:]] == [b"1", b"2", b"3"]


@pytest.mark.promise("L12")
async def test_a_request_without_a_response_when_the_server_ends_gets_503() -> None:
    async with serving(LONG) as (server, port), Caller(port) as caller, Caller(port) as idle:
        await caller.sends(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await idle.sends(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await idle.hears_some()
        await server.close(0.1)
        received = await caller.hears()
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in received
        assert await idle.hears() == b""
