"""A child that dies, floods, stalls or leaves processes behind: it is told at once, bounded, and nothing is left."""

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
from outrider.runtimes.jsonrpc import ProcessExited
from outrider.runtimes.jsonrpc.connection import ConnectionOptions, RpcConnection
from outrider.system.processes import new_marker, terminate_marked
from tests.support.rpc import asked, program, talking, told
from tests.support.survivors import end_all, living, survivors, until_none_survives

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7"), pytest.mark.promise("L12")]

SWIFT: Any = {"stdin_close_timeout": 0.05, "sigterm_timeout": 0.05}
KINDS = ["plain", "session", "scrubbed", "scrubbed session"]


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncGenerator[Path]:
    """At the end of the test no process is in it any more."""
    try:
        yield tmp_path
        await until_none_survives(tmp_path)
    finally:
        end_all(tmp_path)


def evidence(gone: ProcessExited) -> tuple[int | None, int, str, str]:
    return gone.code, gone.signal, gone.stderr_tail, gone.reason


async def lament(peer: RpcConnection, heard: list[Any], method: str, params: Any = None) -> None:
    """Ask, and keep how it ended."""
    try:
        heard.append(await asked(peer, method, params))
    except ProcessExited as gone:
        heard.append(evidence(gone))


@pytest.mark.parametrize(("how", "end"), [(3, (3, 0)), (0, (0, 0)), (-9, (None, 9)), (-11, (None, 11))])
async def test_a_death_in_the_middle_of_a_line_is_told_to_all_who_wait(
    folder: Path, how: int, end: tuple[int | None, int]
) -> None:
    heard: list[Any] = []
    async with talking(program(folder)) as (_, peer):
        await peer.request("flood", [2, 1])
        async with anyio.create_task_group() as group:
            for method in ("hold", "hold", "die"):
                group.start_soon(lament, peer, heard, method, how)
        assert heard == [(*end, "goodbye", "")] * 3
        # What it said before is still told, in order, and then its end, as often as it is asked for.
        assert [await told(peer), await told(peer)] == [("note", [0, "x"]), ("note", [1, "x"])]
        for attempt in (peer.next_message(), peer.request("echo"), peer.notify("x"), peer.respond(0)):
            with pytest.raises(ProcessExited) as caught:
                await attempt
            assert evidence(caught.value) == (*end, "goodbye", "")


async def test_an_end_is_noticed_though_others_hold_the_pipes_open(folder: Path) -> None:
    async with talking(program(folder)) as (_, peer):
        assert await asked(peer, "spawn", "session") in living(folder)
        with pytest.raises(ProcessExited, match=r"^python\S* was killed by SIGKILL$"):
            await peer.request("die", -9)


async def test_stderr_never_stops_a_child_and_only_its_end_is_kept(folder: Path) -> None:
    async with talking(program(folder)) as (child, peer):
        assert await asked(peer, "scold", 2_000_000) == 2_000_000
        with pytest.raises(ProcessExited) as caught:
            await peer.request("die", 1)
        assert child.stderr_tail() == caught.value.stderr_tail == "x" * (64 * 1024 - 7) + "goodbye"


async def test_a_line_that_does_not_end_is_given_up(folder: Path) -> None:
    async with talking(program(folder, max_line=1_000_000)) as (_, peer):
        assert len(await asked(peer, "big", 900_000)) == 900_000
        with pytest.raises(ProcessExited, match="wrote a line of more than 1,000,000 bytes"):
            await peer.request("big", 20_000_000)


async def test_a_child_that_stops_reading_is_given_up(folder: Path) -> None:
    heard: list[Any] = []
    async with talking(program(folder, write_timeout=0.1, **SWIFT)) as (_, peer):
        await peer.request("deaf")
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(lament, peer, heard, "echo", "x" * 1_000_000)
    assert heard == [(None, 0, "", "has read nothing of its input for 0.1 s")] * 3


async def test_a_child_that_closes_its_output_is_given_up(folder: Path) -> None:
    async with talking(program(folder, **SWIFT)) as (_, peer):
        await peer.request("mute")
        with pytest.raises(ProcessExited, match="closed its output"):
            await peer.next_message()


async def test_a_slow_owner_loses_nothing_and_costs_no_memory(folder: Path) -> None:
    async with (
        talking(program(folder), ConnectionOptions(max_queued_bytes=10_000)) as (_, peer),
        anyio.create_task_group() as group,
    ):
        group.start_soon(peer.request, "flood", [5_000, 1_000])
        assert [(await told(peer))[1][0] for _ in range(5_000)] == list(range(5_000))


async def test_beyond_a_bound_nothing_is_read_and_the_end_is_told_all_the_same(folder: Path) -> None:
    heard: list[Any] = []
    async with talking(program(folder), ConnectionOptions(max_queued_bytes=10_000)) as (child, peer):
        async with anyio.create_task_group() as group:
            group.start_soon(lament, peer, heard, "flood", [20_000, 1_000])
            await until_it_waits(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        seen = await rest(peer)
    assert heard == [(None, 9, "", "")]
    assert seen == list(range(len(seen)))
    assert 10 <= len(seen) < 2_000


async def rest(peer: RpcConnection) -> list[int]:
    """The numbers of all notes there are before its end."""
    seen: list[int] = []
    try:
        while True:
            seen.append((await told(peer))[1][0])
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
    async with talking(program(folder)) as (_, peer):
        others = {await asked(peer, "spawn", kind) for _ in range(2)}
        assert others <= living(folder).keys()
    assert survivors(folder) == []


@pytest.mark.parametrize("kind", ["plain", "session", "scrubbed"])
async def test_what_a_child_left_behind_ends_too(folder: Path, kind: str) -> None:
    async with talking(program(folder)) as (_, peer):
        other = await asked(peer, "spawn", kind)
        with pytest.raises(ProcessExited):
            await peer.request("die", -9)
        assert other in living(folder)
    assert survivors(folder) == []


async def test_a_child_that_will_not_end_is_made_to_with_all_it_started(folder: Path) -> None:
    async with talking(program(folder, "stubborn", **SWIFT)) as (_, peer):
        for kind in KINDS:
            await peer.request("spawn", kind)
    assert survivors(folder) == []


async def test_a_stopped_child_is_ended(folder: Path) -> None:
    async with talking(program(folder, **SWIFT)) as (child, peer):
        await peer.request("spawn", "session")
        os.kill(child.pid, signal.SIGSTOP)
    assert survivors(folder) == []


async def test_cancelling_whoever_speaks_with_it_ends_it_all_the_same(folder: Path) -> None:
    with anyio.CancelScope() as scope:
        async with talking(program(folder, "stubborn", **SWIFT)) as (_, peer):
            await peer.request("spawn", "scrubbed session")
            scope.cancel()
            await peer.next_message()
    assert scope.cancelled_caught
    assert survivors(folder) == []


async def test_processes_of_others_are_left_alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    async with talking(program(elsewhere)) as (stranger, beside):
        other = await asked(beside, "spawn", "session")
        async with talking(program(folder)) as (_, peer):
            await peer.request("spawn", "session")
        assert survivors(folder) == []
        assert {stranger.pid, other} <= living(elsewhere).keys()
        assert await terminate_marked(new_marker()) == 0
        assert await asked(beside, "echo", "well") == "well"
    assert survivors(elsewhere) == []


async def test_the_orphans_of_a_killed_owner_are_found_by_their_mark(folder: Path) -> None:
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


async def test_a_mark_that_would_fit_others_is_refused() -> None:
    for mark in ("", "short", "x" * 16 + "\0", "=" * 20):
        with pytest.raises(Refused, match="tells processes apart"):
            await terminate_marked(mark)
