"""Limits of a turn, a session and a message: each has a default, and reaching one is an error that names it."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from outrider.config.load import load
from outrider.core.errors import QueueFull, Refused
from outrider.testing.scripted_model import ReplySource, ScriptedModel, call, says, stalls
from tests.support.priced_model import PricedModel
from tests.support.tasking import open_scripted

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S15")]


def endless_calls(same: bool) -> list[ReplySource]:
    """The replies of a model that never finishes."""
    return [says("", call("search", pattern="x" if same else f"x{number}")) for number in range(10)]


@pytest.mark.parametrize(
    ("model", "limit", "error"),
    [
        (lambda: ScriptedModel(*endless_calls(same=False)), {"limits_steps": "3"}, "stopped after 3 steps"),
        (
            lambda: ScriptedModel(*endless_calls(same=True)),
            {"limits_repeats": "2"},
            "made the same call 3 times in a row",
        ),
        (
            lambda: PricedModel(*endless_calls(same=False)),
            {"limits_spend": "2.5"},
            "has cost $3.00; its limit is $2.50",
        ),
        (lambda: ScriptedModel(stalls(), says("never")), {"limits_seconds": "1"}, "stopped after 1 s"),
    ],
    ids=["steps", "repeats", "spend", "seconds"],
)
async def test_a_turn_that_reaches_a_limit_ends_and_names_the_limit(
    tmp_path: Path, model: Callable[[], ScriptedModel], limit: dict[str, str], error: str
) -> None:
    (name,) = limit
    async with open_scripted(tmp_path, model(), **limit) as agent:
        with anyio.fail_after(60):
            done = await agent.say("look around", session="s")
        session = await agent.find("s")
    assert (done.outcome, error in done.error, f"({name.replace('_', '.')})" in done.error) == ("failed", True, True)
    assert not session.has_work


async def test_more_messages_than_a_session_queues_are_refused(tmp_path: Path) -> None:
    gate = stalls()
    async with open_scripted(tmp_path, ScriptedModel(gate, says("done")), limits_queue="3") as agent:
        session = await agent.session("s")
        for number in range(3):
            await agent.post(f"message {number}", session=session)
        with pytest.raises(QueueFull, match="3 messages are already waiting in this session"):
            await agent.post("one more", session=session)
        gate.release()
        with anyio.fail_after(60):
            await agent.wait(await agent.find("s"))
        await agent.post("now there is room", session=session)


async def test_a_message_that_is_too_long_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedModel(says("done")), limits_input="1000") as agent:
        with pytest.raises(Refused, match=r"1,001 characters; the limit is 1,000 \(limits.input\)"):
            await agent.say("x" * 1001)
        assert (await agent.say("x" * 1000)).outcome == "done"


def test_every_limit_has_a_default(tmp_path: Path) -> None:
    limits = load(tmp_path, {}).limits
    bounds = (limits.steps, limits.repeats, limits.spend, limits.seconds, limits.queue, limits.input)
    assert bounds == (60, 3, 5.0, 3600.0, 20, 1_000_000)
