"""The modes of ACP agents: set in new and loaded sessions, and refused with a list when unknown."""

from pathlib import Path

import pytest

from outrider.core.events import Ended
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
