"""A call that was killed after it started its task keeps its promise, wherever its turn continues."""

import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.core.events import Input
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person
from tests.support.tasking import results, wait_for_notices
from tests.support.up import begin, say, up

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L6"), pytest.mark.behaviour("B2"), pytest.mark.behaviour("B3")]
KILLED = {"OUTRIDER_FAIL": "result_not_recorded"}
CALLS = {
    "command": call("shell", command="true", background=True),
    "child session": call("delegate", work="look it up", background=True),
}


async def assert_kept(person: Person, url: str, address: str, expected: dict[str, Any], *, is_notified: bool) -> None:
    """Continue the turn with a message from this address; the call's result, and whether its task sends a notice."""
    settings = {"model.name": "openai-chat:scripted", "model.url": url, "model.key": "k-1234567890"}
    with anyio.fail_after(PATIENCE):
        async with outrider.open(config=load(person.home, {}, settings)) as agent:
            session = await agent.find("s")
            await agent.post("and now?", session=session, address=address)
            await agent.wait(session)
            (task,) = await agent.tasks(session)
            await agent.wait_task(task)
            notices = await wait_for_notices(agent, session) if is_notified else []
            await agent.wait(session)
            (result,) = await results(agent, session)
            inputs = [one.body for one in await agent.journal(session) if isinstance(one.body, Input)]
    assert {name: result.get(name) for name in expected} == expected
    assert task.spec.address == inputs[0].address
    assert [body for body in inputs if body.source == "task"] == notices


def script(first: ScriptedCall) -> Script:
    child = ScriptRule("^look it up$", ((says("It is blue."),),))
    return Script(((says("", first),), *(((says("I see."),),) * 5)), (child,))


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize("kind", CALLS)
async def test_a_notice_that_was_promised_comes_when_the_turn_continues_in_a_pipe(tmp_path: Path, kind: str) -> None:
    person = Person(tmp_path)
    with ScriptedServer(script(CALLS[kind])) as server:
        person.uses(server.url)
        with up(person, environ=KILLED) as running, running.client() as client:
            say(client, begin(client, "s"), "go")
            assert running.process.wait(PATIENCE) == -signal.SIGKILL
        expected = {"status": "background_started", "notify": True}
        await assert_kept(person, server.url, "pipe:run", expected, is_notified=True)


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("command", {"status": "background_started", "notify": False}),
        ("child session", {"status": "done", "reply": "It is blue.", "notify": None}),
    ],
    ids=list(CALLS),
)
async def test_a_notice_that_was_not_promised_does_not_come_when_the_turn_continues_in_the_chat(
    tmp_path: Path, kind: str, expected: dict[str, Any]
) -> None:
    person = Person(tmp_path)
    with ScriptedServer(script(CALLS[kind])) as server:
        person.uses(server.url)
        assert person.types("run", "-s", "s", "go", environ=KILLED).code == -signal.SIGKILL
        await assert_kept(person, server.url, "terminal:chat", expected, is_notified=False)
