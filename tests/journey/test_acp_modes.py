"""The modes of ACP agents: set in new and loaded sessions, and refused with a list when unknown."""

from pathlib import Path

import pytest

from outrider.app.runtimes import parse_runtime
from outrider.core.events import Delta, Ended
from tests.support.acp import World, do, finished_journal, post

pytestmark = pytest.mark.anyio
SET = {
    "modes": ("session/set_mode", {"sessionId": "s0", "modeId": "plan"}),
    "options": ("session/set_config_option", {"sessionId": "s0", "configId": "how", "value": "plan"}),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("word", SET)
async def test_a_mode_is_set_once_in_every_process_that_has_the_session(world: World, word: str) -> None:
    for _ in range(2):
        async with world.open_agent(word, acp_mode="plan") as agent:
            for _ in range(2):
                await post(agent, do(("say", "ok")))
                await finished_journal(agent)
    method, params = SET[word]
    assert world.received(method) == [params] * 2


@pytest.mark.parametrize(
    ("word", "mode", "reason"),
    [
        ("modes", "yolo", "scripted has no mode 'yolo' (acp.mode): its modes are ask, plan"),
        ("quiet", "plan", "scripted has no mode 'plan' (acp.mode): it has no modes"),
    ],
)
async def test_an_unknown_mode_is_refused_with_the_list(world: World, word: str, mode: str, reason: str) -> None:
    async with world.open_agent(word, acp_mode=mode) as agent:
        await post(agent, do(("say", "never")))
        ended = (await finished_journal(agent))[-1]
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.reason.partition(";")[0]) == ("failed", reason)
    assert world.received("session/prompt") == []


async def test_without_a_setting_the_agent_keeps_its_own_mode(world: World) -> None:
    async with world.open_agent("modes") as agent:
        await post(agent, do(("say", "ok")))
        await finished_journal(agent)
    assert world.received("session/set_mode") == []


async def test_a_session_has_a_mode_of_its_own(world: World) -> None:
    async with world.open_agent("modes", acp_mode="plan") as agent:
        await agent.change(await agent.session("s"), parse_runtime("acp:ask").settings)
        await post(agent, do(("say", "ok")))
        await finished_journal(agent)
    assert world.received("session/set_mode") == []  # its agent is in this mode already


async def test_a_mode_that_the_agent_left_is_set_again_and_the_person_is_told(world: World) -> None:
    notes: list[str] = []
    left = ("update", {"sessionUpdate": "current_mode_update", "currentModeId": "ask"})
    async with world.open_agent("modes", acp_mode="plan") as agent:
        for _ in range(2):
            async for event in agent.events(do(left, ("say", "ok")), session="s"):
                notes += [event.text] if isinstance(event, Delta) and event.kind == "note" else []
    assert world.received("session/set_mode") == [{"sessionId": "s0", "modeId": "plan"}] * 2
    assert notes == ["scripted is now in its mode ask"] * 2
