"""Where a turn of another program answers to: a notice moves neither it nor its questions."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.core.events import Answered, Asked
from tests.support.acp import World, do
from tests.support.surfaces import SURFACES, Scene, SurfaceHome, open_surfaces

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("B2")]
CHAT, PYTHON, COMPLETION = SURFACES["terminal chat"], SURFACES["Python"], SURFACES["completion"]


def remove(name: str) -> dict[str, Any]:
    return {"toolCallId": name, "title": f"Remove {name}", "kind": "execute", "rawInput": {"command": f"rm {name}"}}


async def move_to_agent(home: SurfaceHome, scene: Scene) -> None:
    """The next turn of this session runs in the agent."""
    await home.agent.change(await scene.session(), {"runtime": "acp"})


def is_answered(body: object) -> bool:
    return isinstance(body, Answered)


async def test_a_notice_in_the_turn_of_a_completion_lets_no_question_wait(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with open_surfaces(tmp_path, "", acp_command=world.command()) as home:
        scene = home.scene("s")
        task = await scene.start_task(CHAT, output=do())
        await move_to_agent(home, scene)
        await scene.send(
            COMPLETION, do(["effect", "begun"], ["until", "go"], ["ask", remove("x")], ["say", "then not"])
        )
        await world.has("effects")
        await task.report()
        (world.agents / "go").touch()
        answered = await scene.until(is_answered)
        await scene.until_idle()
    assert isinstance(answered.body, Answered)
    assert (answered.body.answer, answered.body.person) == ("no", "")
    assert world.effects() == ["begun", {"outcome": {"outcome": "selected", "optionId": "3"}}]


async def test_a_notice_while_a_question_is_pending_denies_neither_it_nor_the_next(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with open_surfaces(tmp_path, "", acp_command=world.command()) as home:
        scene = home.scene("s")
        task = await scene.start_task(PYTHON, output=do())
        await move_to_agent(home, scene)
        await scene.send(CHAT, do(["ask", remove("x")], ["ask", remove("y")], ["say", "done"]))
        first = await scene.until(lambda body: isinstance(body, Asked))
        await task.report()
        await scene.answer(first)
        second = await scene.until(lambda body: isinstance(body, Asked), first.seq)
        await scene.answer(second)
        await scene.until_idle()
        journal = await home.agent.journal(await scene.session())
    answers = [entry.body for entry in journal if isinstance(entry.body, Answered)]
    assert [(answered.answer, answered.person) for answered in answers] == [("once", "owner")] * 2


async def test_a_pending_question_is_denied_when_a_completion_joins_the_turn(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with open_surfaces(tmp_path, "", acp_command=world.command()) as home:
        scene = home.scene("s")
        await scene.session()
        await move_to_agent(home, scene)
        await scene.send(CHAT, do(["ask", remove("x")], ["say", "then not"]))
        asked = await scene.until(lambda body: isinstance(body, Asked))
        joined = await scene.send(COMPLETION, do(["say", "here I am"]))
        answered = await scene.until(is_answered, asked.seq)
        with anyio.fail_after(60):
            await scene.until_idle()
    assert isinstance(answered.body, Answered)
    assert (answered.seq > joined.seq, answered.body.answer, answered.body.person) == (True, "no", "")
    assert world.effects() == [{"outcome": {"outcome": "selected", "optionId": "3"}}]
