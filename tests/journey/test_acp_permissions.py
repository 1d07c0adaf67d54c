"""Calls of ACP agents that request permissions: each is one call with all its arguments, begun after the answer."""

from pathlib import Path

import anyio
import pytest

from outrider.core.events import Answered, Asked, Begun, Body, Reply, Result
from tests.support.acp import World, do, finished_journal, post, text, tool
from tests.support.acp_orders import COMMAND, ORDERS, RAW, RINGS
from tests.support.questions import DENIED, asked

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def about_calls(journal: list[Body]) -> list[str]:
    """What the journal contains about calls, in its order."""
    kinds: list[str] = []
    for body in journal:
        match body:
            case Reply(calls=calls) if calls:
                kinds.append("call")
            case Asked() | Answered() | Begun() | Result():
                kinds.append(type(body).__name__.lower())
            case _:
                pass
    return kinds


@pytest.mark.parametrize("order", ORDERS)
async def test_a_call_is_recorded_once_and_begins_after_the_answer(world: World, order: str) -> None:
    questions = 2 if order == "asked twice" else 1
    async with world.open_agent("quiet") as agent:
        session = await post(agent, do(("say", "I ring."), *ORDERS[order], ("say", "All done.")))
        for number in range(questions):
            await agent.answer(session, await asked(agent, session, number + 1), "once")
        journal = await finished_journal(agent)
    assert about_calls(journal) == ["call", *["asked", "answered", "begun"] * questions, "result"]
    (call,) = [call for body in journal if isinstance(body, Reply) for call in body.calls]
    assert (call.tool, call.args["command"]) == ("shell", COMMAND)
    assert [(body.text, body.failed) for body in journal if isinstance(body, Result)] == [("it rang", False)]
    assert world.effects() == ["rang"]


@pytest.mark.parametrize("order", ORDERS)
async def test_a_call_that_was_denied_is_recorded_once_as_not_run(world: World, order: str) -> None:
    failed = tool("c1", "failed", content=text("rejected"))
    async with world.open_agent("quiet") as agent:
        session = await post(agent, do(*ORDERS[order], failed, ("say", "then not")))
        await agent.answer(session, await asked(agent, session), "no")
        journal = await finished_journal(agent)
    assert about_calls(journal) == ["call", "asked", "answered", "result"]
    assert [body.text for body in journal if isinstance(body, Result)] == [DENIED]
    assert world.effects() == []


async def test_a_call_that_runs_without_a_question_has_begun_before_it_ends(world: World) -> None:
    running = (
        tool("c1", "pending", kind="execute", rawInput=RAW),
        tool("c1", "in_progress"),
        ("until", "go"),
        tool("c1", "completed", content=text("it rang")),
    )
    async with world.open_agent() as agent:
        session = await post(agent, do(*running, ("say", "ok")))
        while "begun" not in about_calls([entry.body for entry in await agent.journal(session)]):
            await anyio.sleep(0.02)
        (world.agents / "go").touch()
        journal = await finished_journal(agent)
    assert about_calls(journal) == ["call", "begun", "result"]


async def test_two_calls_with_equal_content_are_matched_to_their_requests_in_order(world: World) -> None:
    shown = {"title": f"terminal: {COMMAND}", "kind": "execute"}
    ask = {"kind": "execute", "title": "dangerous", "rawInput": RAW}
    words = do(
        ("update", {"sessionUpdate": "tool_call", "toolCallId": "c1", **shown}),
        ("update", {"sessionUpdate": "tool_call", "toolCallId": "c2", **shown}),
        ("ask", {**ask, "toolCallId": "p1"}),
        tool("c1", "completed", content=text("first")),
        ("ask", {**ask, "toolCallId": "p2"}),
        tool("c2", "failed", content=text("second")),
        ("say", "ok"),
    )
    async with world.open_agent() as agent:
        session = await post(agent, words)
        await agent.answer(session, await asked(agent, session), "once")
        await agent.answer(session, await asked(agent, session, 2), "no")
        journal = await finished_journal(agent)
    assert about_calls(journal) == [
        "call",
        "asked",
        "answered",
        "begun",
        "result",
        "call",
        "asked",
        "answered",
        "result",
    ]
    assert [body.text for body in journal if isinstance(body, Result)] == ["first", DENIED]


async def test_a_call_that_is_reported_after_a_request_with_another_id_is_the_same_call(world: World) -> None:
    ask = {"toolCallId": "p1", "kind": "execute", "title": "dangerous", "rawInput": RAW}
    running = tool("c1", "in_progress", kind="execute", rawInput={**RAW, "cwd": "/work"})
    words = do(("ask", ask), running, tool("c1", "completed", content=text("it rang")), ("say", "ok"))
    async with world.open_agent() as agent:
        session = await post(agent, words)
        await agent.answer(session, await asked(agent, session), "once")
        journal = await finished_journal(agent)
    assert about_calls(journal) == ["call", "asked", "answered", "begun", "result"]
    assert [body.text for body in journal if isinstance(body, Result)] == ["it rang"]


async def test_a_request_for_something_else_is_a_call_of_its_own(world: World) -> None:
    other = {"toolCallId": "p1", "kind": "execute", "title": "x", "rawInput": {"command": "burn it"}}
    report = tool("c1", "pending", kind="execute", rawInput=RAW)
    words = do(report, ("ask", other), tool("p1", "completed"), tool("c1", "completed", content=text("rang")), RINGS)
    async with world.open_agent() as agent:
        session = await post(agent, words)
        question = await asked(agent, session)
        assert "burn it" in question.question
        await agent.answer(session, question, "once")
        journal = await finished_journal(agent)
    commands = [call.args["command"] for body in journal if isinstance(body, Reply) for call in body.calls]
    assert set(commands) == {COMMAND, "burn it"}
