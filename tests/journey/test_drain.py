"""Draining: a process that is about to end accepts inputs, runs no turns, and tells followers why."""

from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import outrider
from outrider.core.errors import Unavailable
from outrider.core.events import Begun, Body, Ended, Entry, Input, Reply, Result, Resumed, Started
from outrider.core.types import Replay
from outrider.testing.scripted_model import ScriptedModel, ScriptedStall, call, says, stalls

pytestmark = pytest.mark.anyio


async def _drain_and_resume(home: Path, model: ScriptedModel, hold: ScriptedStall) -> list[Body]:
    """The journal of a turn whose process is drained while the model writes, and which the next process resumes."""

    @outrider.tool(replay=Replay.NEVER)
    async def pay(bill: str) -> str:
        """Pay a bill.

        bill: which one
        """
        return f"paid {bill}"

    async with outrider.open(home, model=model, tools=[pay]) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                await hold.reached.wait()
                group.start_soon(agent.drain, "restarting", 10.0)
                await anyio.lowlevel.checkpoint()
                hold.release()
    async with outrider.open(home, model=model, tools=[pay]) as agent:
        with anyio.fail_after(60):
            await agent.wait(await agent.session("s"))
        return [entry.body for entry in await agent.journal(session)]


@pytest.mark.promise("L9")
async def test_a_drained_agent_accepts_inputs_that_the_next_one_answers(tmp_path: Path) -> None:
    hold = stalls("half a")
    model = ScriptedModel(hold, says("all of it"), says("and that"))
    async with outrider.open(tmp_path / "home", model=model) as agent:
        session = await agent.session("s")
        await agent.post("one", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
            await agent.drain("restarting")
        await agent.post("two", session=session)
        assert len(model.prompts) == 1
    hold.release()
    async with outrider.open(tmp_path / "home", model=model) as agent:
        await agent.resume_all()
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.session("s"))
        bodies = [entry.body for entry in await agent.journal(session)]
    assert turn is not None
    assert turn.outcome == "done"
    assert [body.text for body in bodies if isinstance(body, Input)] == ["one", "two"]
    assert [body for body in bodies if isinstance(body, Resumed)] == [Resumed(crashed=False)]


@pytest.mark.promise("L12")
async def test_followers_read_to_the_end_and_then_get_the_reason(tmp_path: Path) -> None:
    hold = stalls()
    results: list[tuple[Entry, str]] = []
    async with outrider.open(tmp_path / "home", model=ScriptedModel(hold, says("never said"))) as agent:
        session = await agent.session("s")
        entry = await agent.post("one", session=session)

        async def follow() -> None:
            entries: list[Entry] = []
            try:
                async with aclosing(agent.follow(session)) as events:
                    async for event in events:
                        if isinstance(event, Entry):
                            entries.append(event)
            except Unavailable as error:
                results.append((entries[0], str(error)))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                await hold.reached.wait()
                await agent.drain("restarting")
            await follow()
    assert results == [(entry, "restarting")] * 2


async def test_draining_twice_is_the_same_as_once(tmp_path: Path) -> None:
    async with outrider.open(tmp_path / "home", model=ScriptedModel(says("hi"))) as agent:
        assert (await agent.say("hello")).text == "hi"
        with anyio.fail_after(60):
            await agent.drain("once")
            await agent.drain("twice")


@pytest.mark.promise("L9")
async def test_draining_with_a_time_limit_lets_the_last_reply_finish_and_ends_the_turn(tmp_path: Path) -> None:
    hold = stalls("half a")
    model = ScriptedModel(hold, says("all of it"))
    bodies = await _drain_and_resume(tmp_path / "home", model, hold)
    assert [type(body) for body in bodies] == [Input, Started, Reply, Ended]
    assert len(model.prompts) == 1


@pytest.mark.promise("L9")
async def test_draining_with_a_time_limit_starts_no_call_of_the_reply_in_progress(tmp_path: Path) -> None:
    hold = stalls("I shall pay")
    model = ScriptedModel(hold, says("", call("pay", bill="rent")), says("paid"))
    bodies = await _drain_and_resume(tmp_path / "home", model, hold)
    assert [type(body) for body in bodies] == [Input, Started, Reply, Resumed, Begun, Result, Reply, Ended]
    assert [body for body in bodies if isinstance(body, Resumed)] == [Resumed(crashed=False)]
    assert len(model.prompts) == 2


@pytest.mark.promise("L4", "L9")
async def test_draining_with_a_time_limit_lets_the_call_in_progress_finish_and_calls_the_model_no_more(
    tmp_path: Path,
) -> None:
    started, may_finish = anyio.Event(), anyio.Event()
    paid: list[str] = []

    @outrider.tool(replay=Replay.NEVER)
    async def pay(bill: str) -> str:
        """Pay a bill.

        bill: which one
        """
        started.set()
        await may_finish.wait()
        paid.append(bill)
        return f"paid {bill}"

    model = ScriptedModel(says("", call("pay", bill="rent"), call("pay", bill="power")), says("both paid"))
    async with outrider.open(tmp_path / "home", model=model, tools=[pay]) as agent:
        session = await agent.session("s")
        await agent.post("pay", session=session)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                await started.wait()
                group.start_soon(agent.drain, "restarting", 10.0)
                await anyio.lowlevel.checkpoint()
                may_finish.set()
        assert (paid, len(model.prompts)) == (["rent"], 1)
    async with outrider.open(tmp_path / "home", model=model, tools=[pay]) as agent:
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.session("s"))
    assert turn is not None
    assert (turn.text, paid) == ("both paid", ["rent", "power"])
