"""The process pool, with agents of both runtimes: reused between turns, ended when idle or too many."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.config.load import load
from outrider.core.store_port import Session
from outrider.runtimes.acp.connection import open_agent
from outrider.runtimes.codex.app_server import AppServer, open_app_server
from outrider.runtimes.codex.launch import codex_program
from outrider.runtimes.external.process_pool import (
    MAX_IDLE,
    PooledProcess,
    PoolKey,
    ProcessPool,
    key_by_person,
    marker_of,
)
from outrider.runtimes.jsonrpc.process import Program, open_child
from outrider.system.task_groups import background_group
from tests.support.acp import PATIENCE, World
from tests.support.scripted_codex import ScriptedCodex
from tests.support.survivors import end_all, living, until_none_survives

pytestmark = pytest.mark.anyio
OpenPool = Callable[[Path, float], AbstractAsyncContextManager[ProcessPool[Any]]]


@asynccontextmanager
async def acp_pool(folder: Path, idle_timeout: float) -> AsyncGenerator[ProcessPool[Any]]:
    world = World(folder)
    argv = tuple(world.command().split())

    def open_process(key: PoolKey, marker: str) -> AbstractAsyncContextManager[PooledProcess]:
        return open_agent(Program(argv, Path(key.workspace), {}, marker), PATIENCE)

    with anyio.fail_after(PATIENCE):
        async with background_group() as group:
            yield ProcessPool(group, open_process, runtime="acp", home=world.home, idle_timeout=idle_timeout)


@asynccontextmanager
async def codex_pool(folder: Path, idle_timeout: float) -> AsyncGenerator[ProcessPool[Any]]:
    codex = ScriptedCodex(folder)
    config = load(codex.home, {}, codex.settings())

    def open_process(key: PoolKey, marker: str) -> AbstractAsyncContextManager[PooledProcess]:
        return open_app_server(codex_program(config, Path(key.workspace), marker))

    with anyio.fail_after(PATIENCE):
        async with background_group() as group:
            yield ProcessPool(group, open_process, runtime="codex", home=codex.home, idle_timeout=idle_timeout)


@pytest.fixture(params=[acp_pool, codex_pool])
def open_pool(request: pytest.FixtureRequest) -> OpenPool:
    return request.param


def session(folder: Path, person: str = "ann", id: str = "1") -> Session:
    folder.mkdir(exist_ok=True)
    return Session(id, person, "s", str(folder), "", 0, 0, 0, is_open=False, has_work=False)


async def use_once(pool: ProcessPool[Any], session: Session) -> PooledProcess:
    async with pool.acquire(session) as process:
        return process


async def test_a_process_is_reused_by_the_next_turn_of_its_person_in_its_workspace(
    tmp_path: Path, open_pool: OpenPool
) -> None:
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    async with open_pool(tmp_path, 600.0) as pool:
        first = await use_once(pool, session(first_folder))
        assert await use_once(pool, session(first_folder)) is first
        assert await use_once(pool, session(second_folder)) is not first
        assert await use_once(pool, session(first_folder, "bob")) is not first


async def test_an_idle_process_is_ended_and_another_one_started_when_it_is_needed(
    tmp_path: Path, open_pool: OpenPool
) -> None:
    async with open_pool(tmp_path, 0.01) as pool:
        first = await use_once(pool, session(tmp_path / "used"))
        await first.wait_end_requested()
        async with pool.acquire(session(tmp_path / "used")) as second:
            assert second is not first
            assert second.is_usable


async def test_of_many_idle_processes_the_longest_idle_are_ended(tmp_path: Path, open_pool: OpenPool) -> None:
    async with open_pool(tmp_path, 600.0) as pool:
        processes = [await use_once(pool, session(tmp_path / f"f{number}")) for number in range(MAX_IDLE + 1)]
        assert [process.is_usable for process in processes] == [False, *[True] * MAX_IDLE]
        await use_once(pool, session(tmp_path / "f1"))
        await use_once(pool, session(tmp_path / "more"))
        assert [process.is_usable for process in processes] == [False, True, False, *[True] * (MAX_IDLE - 2)]


async def test_a_process_in_use_is_never_ended_for_another(tmp_path: Path, open_pool: OpenPool) -> None:
    async with open_pool(tmp_path, 0.01) as pool, pool.acquire(session(tmp_path / "used")) as used:
        for number in range(MAX_IDLE + 1):
            await use_once(pool, session(tmp_path / f"f{number}"))
        assert used.is_usable


async def test_processes_of_an_earlier_owner_are_ended_also_in_workspaces_that_nobody_opens_again(
    tmp_path: Path, open_pool: OpenPool
) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    try:
        async with open_pool(tmp_path, 600.0) as pool:
            runtime = "acp" if (tmp_path / "agent").exists() else "codex"
            home = tmp_path / "home"
            marker = marker_of(runtime, home, PoolKey("ann", str(folder)))
            (home / runtime / "marks").mkdir(parents=True, exist_ok=True)
            (home / runtime / "marks" / marker).touch()
            async with open_child(Program(("/bin/sleep", "1000"), folder, {}, marker)) as child:
                await pool.terminate_leftovers()
                await child.wait_closed()
            assert living(folder) == {}
            assert list((home / runtime / "marks").iterdir()) == []
        await until_none_survives(folder)
    finally:
        end_all(folder)


@asynccontextmanager
async def shared_pool(folder: Path, drain_timeout: float) -> AsyncGenerator[ProcessPool[AppServer]]:
    """One process of Codex for all workspaces."""
    codex = ScriptedCodex(folder)
    config = load(codex.home, {}, codex.settings())

    def open_process(_: PoolKey, marker: str) -> AbstractAsyncContextManager[AppServer]:
        return open_app_server(codex_program(config, folder, marker))

    with anyio.fail_after(PATIENCE):
        async with background_group() as group:
            yield ProcessPool(
                group,
                open_process,
                runtime="codex",
                home=codex.home,
                idle_timeout=600.0,
                drain_timeout=drain_timeout,
                key_of=key_by_person,
            )


async def test_a_retired_process_finishes_its_turns_while_another_one_takes_new_ones(tmp_path: Path) -> None:
    first, second, third = (session(tmp_path / name, id=name) for name in ("first", "second", "third"))
    async with shared_pool(tmp_path, 600.0) as pool:
        async with pool.acquire(first) as old:
            async with pool.acquire(second) as same:
                assert same is old
                old.retire()
            async with pool.acquire(third) as new:
                assert new is not old
                assert [await process.request("account/read", {}) != b"" for process in (old, new)] == [True, True]
            again = anyio.Event()

            async def take_second_again() -> None:
                async with pool.acquire(second) as process:
                    assert process is new
                    again.set()

            async with anyio.create_task_group() as group:
                group.start_soon(take_second_again)
                await anyio.wait_all_tasks_blocked()
                assert not again.is_set()
                group.cancel_scope.cancel()
        await old.wait_end_requested()
        assert await use_once(pool, second) is new


async def test_a_session_does_not_wait_for_ever_for_the_turns_in_a_retired_process(tmp_path: Path) -> None:
    first, second = (session(tmp_path / name, id=name) for name in ("first", "second"))
    async with shared_pool(tmp_path, 0.01) as pool, pool.acquire(first) as old:
        await use_once(pool, second)
        old.retire()
        assert await use_once(pool, second) is not old
        await old.wait_end_requested()
        assert old.interrupts_others
