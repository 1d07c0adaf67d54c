"""Work delegated to child sessions, through the Python API."""

from pathlib import Path

import pytest

from outrider.core.prompt import Prompt, UserMessage
from outrider.testing.scripted_model import ScriptedModel, ScriptedReply, call, says
from tests.support.tasking import PIPE, last_results, open_scripted, results, say_and_wait

pytestmark = pytest.mark.anyio


async def test_a_child_session_does_its_work_and_returns_its_last_reply(tmp_path: Path) -> None:
    def answer(prompt: Prompt) -> ScriptedReply:
        messages = [m.text for m in prompt.messages if isinstance(m, UserMessage)]
        if messages == ["count the files"]:
            return says("there are seven")
        return says("the child says: " + str(last_results(prompt)[0]["reply"])) if len(prompt.messages) > 1 else first

    first = says("", call("delegate", work="count the files"))
    async with open_scripted(tmp_path, ScriptedModel(answer, answer, answer)) as agent:
        turn = await agent.say("how many?", session="s")
        (task,) = await agent.tasks(await agent.session("s"))
    assert turn.text == "the child says: there are seven"
    assert (task.spec.kind, task.state) == ("session", "succeeded")


@pytest.mark.behaviour("B6")
async def test_delegated_work_runs_in_the_foreground_where_no_notice_can_be_delivered(
    tmp_path: Path,
) -> None:
    def answer(prompt: Prompt) -> ScriptedReply:
        messages = [m.text for m in prompt.messages if isinstance(m, UserMessage)]
        if messages == ["look it up"]:
            return says("it is blue")
        return (
            says("blue") if len(prompt.messages) > 1 else says("", call("delegate", work="look it up", background=True))
        )

    async with open_scripted(tmp_path, ScriptedModel(answer, answer, answer)) as agent:
        session = await say_and_wait(agent, "go", PIPE)
        (done,) = await results(agent, session)
    assert (done["status"], done["reply"]) == ("done", "it is blue")
    assert "ran in the foreground" in done["note"]
