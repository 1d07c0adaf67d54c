"""A process that is about to end: it accepts, carries nothing, and tells whoever waits."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.core.errors import Unavailable
from outrider.core.events import Entry, Input, Resumed
from outrider.models.scripted import ScriptedModel, says, stalls

pytestmark = pytest.mark.anyio


@pytest.mark.promise("L9")
async def test_an_agent_at_rest_accepts_what_the_next_one_answers(tmp_path: Path) -> None:
    hold = stalls("half a")
    model = ScriptedModel(hold, says("all of it"), says("and that"))
    async with outrider.open(tmp_path / "home", model=model) as agent:
        session = await agent.session("s")
        await agent.post("one", session=session)
        with anyio.fail_after(10):
            await hold.begun.wait()
            await agent.rest("restarting")
        await agent.post("two", session=session)
        assert len(model.prompts) == 1
    hold.release()
    async with outrider.open(tmp_path / "home", model=model) as agent:
        await agent.finish()
        with anyio.fail_after(10):
            turn = await agent.wait(await agent.session("s"))
        bodies = [entry.body for entry in await agent.journal(session)]
    assert turn is not None
    assert turn.outcome == "done"
    assert [body.text for body in bodies if isinstance(body, Input)] == ["one", "two"]
    assert [body for body in bodies if isinstance(body, Resumed)] == [Resumed(crashed=False)]


@pytest.mark.promise("L12")
async def test_whoever_follows_reads_to_the_end_and_is_told_of_the_restart(tmp_path: Path) -> None:
    hold = stalls()
    told: list[tuple[Entry, str]] = []
    async with outrider.open(tmp_path / "home", model=ScriptedModel(hold, says("never said"))) as agent:
        session = await agent.session("s")
        entry = await agent.post("one", session=session)

        async def follow() -> None:
            heard: list[Entry] = []
            try:
                async with aclosing(agent.follow(session)) as events:
                    async for event in events:
                        if isinstance(event, Entry):
                            heard.append(event)
            except Unavailable as error:
                told.append((heard[0], str(error)))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                await hold.begun.wait()
                await agent.rest("restarting")
            await follow()
    assert told == [(entry, "restarting")] * 2


async def test_resting_twice_is_resting(tmp_path: Path) -> None:
    async with outrider.open(tmp_path / "home", model=ScriptedModel(says("hi"))) as agent:
        assert (await agent.say("hello")).text == "hi"
        with anyio.fail_after(10):
            await agent.rest("once")
            await agent.rest("twice")
