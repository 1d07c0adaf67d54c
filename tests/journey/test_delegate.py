"""Work delegated to child sessions, through the Python API."""

from pathlib import Path

import anyio
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


async def test_sessions_that_wait_for_their_children_let_these_run(tmp_path: Path) -> None:
    def answer(prompt: Prompt) -> ScriptedReply:
        match prompt.messages:
            case [UserMessage(text="go")]:
                return says("", call("delegate", work="one"), call("delegate", work="two"))
            case [UserMessage()]:
                return says("done below")
            case _:
                return says("done above")

    replies: dict[str, str] = {}
    async with open_scripted(tmp_path, ScriptedModel(*[answer] * 12), limits_turns="2") as agent:

        async def say(name: str) -> None:
            replies[name] = (await agent.say("go", session=name)).text

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for name in ("a", "b", "c"):
                    group.start_soon(say, name)
    assert replies == {"a": "done above", "b": "done above", "c": "done above"}


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
