"""The MCP server that our tools are called by, spoken to with raw requests: who may, what it knows, what it bears."""

import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from msgspec import Struct

from outrider.runtimes import mcp_server as door
from outrider.runtimes.mcp_server import McpServer, McpSession, PendingCall, ToolListing

pytestmark = pytest.mark.anyio
POKE = ToolListing("poke", "Poke it.", {"type": "object", "properties": {"a": {"type": "string"}}})


class Told(Struct, frozen=True):
    status: int
    body: Any = None


class Wire:
    """One connection, on which anything can be sent."""

    def __init__(self, guest: McpSession, stream: SocketStream) -> None:
        self._stream = stream
        self._token = guest.token
        self._host = guest.url.removeprefix("http://").removesuffix("/mcp")
        self._left = b""

    def head(self, *more: str, **other: str | None) -> bytes:
        """A head; `method`, `path` or a header that is given replaces the right one, and None leaves it out."""
        right = {"host": self._host, "authorization": f"Bearer {self._token}", "content-type": "application/json"}
        given = {name.replace("_", "-"): value for name, value in other.items()}
        method, path = given.pop("method", "POST"), given.pop("path", "/mcp")
        lines = [f"{name}: {value}" for name, value in {**right, **given}.items() if value is not None]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *more, "", ""]).encode()

    async def send(self, content: bytes) -> None:
        await self._stream.send(content)

    async def leave(self) -> None:
        """Say no more, and still listen."""
        await self._stream.send_eof()

    async def hear(self) -> Told:
        """The next answer; status 0 when the connection was closed instead."""
        with anyio.fail_after(30):
            head = await self._until(b"\r\n\r\n")
            if not head:
                return Told(0)
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            while len(self._left) < length:
                self._left += await self._stream.receive()
            body, self._left = self._left[:length], self._left[length:]
            return Told(int(head[9:12]), json.loads(body) if body else None)

    async def _until(self, end: bytes) -> bytes:
        try:
            while end not in self._left:
                self._left += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""
        found, _, self._left = self._left.partition(end)
        return found

    async def posts(self, body: bytes, **other: str | None) -> Told:
        await self.send(self.head(f"content-length: {len(body)}", **other) + body)
        return await self.hear()

    async def asks(self, method: str, id: int | None = 1, **params: Any) -> Told:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        return await self.posts(json.dumps(message if id is None else {**message, "id": id}).encode())

    async def pokes(self, call: str = "", **args: str) -> Told:
        return await self.asks("tools/call", name="poke", arguments=args, _meta={"callId": call})


@asynccontextmanager
async def opened() -> AsyncGenerator[McpServer]:
    async with anyio.create_task_group() as group:
        yield McpServer(group)
        group.cancel_scope.cancel()


@asynccontextmanager
async def dialled(guest: McpSession) -> AsyncGenerator[Wire]:
    port = int(guest.url.removesuffix("/mcp").rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield Wire(guest, stream)


@asynccontextmanager
async def visited() -> AsyncGenerator[tuple[McpSession, Wire]]:
    async with opened() as one:
        guest = await one.open_session([POKE], "what it is for")
        async with dialled(guest) as wire:
            yield guest, wire


def said(text: str, *, failed: bool = False) -> Told:
    return result({"content": [{"type": "text", "text": text}], "isError": failed})


def result(value: Any) -> Told:
    return Told(200, {"jsonrpc": "2.0", "id": 1, "result": value})


def answering(text: str) -> Callable[[PendingCall], None]:
    return lambda visit: visit.answer(f"{text} {visit.tool} {dict(visit.args)}")


async def test_a_client_is_greeted_told_of_the_tools_and_has_one_run() -> None:
    async with visited() as (guest, wire):
        greeted = await wire.asks("initialize", protocolVersion="2025-03-26", capabilities={})
        initialized = await wire.asks("notifications/initialized", None)
        listed = await wire.asks("tools/list")
        pinged = await wire.asks("ping")
        with guest.deliver_to(answering("ran")):
            ran = await wire.pokes("c1", a="b")
    assert (greeted.body["result"]["protocolVersion"], greeted.body["result"]["instructions"]) == (
        "2025-03-26",
        "what it is for",
    )
    assert (initialized, pinged) == (Told(202), result({}))
    assert listed == result({"tools": [{"name": "poke", "description": "Poke it.", "inputSchema": POKE.schema}]})
    assert ran == said("ran poke {'a': 'b'}")


async def test_a_version_that_is_not_known_is_answered_with_one_that_is() -> None:
    async with visited() as (_, wire):
        assert (await wire.asks("initialize", protocolVersion="1999")).body["result"]["protocolVersion"] == "2025-06-18"


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
async def test_who_has_no_business_here_is_refused_and_nothing_runs(status: int, other: dict[str, str | None]) -> None:
    async with visited() as (guest, wire):
        visits: list[PendingCall] = []
        with guest.deliver_to(visits.append):
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poke"}}'
            found = await wire.posts(body, **other)
            after = await wire.hear()
    assert (found, after, visits) == (Told(status), Told(0), [])


async def test_the_token_is_checked_before_any_of_the_body_is_read() -> None:
    async with visited() as (_, wire):
        await wire.send(wire.head("content-length: 1000000", authorization="Bearer wrong"))
        assert await wire.hear() == Told(401)


async def test_each_guest_has_a_token_of_its_own_and_it_ends_with_the_guest() -> None:
    async with opened() as one:
        first, second = await one.open_session([POKE], ""), await one.open_session([POKE], "")
        with first.deliver_to(answering("first")), second.deliver_to(answering("second")):
            async with dialled(first) as near, dialled(second) as far:
                assert (await near.pokes(), await far.pokes()) == (said("first poke {}"), said("second poke {}"))
                second.close()
                assert (await near.pokes(), await far.pokes()) == (said("first poke {}"), Told(401))
    assert first.token != second.token
    assert first.url == second.url


async def test_outside_of_a_turn_a_call_is_not_run_and_says_so() -> None:
    async with visited() as (guest, wire):
        before = await wire.pokes()
        with guest.deliver_to(answering("ran")):
            pass
        after = await wire.pokes()
    assert before == after == said("not run: no turn of Outrider is under way here", failed=True)


async def test_a_call_that_is_open_when_its_turn_ends_is_told_so() -> None:
    found: list[Told] = []
    async with visited() as (guest, wire):
        came = anyio.Event()

        async def poke() -> None:
            found.append(await wire.pokes("c1"))

        async with anyio.create_task_group() as group:
            with guest.deliver_to(lambda _: came.set()), anyio.fail_after(30):
                group.start_soon(poke)
                await came.wait()
    assert found == [said("the turn ended before this was done; it may or may not have happened", failed=True)]


async def test_two_calls_at_once_are_each_answered_with_their_own() -> None:
    async with opened() as one:
        guest = await one.open_session([POKE], "")
        visits: list[PendingCall] = []
        found: dict[str, Told] = {}
        both = anyio.Event()

        def take(visit: PendingCall) -> None:
            visits.append(visit)
            if len(visits) == 2:
                both.set()

        async def poke(name: str) -> None:
            async with dialled(guest) as wire:
                found[name] = await wire.pokes(name, a=name)

        with guest.deliver_to(take), anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(poke, "x")
                group.start_soon(poke, "y")
                await both.wait()
                for visit in reversed(visits):
                    visit.answer(f"for {visit.args['a']}")
    assert found == {"x": said("for x"), "y": said("for y")}


async def test_a_call_that_is_sent_twice_is_run_once_and_answered_twice() -> None:
    async with visited() as (guest, wire):
        visits: list[str] = []

        def take(visit: PendingCall) -> None:
            visits.append(visit.id)
            visit.answer(f"number {len(visits)}")

        with guest.deliver_to(take):
            told = [await wire.pokes("c1"), await wire.pokes("c1"), await wire.pokes("c2"), await wire.pokes()]
    assert told == [said("number 1"), said("number 1"), said("number 2"), said("number 3")]
    assert visits == ["c1", "c2", ""]


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
async def test_what_is_not_known_or_not_understood_is_an_error_and_the_next_is_answered(
    body: bytes, status: int, code: int
) -> None:
    async with visited() as (guest, wire):
        with guest.deliver_to(answering("ran")):
            told = await wire.posts(body)
            after = await wire.pokes()
    assert (told.status, told.body["error"]["code"]) == (status, code)
    assert after == said("ran poke {}")


async def test_a_body_may_come_in_chunks_and_requests_one_behind_the_other() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with visited() as (_, wire):
        whole = wire.head("transfer-encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(ping), ping)
        plain = wire.head(f"content-length: {len(ping)}") + ping
        for piece in (whole[:30], whole[30:-8], whole[-8:] + plain + plain[:50], plain[50:]):
            await wire.send(piece)
        assert [await wire.hear() for _ in range(3)] == [result({})] * 3


@pytest.mark.parametrize(("length", "status"), [("10485761", 413), ("99999999999999999999", 400), ("-1", 400)])
async def test_a_body_that_says_it_is_too_long_is_not_read(length: str, status: int) -> None:
    async with visited() as (_, wire):
        await wire.send(wire.head(f"content-length: {length}"))
        assert await wire.hear() == Told(status)


async def test_a_body_that_turns_out_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_BODY", 100_000)
    async with visited() as (_, wire):
        await wire.send(wire.head("transfer-encoding: chunked") + b"30d40\r\n" + b" " * 200_000)
        assert await wire.hear() == Told(413)


@pytest.mark.parametrize("head", [b"POST /" + b"a" * 40_000, b"POST /mcp HTTP/1.1\r\na: " + b"b" * 40_000])
async def test_a_head_without_end_is_refused(head: bytes) -> None:
    async with visited() as (_, wire):
        await wire.send(head)
        await wire.send(head[-20_000:])
        assert await wire.hear() == Told(431)


async def test_a_long_head_that_comes_at_once_is_refused_too() -> None:
    async with visited() as (_, wire):
        await wire.send(wire.head(*(f"x-{n}: {'v' * 1_000}" for n in range(30))))
        assert await wire.hear() == Told(431)


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense\r\n\r\n", b"POST /mcp HTTP/1.1\r\nHost : x\r\n\r\n"],
)
async def test_what_is_not_http_is_refused(sent: bytes) -> None:
    async with visited() as (_, wire):
        await wire.send(sent)
        assert (await wire.hear(), await wire.hear()) == (Told(400), Told(0))


async def test_requests_that_are_broken_anywhere_do_no_harm() -> None:
    chance = random.Random(7)
    async with visited() as (guest, wire):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poke","arguments":{}}}'
        right = wire.head(f"content-length: {len(body)}", "connection: close") + body
        with guest.deliver_to(answering("ran")):
            for _ in range(300):
                broken = bytearray(right)
                for _ in range(chance.randint(1, 4)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                async with dialled(guest) as other:
                    await other.send(bytes(broken[: chance.choice((len(broken), chance.randrange(len(broken))))]))
                    await other.leave()
                    assert (await other.hear()).status in (0, 200, 202, 400, 401, 404, 405, 413, 415, 421, 431)
            assert await wire.pokes() == said("ran poke {}")


async def test_a_header_that_decides_may_come_once() -> None:
    async with visited() as (_, wire):
        await wire.send(wire.head("authorization: Bearer wrong", "content-length: 0"))
        assert (await wire.hear()).status in (400, 401)


async def test_who_never_finishes_a_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUEST_TIMEOUT", 0.05)
    async with visited() as (_, wire):
        await wire.send(wire.head("content-length: 100") + b"{")
        assert (await wire.hear(), await wire.hear()) == (Told(408), Told(0))


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUEST_TIMEOUT", 0.05)
    async with visited() as (_, wire):
        assert await wire.hear() == Told(0)


async def test_connections_past_the_most_are_refused_and_there_is_room_again_when_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 1)
    async with opened() as one:
        guest = await one.open_session([POKE], "")
        async with dialled(guest) as wire, dialled(guest) as other:
            assert (await wire.asks("ping"), await other.hear()) == (result({}), Told(503))
        with anyio.fail_after(30):
            while True:
                async with dialled(guest) as wire:
                    if (await wire.asks("ping")).status == 200:
                        return


async def test_nothing_listens_until_a_guest_comes_and_after_it_is_closed() -> None:
    async with opened() as one:
        assert one.url == ""
        guest = await one.open_session([POKE], "")
    with pytest.raises(OSError, match="connection attempts failed"):
        async with dialled(guest):
            pass
