"""kill -9 of Outrider at every point of a turn whose ACP agent asks for permission, in the orders of real agents.

What happened is counted outside: by the agent's own file of effects.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Asked, Body, Ended, Reply, Result
from tests.support.acp import PATIENCE, World, do
from tests.support.acp_orders import COMMAND, ORDERS
from tests.support.life import killed_at
from tests.support.survivors import end_all

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.promise("L3"),
    pytest.mark.promise("L4"),
    pytest.mark.promise("L12"),
]
POINTS = [
    "turn_started",
    "calls_not_recorded",
    "call_intent_recorded",
    "call_intent_recorded:2",
    "result_not_recorded",
    "result_recorded",
    "reply_not_recorded",
    "reply_recorded",
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    try:
        yield World(tmp_path)
    finally:
        end_all(tmp_path)


def words(order: str) -> str:
    return do(("say", "I ring."), *ORDERS[order], ("say", "All done."))


def settings(world: World, *more: str) -> dict[str, str]:
    return {"runtime.name": "acp", "acp.command": world.command("quiet", *more)}


@asynccontextmanager
async def next_life(world: World, *more: str) -> AsyncGenerator[Agent]:
    with anyio.fail_after(PATIENCE):
        config = load(world.home, {}, settings(world, *more))
        async with outrider.open(config=config, workspace=world.work) as agent:
            await agent.resume_all()
            yield agent


async def answer_all(agent: Agent, answer: str) -> list[Body]:
    """The journal at the end of the turn; every question on the way gets this answer."""
    session = await agent.find("s")
    while (await agent.find("s")).has_work:
        for question in await agent.questions(session):
            await agent.answer(session, question, answer)
        await anyio.sleep(0.02)
    await agent.wait(session)
    return [entry.body for entry in await agent.journal(session)]


def assert_in_order(journal: list[Body]) -> None:
    """One turn, ended once; each call once, with all its arguments and one result."""
    assert [type(body) for body in journal].count(Ended) == 1
    assert isinstance(journal[-1], Ended)
    assert journal[-1].outcome == "done"
    calls = [call for body in journal if isinstance(body, Reply) for call in body.calls]
    results = [body.call for body in journal if isinstance(body, Result)]
    assert results == [call.id for call in calls]
    assert all(COMMAND in str(call.args) for call in calls)


@pytest.mark.behaviour("A15")
@pytest.mark.parametrize("order", ORDERS)
async def test_a_question_survives_a_kill_and_its_answer_is_used(world: World, order: str) -> None:
    killed_at("approval_pending", world.home.parent, settings(world), words(order))
    async with next_life(world) as agent:
        (question,) = await agent.questions(await agent.find("s"))
        assert (COMMAND in question.question, world.effects()) == (True, [])
        journal = await answer_all(agent, "once")
    assert world.effects() == ["rang"]
    assert f"{COMMAND}" in world.prompts()[1]
    assert "the person has allowed it since: do it again" in world.prompts()[1]
    assert len(world.received("session/load")) == 1
    # The answers of before are used: nothing is asked twice.
    questions = [body.digest for body in journal if isinstance(body, Asked)]
    assert len(questions) == len(set(questions))
    assert_in_order(journal)


async def test_the_second_question_about_a_call_survives_a_kill(world: World) -> None:
    """The first was answered with yes, so the call had begun."""
    killed_at("approval_pending:2", world.home.parent, settings(world), words("asked twice"), "once")
    async with next_life(world) as agent:
        (question,) = await agent.questions(await agent.find("s"))
        assert ("/bells" in question.question, world.effects()) == (False, [])
        journal = await answer_all(agent, "once")
    assert world.effects() == ["rang"]
    assert len([body for body in journal if isinstance(body, Asked)]) == 2
    assert_in_order(journal)


@pytest.mark.parametrize("point", ["approval_pending", "approval_pending:2"])
async def test_a_no_after_a_kill_is_told_and_nothing_runs(world: World, point: str) -> None:
    first = "once" if point.endswith(":2") else ""
    killed_at(point, world.home.parent, settings(world), words("asked twice"), first)
    async with next_life(world) as agent:
        journal = await answer_all(agent, "no")
    assert world.effects() == []
    assert "did not allow it: do without it" in world.prompts()[1]
    assert_in_order(journal)


@pytest.mark.parametrize("point", POINTS)
async def test_a_call_that_was_allowed_runs_at_most_once_whenever_outrider_is_killed(world: World, point: str) -> None:
    order = "asked twice" if point == "call_intent_recorded:2" else "running, then asked"
    killed_at(point, world.home.parent, settings(world), words(order), "once")
    async with next_life(world) as agent:
        journal = await answer_all(agent, "once")
    assert world.effects() == ["rang"]
    assert_in_order(journal)


async def test_an_answer_is_used_by_a_new_session_of_an_agent_that_cannot_resume(world: World) -> None:
    order = "asked without a call"
    killed_at("approval_pending", world.home.parent, settings(world, "forgets"), words(order))
    async with next_life(world, "forgets") as agent:
        journal = await answer_all(agent, "once")
    assert (world.effects(), len(world.received("session/new"))) == (["rang"], 2)
    assert "Agent: I ring." in world.prompts()[1]
    assert "the person has allowed it since: do it again" in world.prompts()[1]
    assert len([body for body in journal if isinstance(body, Asked)]) == 1
    assert_in_order(journal)
