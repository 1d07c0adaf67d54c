"""Hundreds of tasks at once: none is lost, each end is reported once, and the process that runs them stays small.

`./dev bench tasks` does the same with a thousand, and fails when one is lost.
"""

from pathlib import Path

import anyio
import pytest

from bench.tasks import memory, open_bench_agent, release, start_crowd
from outrider.core.events import Result
from tests.support.survivors import until_none_survives

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L6"), pytest.mark.promise("L7")]

COUNT = 200
MAX_MEMORY = 30
"""MiB that so many running tasks may cost."""


@pytest.mark.needs("sandbox")
async def test_hundreds_of_tasks_at_once_are_all_reported_once_in_bounded_memory(tmp_path: Path) -> None:
    async with open_bench_agent(tmp_path) as agent:
        with anyio.fail_after(60):
            await agent.say("0 nothing", session="warm-up")
        before = memory()
        gate = await start_crowd(agent, COUNT)
        session = await agent.session("crowd")
        running = await agent.tasks(session, open_only=True, limit=2 * COUNT)
        held = memory()
        with anyio.fail_after(60):
            answered = await agent.say("0 nothing", session="other")
        ends = await release(agent, gate, COUNT)
        after = memory()
        open_still = await agent.tasks(session, open_only=True)
    assert (len(running), answered.text, open_still) == (COUNT, "ok", [])
    assert sorted((end.number, end.code) for end in ends) == [(n, n % 50) for n in range(COUNT)]
    assert max(held, after) - before < MAX_MEMORY
    await until_none_survives(tmp_path)


@pytest.mark.needs("sandbox")
async def test_more_tasks_than_a_session_may_have_are_refused(tmp_path: Path) -> None:
    async with open_bench_agent(tmp_path, most=5) as agent:
        gate = await start_crowd(agent, 8)
        session = await agent.session("crowd")
        results = [entry.body for entry in await agent.journal(session) if isinstance(entry.body, Result)]
        refusals = [result.text for result in results if result.failed]
        ends = await release(agent, gate, 5)
    assert len(refusals) == 3
    assert all(text.startswith("5 tasks of this session have not ended") for text in refusals)
    assert sorted(end.number for end in ends) == [0, 1, 2, 3, 4]
    await until_none_survives(tmp_path)
