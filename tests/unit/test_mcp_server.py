"""The MCP server for our tools, with raw requests: who may call it, what it answers, and its limits."""

import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from msgspec import Struct

from outrider.runtimes.mcp_server import McpLimits, McpServer, McpSession, PendingCall, ToolListing

pytestmark = pytest.mark.anyio
POKE = ToolListing("poke", "Poke it.", {"type": "object", "properties": {"a": {"type": "string"}}})


class Response(Struct, frozen=True):
    status: int
    body: Any = None


class RawClient:
    """One connection, on which anything can be sent."""

    def __init__(self, session: McpSession, stream: SocketStream) -> None:
        self._stream = stream
        self._token = session.token
        self._host = session.url.removeprefix("http://").removesuffix("/mcp")
        self._left = b""

    def head(self, *more: str, **other: str | None) -> bytes:
        """A head. A `method`, `path` or header replaces the right one, and None omits it."""
        right = {"host": self._host, "authorization": f"Bearer {self._token}", "content-type": "application/json"}
        changes = {name.replace("_", "-"): value for name, value in other.items()}
        method, path = changes.pop("method", "POST"), changes.pop("path", "/mcp")
        lines = [f"{name}: {value}" for name, value in {**right, **changes}.items() if value is not None]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *more, "", ""]).encode()

    async def send(self, content: bytes) -> None:
        await self._stream.send(content)

    async def end_input(self) -> None:
        """Send no more, and still receive."""
        await self._stream.send_eof()

    async def receive(self) -> Response:
        """The next response; status 0 when the connection was closed instead."""
        with anyio.fail_after(60):
            head = await self._until(b"\r\n\r\n")
            if not head:
                return Response(0)
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            while len(self._left) < length:
                self._left += await self._stream.receive()
            body, self._left = self._left[:length], self._left[length:]
            return Response(int(head[9:12]), json.loads(body) if body else None)

    async def _until(self, end: bytes) -> bytes:
        try:
            while end not in self._left:
                self._left += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""
        head, _, self._left = self._left.partition(end)
        return head

    async def post(self, body: bytes, **other: str | None) -> Response:
        await self.send(self.head(f"content-length: {len(body)}", **other) + body)
        return await self.receive()

    async def request(self, method: str, id: int | None = 1, **params: Any) -> Response:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        return await self.post(json.dumps(message if id is None else {**message, "id": id}).encode())

    async def poke(self, call: str = "", **args: str) -> Response:
        return await self.request("tools/call", name="poke", arguments=args, _meta={"callId": call})


@asynccontextmanager
async def open_server(limits: McpLimits | None = None) -> AsyncGenerator[McpServer]:
    async with anyio.create_task_group() as group:
        yield McpServer(group, limits)
        group.cancel_scope.cancel()


@asynccontextmanager
async def connect(session: McpSession) -> AsyncGenerator[RawClient]:
    port = int(session.url.removesuffix("/mcp").rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield RawClient(session, stream)


@asynccontextmanager
async def open_client(limits: McpLimits | None = None) -> AsyncGenerator[tuple[McpSession, RawClient]]:
    async with open_server(limits) as server:
        session = await server.open_session([POKE], "what it is for")
        async with connect(session) as client:
            yield session, client


def text_result(text: str, *, failed: bool = False) -> Response:
    return result({"content": [{"type": "text", "text": text}], "isError": failed})


def result(value: Any) -> Response:
    return Response(200, {"jsonrpc": "2.0", "id": 1, "result": value})


def answer_with(text: str) -> Callable[[PendingCall], None]:
    return lambda call: call.answer(f"{text} {call.tool} {dict(call.args)}")


async def test_a_client_initializes_lists_the_tools_and_calls_one() -> None:
    async with open_client() as (session, client):
        greeted = await client.request("initialize", protocolVersion="2025-03-26", capabilities={})
        initialized = await client.request("notifications/initialized", None)
        tools = await client.request("tools/list")
        pinged = await client.request("ping")
        with session.deliver_to(answer_with("ran")):
            ran = await client.poke("c1", a="b")
    assert (greeted.body["result"]["protocolVersion"], greeted.body["result"]["instructions"]) == (
        "2025-03-26",
        "what it is for",
    )
    assert (initialized, pinged) == (Response(202), result({}))
    assert tools == result({"tools": [{"name": "poke", "description": "Poke it.", "inputSchema": POKE.schema}]})
    assert ran == text_result("ran poke {'a': 'b'}")


async def test_an_unknown_protocol_version_is_answered_with_a_supported_one() -> None:
    async with open_client() as (_, client):
        response = await client.request("initialize", protocolVersion="1999")
    assert response.body["result"]["protocolVersion"] == "2025-06-18"


@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    ("status", "other"),
    [
        (401, {"authorization": None}),
        (401, {"authorization": "Bearer "}),
        (401, {"authorization": "Bearer wrong"}),
        (401, {"authorization": "Bearer \xff"}),
        (401, {"authorization": "Basic wrong"}),
        (421, {"host": "localhost"}),
        (421, {"host": "evil.example"}),
        (421, {"host": "127.0.0.1"}),
        (421, {"host": None}),
        (403, {"origin": "https://evil.example"}),
        (415, {"content_type": "text/plain"}),
        (415, {"content_type": None}),
        (404, {"path": "/"}),
        (404, {"path": "/mcp?token=x"}),
        (405, {"method": "GET"}),
        (405, {"method": "DELETE"}),
    ],
)
async def test_a_request_without_the_right_head_is_refused_and_nothing_runs(
    status: int, other: dict[str, str | None]
) -> None:
    async with open_client() as (session, client):
        calls: list[PendingCall] = []
        with session.deliver_to(calls.append):
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poke"}}'
            response = await client.post(body, **other)
            after = await client.receive()
    assert (response, after, calls) == (Response(status), Response(0), [])


async def test_the_token_is_checked_before_the_body_is_read() -> None:
    async with open_client() as (_, client):
        await client.send(client.head("content-length: 1000000", authorization="Bearer wrong"))
        assert await client.receive() == Response(401)


async def test_each_session_has_a_token_of_its_own_that_is_revoked_with_it() -> None:
    async with open_server() as server:
        first, second = await server.open_session([POKE], ""), await server.open_session([POKE], "")
        with first.deliver_to(answer_with("first")), second.deliver_to(answer_with("second")):
            async with connect(first) as near, connect(second) as far:
                assert (await near.poke(), await far.poke()) == (
                    text_result("first poke {}"),
                    text_result("second poke {}"),
                )
                second.close()
                assert (await near.poke(), await far.poke()) == (text_result("first poke {}"), Response(401))
    assert first.token != second.token
    assert first.url == second.url


async def test_outside_of_a_turn_a_call_fails_with_a_reason() -> None:
    async with open_client() as (session, client):
        before = await client.poke()
        with session.deliver_to(answer_with("ran")):
            pass
        after = await client.poke()
    assert before == after == text_result("not run: no turn of Outrider is running here", failed=True)


async def test_a_call_that_is_pending_when_its_turn_ends_fails_with_a_reason() -> None:
    responses: list[Response] = []
    async with open_client() as (session, client):
        came = anyio.Event()

        async def poke() -> None:
            responses.append(await client.poke("c1"))

        async with anyio.create_task_group() as group:
            with session.deliver_to(lambda _: came.set()), anyio.fail_after(60):
                group.start_soon(poke)
                await came.wait()
    assert responses == [
        text_result("the turn ended before this was done; it may or may not have happened", failed=True)
    ]


async def test_two_calls_at_once_get_their_own_answers() -> None:
    async with open_server() as server:
        session = await server.open_session([POKE], "")
        calls: list[PendingCall] = []
        responses: dict[str, Response] = {}
        both = anyio.Event()

        def deliver(call: PendingCall) -> None:
            calls.append(call)
            if len(calls) == 2:
                both.set()

        async def poke(name: str) -> None:
            async with connect(session) as client:
                responses[name] = await client.poke(name, a=name)

        with session.deliver_to(deliver), anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(poke, "x")
                group.start_soon(poke, "y")
                await both.wait()
                for call in reversed(calls):
                    call.answer(f"for {call.args['a']}")
    assert responses == {"x": text_result("for x"), "y": text_result("for y")}


async def test_a_call_that_is_sent_twice_runs_once_and_is_answered_twice() -> None:
    async with open_client() as (session, client):
        calls: list[str] = []

        def deliver(call: PendingCall) -> None:
            calls.append(call.id)
            call.answer(f"number {len(calls)}")

        with session.deliver_to(deliver):
            responses = [await client.poke("c1"), await client.poke("c1"), await client.poke("c2"), await client.poke()]
    assert responses == [
        text_result("number 1"),
        text_result("number 1"),
        text_result("number 2"),
        text_result("number 3"),
    ]
    assert calls == ["c1", "c2", ""]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell","arguments":{}}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poke","arguments":[]}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', 200, -32602),
        (b"", 400, -32700),
        (b"nonsense", 400, -32700),
        (b"[]", 400, -32700),
        (b'{"id":1,"method":"ping","params":' + b"[" * 100_000, 400, -32700),
        (b'{"id":1,"method":"ping","params":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, 400, -32700),
    ],
    ids=["method", "tool", "arguments", "nothing", "empty", "nonsense", "batch", "deep", "deep and whole"],
)
async def test_an_unknown_or_malformed_message_is_an_error_and_the_next_one_is_answered(
    body: bytes, status: int, code: int
) -> None:
    async with open_client() as (session, client):
        with session.deliver_to(answer_with("ran")):
            response = await client.post(body)
            after = await client.poke()
    assert (response.status, response.body["error"]["code"]) == (status, code)
    assert after == text_result("ran poke {}")


async def test_a_body_may_be_chunked_and_requests_may_be_pipelined() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with open_client() as (_, client):
        whole = client.head("transfer-encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(ping), ping)
        plain = client.head(f"content-length: {len(ping)}") + ping
        for piece in (whole[:30], whole[30:-8], whole[-8:] + plain + plain[:50], plain[50:]):
            await client.send(piece)
        assert [await client.receive() for _ in range(3)] == [result({})] * 3


@pytest.mark.parametrize(("length", "status"), [("10485761", 413), ("99999999999999999999", 400), ("-1", 400)])
async def test_a_body_that_is_declared_too_long_is_not_read(length: str, status: int) -> None:
    async with open_client() as (_, client):
        await client.send(client.head(f"content-length: {length}"))
        assert await client.receive() == Response(status)


async def test_a_body_that_turns_out_too_long_is_refused() -> None:
    async with open_client(McpLimits(max_body=100_000)) as (_, client):
        await client.send(client.head("transfer-encoding: chunked") + b"30d40\r\n" + b" " * 200_000)
        assert await client.receive() == Response(413)


@pytest.mark.parametrize("head", [b"POST /" + b"a" * 40_000, b"POST /mcp HTTP/1.1\r\na: " + b"b" * 40_000])
async def test_a_head_without_end_is_refused(head: bytes) -> None:
    async with open_client() as (_, client):
        await client.send(head)
        await client.send(head[-20_000:])
        assert await client.receive() == Response(431)


async def test_a_long_head_in_one_packet_is_refused() -> None:
    async with open_client() as (_, client):
        await client.send(client.head(*(f"x-{n}: {'v' * 1_000}" for n in range(30))))
        assert await client.receive() == Response(431)


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense\r\n\r\n", b"POST /mcp HTTP/1.1\r\nHost : x\r\n\r\n"],
)
async def test_what_is_not_http_is_refused(sent: bytes) -> None:
    async with open_client() as (_, client):
        await client.send(sent)
        assert (await client.receive(), await client.receive()) == (Response(400), Response(0))


async def test_corrupted_requests_do_no_harm() -> None:
    chance = random.Random(7)
    async with open_client() as (session, client):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poke","arguments":{}}}'
        right = client.head(f"content-length: {len(body)}", "connection: close") + body
        with session.deliver_to(answer_with("ran")):
            for _ in range(300):
                broken = bytearray(right)
                for _ in range(chance.randint(1, 4)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                async with connect(session) as other:
                    await other.send(bytes(broken[: chance.choice((len(broken), chance.randrange(len(broken))))]))
                    await other.end_input()
                    assert (await other.receive()).status in (0, 200, 202, 400, 401, 404, 405, 413, 415, 421, 431)
            assert await client.poke() == text_result("ran poke {}")


async def test_a_security_header_may_not_be_repeated() -> None:
    async with open_client() as (_, client):
        await client.send(client.head("authorization: Bearer wrong", "content-length: 0"))
        assert (await client.receive()).status in (400, 401)


async def test_a_request_that_never_ends_times_out() -> None:
    async with open_client(McpLimits(request_timeout=0.05)) as (_, client):
        await client.send(client.head("content-length: 100") + b"{")
        assert (await client.receive(), await client.receive()) == (Response(408), Response(0))


async def test_a_silent_connection_is_closed() -> None:
    async with open_client(McpLimits(request_timeout=0.05)) as (_, client):
        assert await client.receive() == Response(0)


async def test_connections_beyond_the_limit_are_refused_until_one_ends() -> None:
    async with open_server(McpLimits(max_connections=1)) as server:
        session = await server.open_session([POKE], "")
        async with connect(session) as client, connect(session) as other:
            assert (await client.request("ping"), await other.receive()) == (result({}), Response(503))
        with anyio.fail_after(60):
            while True:
                async with connect(session) as client:
                    if (await client.request("ping")).status == 200:
                        return


async def test_nothing_listens_before_the_first_session_and_after_the_end() -> None:
    async with open_server() as server:
        assert server.url == ""
        session = await server.open_session([POKE], "")
    with pytest.raises(OSError, match="connection attempts failed"):
        async with connect(session):
            pass
