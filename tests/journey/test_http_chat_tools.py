"""Tools in chat completions, the client's own and ours, as the official OpenAI client sees them."""

from pathlib import Path

import anyio
import openai
import pytest

from outrider.core.events import Input, Result
from outrider.core.prompt import UNKNOWN, Prompt, ToolMessage, UserMessage
from outrider.testing.scripted_model import ScriptedReply, call, says
from tests.support.openai_home import RING, openai_home, text_of

pytestmark = pytest.mark.anyio


async def test_a_client_tool_is_run_by_the_client_and_the_turn_continues(tmp_path: Path) -> None:
    lines = says("ringing", call("ring", times=2), call("list", path=".")), says("it rang")
    async with openai_home(tmp_path, *lines) as home:
        first = (await home.ask("ring", tools=[RING])).choices[0]
        assert (first.message.content, first.finish_reason) == ("ringing", "tool_calls")
        (called,) = first.message.tool_calls
        assert (called.type, called.function.name, called.function.arguments) == ("function", "ring", '{"times":2}')
        result = {"role": "tool", "tool_call_id": called.id, "content": "ding dong"}
        second = await home.ask("ring", first.message, result, tools=[RING])
        again = await home.ask("ring", first.message, result, tools=[RING])
        (session,) = await home.agent.sessions()
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("it rang", "stop")
    assert again.choices[0].message.content == "it rang"
    results = home.model.prompts[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert results.results[0].text == "ding dong"
    assert (len(home.model.prompts), session.has_work) == (2, False)


async def test_a_client_tool_in_a_stream(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("", call("ring", times=1), call("ring", times=2)), says("done")) as home:
        chunks = await home.chunks("ring", tools=[RING])
        deltas = [one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or ()]
        assert [(one.index, one.function and one.function.arguments) for one in deltas] == [
            (0, '{"times":1}'),
            (1, '{"times":2}'),
        ]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        calls = [{"id": one.id, "type": "function", "function": {"name": "ring", "arguments": "{}"}} for one in deltas]
        results = [{"role": "tool", "tool_call_id": one.id, "content": f"ding {one.index}"} for one in deltas]
        rest = await home.chunks("ring", {"role": "assistant", "tool_calls": calls}, *results, tools=[RING])
    assert text_of(rest) == "done"
    answer = home.model.prompts[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert [one.text for one in answer.results] == ["ding 0", "ding 1"]


@pytest.mark.parametrize("headers", [{}, {"X-Session-Id": "s"}])
async def test_a_turn_does_not_wait_for_a_client_that_continues_without_outputs(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with openai_home(tmp_path, says("", call("ring")), says("never mind then")) as home:
        first = (await home.ask("ring", tools=[RING], extra_headers=headers)).choices[0]
        second = await home.ask("ring", first.message, "stop that", tools=[RING], extra_headers=headers)
        (session,) = await home.agent.sessions()
    assert second.choices[0].message.content == "never mind then"
    *_, results, words = home.model.prompts[1].messages
    assert isinstance(results, ToolMessage)
    assert [(one.text, one.failed) for one in results.results] == [
        ("not run: the client continued without a result", True)
    ]
    assert words == UserMessage("stop that")
    assert (len(home.model.prompts), session.has_work) == (2, False)


@pytest.mark.parametrize("name", ["ring", "write"])
async def test_a_session_whose_client_abandoned_its_calls_can_be_continued_elsewhere(tmp_path: Path, name: str) -> None:
    """As from a terminal; even when one of our own tools has the same name, it is not run instead."""
    tool = {"type": "function", "function": {**RING["function"], "name": name}}
    lines = says("", call(name, path="oh.txt", content="no")), says("as you like"), says("still here")
    async with openai_home(tmp_path, *lines) as home:
        first = (await home.ask("ring", tools=[tool], extra_headers={"X-Session-Id": "s"})).choices[0]
        assert first.finish_reason == "tool_calls"
        with anyio.fail_after(60):
            gone_on = await home.agent.say("leave it", session="s")
            late = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "ding"}
            with pytest.raises(openai.BadRequestError):
                await home.ask("ring", first.message, late, tools=[tool], extra_headers={"X-Session-Id": "s"})
            again = await home.agent.say("hello?", session="s")
        session = await home.agent.find("s")
    assert (gone_on.text, again.text, session.has_work) == ("as you like", "still here", False)
    *_, results, words = home.model.prompts[1].messages
    assert isinstance(results, ToolMessage)
    assert [(one.text, one.failed) for one in results.results] == [(UNKNOWN, True)]
    assert words == UserMessage("leave it")
    assert not Path(session.workspace, "oh.txt").exists()


async def test_a_conversation_with_calls_made_elsewhere_continues_here(tmp_path: Path) -> None:
    calls = [{"id": "call_abc", "type": "function", "function": {"name": "ring", "arguments": '{"times": 3}'}}]
    async with openai_home(tmp_path, says("unused"), says("it rang thrice", call("ring")), says("again")) as home:
        answer = await home.ask(
            "ring",
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_abc", "content": "ding"},
            tools=[RING],
        )
        (session,) = await home.agent.sessions()
        kinds = [type(entry.body).__name__ for entry in await home.agent.journal(session)]
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("it rang thrice", "tool_calls")
    assert kinds == ["Input", "Started", "Reply", "Result", "Resumed", "Reply"]


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B3")
async def test_a_background_command_is_not_promised_to_a_chat_completion(tmp_path: Path) -> None:
    lines = says("", call("shell", command="true", background=True)), says("started")
    async with openai_home(tmp_path, *lines) as home:
        answer = await home.ask("build it", extra_headers={"X-Session-Id": "s"})
        session = await home.agent.find("s")
        journal = await home.agent.journal(session)
        (task,) = await home.agent.tasks(session)
    (result,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
    (recorded,) = [entry.body for entry in journal if isinstance(entry.body, Input)]
    assert answer.choices[0].message.content == "started"
    assert recorded.address == f"chat:{answer.id}"
    assert '"notify":false' in result.text
    assert "Poll it" in result.text
    assert task.spec.notify == "never"


@pytest.mark.behaviour("B6")
async def test_work_delegated_in_the_background_is_done_within_the_completion(tmp_path: Path) -> None:
    def answer(prompt: Prompt) -> ScriptedReply:
        words = [m.text for m in prompt.messages if isinstance(m, UserMessage)]
        if words == ["look it up"]:
            return says("it is blue")
        results = prompt.messages[-1]
        if not isinstance(results, ToolMessage):
            return says("", call("delegate", work="look it up", background=True))
        return says("done at once" if "ran in the foreground" in results.results[0].text else "promised")

    async with openai_home(tmp_path, answer, answer) as home:
        reply = await home.ask("what colour?")
    assert reply.choices[0].message.content == "done at once"
