"""JSON-RPC with a real child: requests, responses and notifications in both directions, also malformed ones."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw, Struct

from outrider.core.errors import Refused
from outrider.runtimes.jsonrpc.connection import (
    ConnectionOptions,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    parse_message,
    render_message,
    repair_unicode,
)
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.jsonrpc.process import Program, open_child
from tests.support.rpc import SCRIPT, child_program, connected, next_message, request

pytestmark = pytest.mark.anyio

STRANGE = "å€😀"


async def test_a_child_is_started_exactly_as_configured_in_a_session_of_its_own(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path, "a b", "")) as (child, connection):
        assert await request(connection, "facts") == {
            "argv": [str(SCRIPT), "a b", ""],
            "cwd": str(tmp_path),
            "environ": {"LANG": "C.UTF-8", "OUTRIDER_CHILD": child.marker},
            "pid": child.pid,
            "session": child.pid,
            "group": child.pid,
        }


async def test_responses_find_their_requests_in_any_order(tmp_path: Path) -> None:
    results: list[Any] = []

    async def ask(method: str) -> None:
        results.append(await request(connection, method, method))

    async with connected(child_program(tmp_path)) as (_, connection), anyio.create_task_group() as group:
        group.start_soon(ask, "hold")
        await anyio.wait_all_tasks_blocked()
        await ask("echo")
        group.start_soon(ask, "release")
    assert (results[0], sorted(results[1:])) == ("echo", ["late", "released"])


async def test_requests_and_notifications_of_the_child_come_in_order_and_its_ids_begin_at_zero(tmp_path: Path) -> None:
    lines = (
        '{"method":"one"}\n{"id":0,"method":"two","params":[2]}\n'
        '{"id":"x","method":"three"}\r\n{"method":"four","params":{"a":1},"emittedAtMs":5}\n'
    )
    async with connected(child_program(tmp_path)) as (_, connection):
        await connection.request("write", lines)
        assert [await next_message(connection) for _ in range(4)] == [
            ("one", None),
            (0, "two", [2]),
            ("x", "three", None),
            ("four", {"a": 1}),
        ]
        await connection.respond(0, {"decision": "accept"})
        await connection.respond_error("x", RpcError(-32601, "no such method", Raw(b"[7]")))
        await connection.notify("initialized")
        error = {"code": -32601, "message": "no such method", "data": [7]}
        assert [await next_message(connection) for _ in range(3)] == [
            ("answered", {"id": 0, "result": {"decision": "accept"}}),
            ("answered", {"id": "x", "error": error}),
            ("received", {"method": "initialized"}),
        ]


async def test_a_consumer_of_messages_can_stop_and_start_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    async with connected(child_program(tmp_path)) as (_, connection):
        await connection.request("flood", [5, 1])
        for _ in range(5):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await connection.next_message()
            async for message in connection.messages():
                seen.append(msgspec.json.decode(message.params)[0])
                break
    assert seen == [0, 1, 2, 3, 4]


async def test_the_protocol_version_is_sent_where_it_is_required(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path), ConnectionOptions(version="2.0")) as (_, connection):
        await connection.notify("hello", [1])
        assert await next_message(connection) == ("received", {"jsonrpc": "2.0", "method": "hello", "params": [1]})


async def test_an_error_is_raised_with_its_code_message_and_data(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        with pytest.raises(RpcError, match="unknown thread") as caught:
            await connection.request("fail", {"code": -32600, "message": "unknown thread", "data": {"a": 1}})
        assert (caught.value.code, caught.value.message) == (-32600, "unknown thread")
        assert bytes(caught.value.data or b"") == b'{"a": 1}'
        with pytest.raises(RpcError, match="nonsense"):
            await connection.request("fail", "nonsense")
        with pytest.raises(RpcError, match="not valid JSON-RPC"):
            await connection.request("fail", ["nonsense"])


@pytest.mark.parametrize(
    "line",
    [
        *("", "   ", "no json", "{", "[]", "null", "7", "\0\x80\xff"),
        *(
            '{"id":null}',
            '{"method":7}',
            '{"id":true,"result":1}',
            '{{"method":"x","params":{}{}}}'.format("[" * 9_000, "]" * 9_000),
        ),
        *('{"id":999,"result":1}', '{"id":"1","result":1}', '{"id":null,"error":{"code":1,"message":"x"}}'),
    ],
)
async def test_lines_that_are_no_messages_are_dropped(tmp_path: Path, line: str) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        await connection.request("write", f'{line}\n{{"method":"after"}}\n')
        assert await next_message(connection) == ("after", None)


async def test_a_request_that_cannot_be_read_is_answered_with_its_own_id(tmp_path: Path) -> None:
    lines = '{"id":[3],"method":"x"}\n{"id":7,"method":{},"params":{}}\n'
    async with connected(child_program(tmp_path)) as (_, connection):
        await connection.request("write", lines)
        first, second = await connection.next_message(), await connection.next_message()
        assert isinstance(first, RpcRequest)
        assert isinstance(second, RpcRequest)
        assert (first.method, second.method) == ("x", "")
        await connection.respond(first.id, "a")
        await connection.respond(second.id, "b")
        assert [await next_message(connection) for _ in range(2)] == [
            ("answered", {"id": [3], "result": "a"}),
            ("answered", {"id": 7, "result": "b"}),
        ]


@pytest.mark.parametrize("response", ['{"id":1}', '{"id":1,"error":null}', '{"id":"1","result":null}'])
async def test_nobody_waits_for_a_response_without_a_result_or_with_its_id_as_text(
    tmp_path: Path, response: str
) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        assert bytes(await connection.request("write", f"{response}\n")) == b"null"


async def test_a_second_response_is_dropped(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        assert await request(connection, "twice", 1) == 1
        assert await request(connection, "echo", 2) == 2


async def test_a_request_without_a_response_times_out_and_a_late_response_is_dropped(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        with pytest.raises(RequestTimeout, match=r"did not answer hold within 0\.01 s"):
            await connection.request("hold", within=0.01)
        assert await request(connection, "release") == "released"
        assert await request(connection, "echo", 3) == 3


async def test_a_cancelled_request_is_forgotten(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        async with anyio.create_task_group() as group:
            group.start_soon(connection.request, "hold")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert await request(connection, "release") == "released"


async def test_a_request_that_is_cancelled_half_written_does_not_corrupt_the_next_line(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (child, connection):
        await connection.request("nap")
        async with anyio.create_task_group() as group:
            group.start_soon(connection.request, "echo", "x" * 3_000_000)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        os.kill(child.pid, signal.SIGUSR1)
        assert await request(connection, "echo", "next") == "next"


async def test_lines_have_any_length_in_both_directions(tmp_path: Path) -> None:
    long = STRANGE * 500_000
    async with connected(child_program(tmp_path)) as (_, connection):
        assert await request(connection, "echo", long) == long
        assert await request(connection, "big", 5_000_000) == "x" * 5_000_000


async def test_characters_that_are_split_between_reads_arrive_whole(tmp_path: Path) -> None:
    async with connected(child_program(tmp_path)) as (_, connection):
        await connection.request("stutter", f'{{"method":"note","params":"{STRANGE}"}}\n')
        assert await next_message(connection) == ("note", STRANGE)


async def test_pending_requests_fail_when_the_connection_is_closed(tmp_path: Path) -> None:
    async def wait(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ProcessExited, match="was closed"):
            await call()

    async with anyio.create_task_group() as group, connected(child_program(tmp_path)) as (_, connection):
        group.start_soon(wait, lambda: connection.request("hold"))
        group.start_soon(wait, connection.next_message)
        await anyio.wait_all_tasks_blocked()


async def test_an_error_in_the_block_is_raised_unwrapped(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with connected(child_program(tmp_path)):
            raise KeyError("mine")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (Program((), Path("/"), {}), "no program to start"),
        (Program(("/none/such",), Path("/"), {}), "/none/such was not started: No such file or directory"),
        (Program(("sh\0",), Path("/"), {}), "this program cannot be started: embedded null byte"),
        (Program(("sh",), Path("/none/such"), {}), "there is no folder /none/such to start sh in"),
        (Program(("sh",), Path("/"), {}, marker=""), "a marker of at least 16"),
    ],
)
async def test_a_program_that_cannot_be_started_is_refused(what: Program, why: str) -> None:
    with pytest.raises(Refused, match=why):
        async with open_child(what):
            pass


class NamedValue(Struct):
    name: str


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ("a\ud800b", '"a�b"'),
        ("\ud83d\ude00", '"😀"'),
        ({"\udc00": [("\udfff",)]}, '{"�":[["�"]]}'),
        (NamedValue("\ud800"), '{"name":"�"}'),
        ([Raw(b'{\n"a":\r\n1}'), "\ud800"], '[{ "a":\r 1},"�"]'),
        (Raw(rb'"\ud800\\ud800"'), r'"\ufffd\\ud800"'),
        ("a\nb\u2028", '"a\\nb\u2028"'),
    ],
)
def test_a_rendered_message_is_one_line_of_valid_unicode(params: Any, line: str) -> None:
    assert render_message({"id": 1, "params": params}) == f'{{"id":1,"params":{line}}}\n'.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\uD83D\uDE00 \uD83D"', rb'"\uD83D\uDE00 \ufffd"'),
        (rb'"\ude00\ud83d\u0041"', rb'"\ufffd\ufffd\u0041"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (b'"\xe2\x82"', '"�"'.encode()),
        ('"€"'.encode(), '"€"'.encode()),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_are_kept(before: bytes, after: bytes) -> None:
    assert repair_unicode(before) == after


def test_the_kind_of_a_message_follows_from_its_fields() -> None:
    def parse(line: str) -> Any:
        message = parse_message(line.encode())
        match message:
            case RpcResponse(id=number, outcome=RpcError() as error):
                return number, str(error)
            case RpcResponse(id=number, outcome=Raw() as result):
                return number, bytes(result)
            case RpcRequest(id=number, method=method, params=params):
                return number, method, bytes(params)
            case RpcNotification(method=method, params=params):
                return method, bytes(params)
            case _:
                return None

    assert [
        parse('{"id":1,"result":null}'),
        parse('{"id":1,"result":{"a":1},"error":null}'),
        parse('{"id":1,"error":{"code":5,"message":"no"}}'),
        parse('{"id":null,"method":"m"}'),
        parse('{"id":0,"method":"m","params":[]}'),
    ] == [(1, b"null"), (1, b'{"a":1}'), (1, "no (5)"), ("m", b"null"), (0, "m", b"[]")]
