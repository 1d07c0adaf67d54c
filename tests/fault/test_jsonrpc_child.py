"""A child that dies, floods, stalls or leaves processes behind: noticed at once, bounded, and nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from outrider.core.errors import Refused
from outrider.runtimes.jsonrpc.connection import ConnectionOptions, RpcConnection
from outrider.runtimes.jsonrpc.errors import ProcessExited
from outrider.system.processes import new_marker, terminate_marked
from tests.support.rpc import child_program, connected, next_message, request
from tests.support.survivors import end_all, living, survivors, until_none_survives

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7"), pytest.mark.promise("L12")]

SWIFT: Any = {"stdin_close_timeout": 0.05, "sigterm_timeout": 0.05}
KINDS = ["plain", "session", "scrubbed", "scrubbed session"]


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncGenerator[Path]:
    """At the end of the test, no process of it is left."""
    try:
        yield tmp_path
        await until_none_survives(tmp_path)
    finally:
        end_all(tmp_path)


def evidence(exited: ProcessExited) -> tuple[int | None, int, str, str]:
    return exited.code, exited.signal, exited.stderr_tail, exited.reason


async def request_or_exit(connection: RpcConnection, outcomes: list[Any], method: str, params: Any = None) -> None:
    """Send a request and record its outcome."""
    try:
        outcomes.append(await request(connection, method, params))
    except ProcessExited as exited:
        outcomes.append(evidence(exited))


@pytest.mark.parametrize(("how", "end"), [(3, (3, 0)), (0, (0, 0)), (-9, (None, 9)), (-11, (None, 11))])
async def test_an_exit_in_the_middle_of_a_line_ends_every_pending_request(
    folder: Path, how: int, end: tuple[int | None, int]
) -> None:
    outcomes: list[Any] = []
    async with connected(child_program(folder)) as (_, connection):
        await connection.request("flood", [2, 1])
        async with anyio.create_task_group() as group:
            for method in ("hold", "hold", "die"):
                group.start_soon(request_or_exit, connection, outcomes, method, how)
        assert outcomes == [(*end, "goodbye", "")] * 3
        # Earlier messages are still delivered in order, and then every use reports the exit.
        assert [await next_message(connection), await next_message(connection)] == [
            ("note", [0, "x"]),
            ("note", [1, "x"]),
        ]
        for attempt in (
            connection.next_message(),
            connection.request("echo"),
            connection.notify("x"),
            connection.respond(0),
        ):
            with pytest.raises(ProcessExited) as caught:
                await attempt
            assert evidence(caught.value) == (*end, "goodbye", "")


async def test_an_exit_is_noticed_though_other_processes_hold_the_pipes_open(folder: Path) -> None:
    async with connected(child_program(folder)) as (_, connection):
        assert await request(connection, "spawn", "session") in living(folder)
        with pytest.raises(ProcessExited, match=r"^python\S* was killed by SIGKILL$"):
            await connection.request("die", -9)


async def test_stderr_never_blocks_a_child_and_only_its_end_is_kept(folder: Path) -> None:
    async with connected(child_program(folder)) as (child, connection):
        assert await request(connection, "scold", 2_000_000) == 2_000_000
        with pytest.raises(ProcessExited) as caught:
            await connection.request("die", 1)
        assert child.stderr_tail() == caught.value.stderr_tail == "x" * (64 * 1024 - 7) + "goodbye"


async def test_a_line_that_does_not_end_is_given_up(folder: Path) -> None:
    async with connected(child_program(folder, max_line=1_000_000)) as (_, connection):
        assert len(await request(connection, "big", 900_000)) == 900_000
        with pytest.raises(ProcessExited, match="wrote a line of more than 1,000,000 bytes"):
            await connection.request("big", 20_000_000)


async def test_a_child_that_stops_reading_is_given_up(folder: Path) -> None:
    outcomes: list[Any] = []
    async with connected(child_program(folder, write_timeout=0.1, **SWIFT)) as (_, connection):
        await connection.request("deaf")
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(request_or_exit, connection, outcomes, "echo", "x" * 1_000_000)
    assert outcomes == [(None, 0, "", "has not read its input for 0.1 s")] * 3


async def test_a_child_that_closes_its_output_is_given_up(folder: Path) -> None:
    async with connected(child_program(folder, **SWIFT)) as (_, connection):
        await connection.request("mute")
        with pytest.raises(ProcessExited, match="closed its output"):
            await connection.next_message()


async def test_a_slow_consumer_loses_no_message_and_memory_stays_bounded(folder: Path) -> None:
    async with (
        connected(child_program(folder), ConnectionOptions(max_queued_bytes=10_000)) as (_, connection),
        anyio.create_task_group() as group,
    ):
        group.start_soon(connection.request, "flood", [5_000, 1_000])
        assert [(await next_message(connection))[1][0] for _ in range(5_000)] == list(range(5_000))


async def test_beyond_the_limit_nothing_is_read_and_the_exit_is_still_noticed(folder: Path) -> None:
    outcomes: list[Any] = []
    async with connected(child_program(folder), ConnectionOptions(max_queued_bytes=10_000)) as (child, connection):
        async with anyio.create_task_group() as group:
            group.start_soon(request_or_exit, connection, outcomes, "flood", [20_000, 1_000])
            await until_it_waits(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        seen = await rest(connection)
    assert outcomes == [(None, 9, "", "")]
    assert seen == list(range(len(seen)))
    assert 10 <= len(seen) < 2_000


async def rest(connection: RpcConnection) -> list[int]:
    """The numbers of all notes before its exit."""
    seen: list[int] = []
    try:
        while True:
            seen.append((await next_message(connection))[1][0])
    except ProcessExited:
        return seen


async def until_it_waits(pid: int) -> None:
    """Until it has written something, and writes no more."""
    written, same = 0, 0
    while same < 25:
        await anyio.sleep(0.004)
        now = int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
        same = same + 1 if now == written and now > 10_000 else 0
        written = now


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_child_started_ends_with_it(folder: Path, kind: str) -> None:
    async with connected(child_program(folder)) as (_, connection):
        others = {await request(connection, "spawn", kind) for _ in range(2)}
        assert others <= living(folder).keys()
    assert survivors(folder) == []


@pytest.mark.parametrize("kind", ["plain", "session", "scrubbed"])
async def test_processes_that_a_dead_child_left_end_too(folder: Path, kind: str) -> None:
    async with connected(child_program(folder)) as (_, connection):
        other = await request(connection, "spawn", kind)
        with pytest.raises(ProcessExited):
            await connection.request("die", -9)
        assert other in living(folder)
    assert survivors(folder) == []


async def test_a_child_that_ignores_signals_is_killed_with_everything_it_started(folder: Path) -> None:
    async with connected(child_program(folder, "stubborn", **SWIFT)) as (_, connection):
        for kind in KINDS:
            await connection.request("spawn", kind)
    assert survivors(folder) == []


async def test_a_stopped_child_is_ended(folder: Path) -> None:
    async with connected(child_program(folder, **SWIFT)) as (child, connection):
        await connection.request("spawn", "session")
        os.kill(child.pid, signal.SIGSTOP)
    assert survivors(folder) == []


async def test_cancelling_the_connection_ends_the_child(folder: Path) -> None:
    with anyio.CancelScope() as scope:
        async with connected(child_program(folder, "stubborn", **SWIFT)) as (_, connection):
            await connection.request("spawn", "scrubbed session")
            scope.cancel()
            await connection.next_message()
    assert scope.cancelled_caught
    assert survivors(folder) == []


async def test_processes_of_others_are_left_alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    async with connected(child_program(elsewhere)) as (stranger, beside):
        other = await request(beside, "spawn", "session")
        async with connected(child_program(folder)) as (_, connection):
            await connection.request("spawn", "session")
        assert survivors(folder) == []
        assert {stranger.pid, other} <= living(elsewhere).keys()
        assert await terminate_marked(new_marker()) == 0
        assert await request(beside, "echo", "well") == "well"
    assert survivors(elsewhere) == []


async def test_the_orphans_of_a_killed_owner_are_found_by_their_marker(folder: Path) -> None:
    mark = new_marker()
    with owner_of(folder, mark) as owner:
        assert owner.stdout
        assert await anyio.to_thread.run_sync(owner.stdout.readline) == b"ready\n"
        owner.kill()
    assert survivors(folder) != []
    with anyio.fail_after(60):
        assert await terminate_marked(mark) >= 3
        assert await terminate_marked(mark) == 0
    assert survivors(folder) == []


def owner_of(folder: Path, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen((sys.executable, "-m", "tests.support.rpc", folder, mark), stdout=subprocess.PIPE)


async def test_a_marker_that_other_processes_could_have_is_refused() -> None:
    for mark in ("", "short", "x" * 16 + "\0", "=" * 20):
        with pytest.raises(Refused, match="tells processes apart"):
            await terminate_marked(mark)
