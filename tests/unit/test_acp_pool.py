"""Agents are kept while they are needed, a few of them a little longer, and none for good."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from outrider.core.store_port import Session
from outrider.runtimes.acp.connection import AcpAgent
from outrider.runtimes.acp.process_pool import MAX_IDLE, AcpAgentPool, AcpCommand
from outrider.system.tasks import background_group
from tests.support.acp import PATIENCE, World

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def pool_of(folder: Path, idle: float) -> AsyncGenerator[AcpAgentPool]:
    world = World(folder)
    argv = tuple(world.command().split())
    with anyio.fail_after(PATIENCE):
        async with background_group() as group:
            yield AcpAgentPool(AcpCommand(argv, {}, world.home, 30.0, idle), group)


def session(folder: Path, person: str = "ann") -> Session:
    folder.mkdir(exist_ok=True)
    return Session("1", person, "s", str(folder), "", 0, 0, 0, is_open=False, has_work=False)


async def lent_once(pool: AcpAgentPool, session: Session) -> AcpAgent:
    async with pool.acquire(session) as agent:
        return agent


async def test_an_agent_is_kept_for_the_next_turn_of_its_person_in_its_folder(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    async with pool_of(tmp_path, 600.0) as pool:
        first = await lent_once(pool, session(here))
        assert await lent_once(pool, session(here)) is first
        assert await lent_once(pool, session(there)) is not first
        assert await lent_once(pool, session(here, "bob")) is not first


async def test_an_agent_that_nobody_needs_is_ended_and_another_one_started_when_it_is(tmp_path: Path) -> None:
    async with pool_of(tmp_path, 0.01) as pool:
        first = await lent_once(pool, session(tmp_path / "here"))
        await first.retired.wait()
        async with pool.acquire(session(tmp_path / "here")) as second:
            assert second is not first
            assert await second.is_alive(PATIENCE)


async def test_of_many_agents_that_nobody_needs_the_oldest_are_ended(tmp_path: Path) -> None:
    async with pool_of(tmp_path, 600.0) as pool:
        agents = [await lent_once(pool, session(tmp_path / f"f{number}")) for number in range(MAX_IDLE + 2)]
        assert [agent.retired.is_set() for agent in agents] == [True, True, *[False] * MAX_IDLE]


async def test_an_agent_in_use_is_never_ended_for_another(tmp_path: Path) -> None:
    async with pool_of(tmp_path, 0.01) as pool, pool.acquire(session(tmp_path / "used")) as used:
        for number in range(MAX_IDLE + 1):
            await lent_once(pool, session(tmp_path / f"f{number}"))
        assert not used.retired.is_set()
        assert await used.is_alive(PATIENCE)
