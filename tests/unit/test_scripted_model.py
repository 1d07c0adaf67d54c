"""Tests of the scripted model."""

import anyio
import pytest

from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply, Result
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Reasoning, Usage, call_id
from outrider.testing.scripted_model import ScriptedModel, broken_call, call, fails, says, stalls

pytestmark = pytest.mark.anyio

HI = UserMessage("hi")


def prompt(*messages: Message, saw: int = 7) -> Prompt:
    return Prompt("be brief", list(messages), saw=saw)


def ignore(delta: Delta) -> None:
    pass


async def test_the_reply_depends_on_the_prompt_alone_so_a_new_model_continues_where_one_was_killed() -> None:
    lines = says("one", call("read", path="a")), says("two")
    after = AssistantMessage("one", (Call("c1", "read", {"path": "a"}),)), ToolMessage((Result("c1", "x"),))
    assert (await ScriptedModel(*lines).reply(prompt(HI), ignore)).text == "one"
    assert (await ScriptedModel(*lines).reply(prompt(HI, *after), ignore)).text == "two"
    assert (
        await ScriptedModel(*lines).reply(prompt(HI, *after, AssistantMessage("two")), ignore)
    ).text == "(script ended)"


async def test_a_reply_is_streamed_word_by_word_and_returned_complete() -> None:
    deltas: list[Delta] = []
    usage = Usage(input=3, output=4)
    model = ScriptedModel(
        says("well  now", call("read", path="a"), broken_call("edit", "{"), reasoning="hm", usage=usage)
    )
    reply = await model.reply(prompt(HI), deltas.append)
    assert deltas == [
        Delta("hm", "reasoning"),
        Delta("well  "),
        Delta("now"),
        Delta("read", "call"),
        Delta("edit", "call"),
    ]
    assert reply == Reply(
        "well  now",
        7,
        (Call(call_id(7, 0), "read", {"path": "a"}), Call(call_id(7, 1), "edit", {}, "{")),
        (Reasoning("hm", "scripted"),),
        "scripted",
        usage,
    )


async def test_a_reply_may_be_a_function_of_the_prompt() -> None:
    model = ScriptedModel(lambda asked: says(f"you said {asked.messages[-1]}"))
    assert (await model.reply(prompt(HI), ignore)).text == f"you said {HI}"


async def test_failures_are_raised_before_their_reply_as_often_as_scripted() -> None:
    model = ScriptedModel(fails(Unavailable("busy", 2.0), times=2), fails(ContextTooLong("long")), says("hello"))
    for error in (Unavailable, Unavailable, ContextTooLong):
        with pytest.raises(error):
            await model.reply(prompt(HI), ignore)
    assert (await model.reply(prompt(HI), ignore)).text == "hello"
    assert model.prompts == [prompt(HI)] * 4


async def test_a_failure_at_the_end_of_the_script_is_raised_too() -> None:
    with pytest.raises(Refused, match="no key"):
        await ScriptedModel(fails(Refused("no key"))).reply(prompt(HI), ignore)


async def test_a_stall_waits_until_it_is_released() -> None:
    held, deltas, replies = stalls("so far"), list[Delta](), list[Reply]()
    model = ScriptedModel(held, says("and so on"))

    async def ask() -> None:
        replies.append(await model.reply(prompt(HI), deltas.append))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await held.reached.wait()
            assert (deltas, replies) == ([Delta("so "), Delta("far")], [])
            held.release()
    assert [reply.text for reply in replies] == ["and so on"]
