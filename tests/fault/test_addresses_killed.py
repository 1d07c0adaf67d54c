"""A call that was killed after it started its task keeps its promise, wherever its turn continues."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.life import killed_at
from tests.support.tasking import PIPE, TERMINAL, results, wait_for_notices

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L6"), pytest.mark.behaviour("B2"), pytest.mark.behaviour("B3")]
CALLS = {
    "command": call("shell", command="true", background=True),
    "child session": call("delegate", work="look it up", background=True),
}
PROMISED: dict[tuple[str, str], dict[str, Any]] = {
    (TERMINAL, "command"): {"status": "background_started", "notify": True},
    (PIPE, "command"): {"status": "background_started", "notify": False},
    (TERMINAL, "child session"): {"status": "background_started", "notify": True},
    (PIPE, "child session"): {"status": "done", "reply": "It is blue."},
}


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("before", "after"), [(TERMINAL, PIPE), (PIPE, TERMINAL)], ids=["terminal", "pipe"])
async def test_a_call_keeps_its_promise_when_its_turn_continues_elsewhere(
    tmp_path: Path, before: str, after: str, kind: str
) -> None:
    with ScriptedServer(_script(CALLS[kind])) as server, anyio.fail_after(90):
        settings = {"model.name": "openai-chat:scripted", "model.url": server.url, "model.key": "k-1234567890"}
        killed_at("result_not_recorded", tmp_path, settings, address=before)
        config = load(tmp_path / "home", {}, settings)
        async with outrider.open(config=config, workspace=tmp_path / "work") as agent:
            session = await agent.find("s")
            await agent.post("and now?", session=session, address=after)
            await agent.wait(session)
            (task,) = await agent.tasks(session)
            await agent.wait_task(task)
            await agent.wait(session)
            (result,) = await results(agent, session)
            notices = await wait_for_notices(agent, session) if before == TERMINAL else []
            journal = await agent.journal(session)
    expected = PROMISED[before, kind]
    assert {name: result[name] for name in expected} == expected
    assert (task.spec.address, [notice.address for notice in notices]) == (before, [before] * len(notices))
    assert sum(getattr(entry.body, "source", "") == "task" for entry in journal) == len(notices)


def _script(first: ScriptedCall) -> Script:
    child = ScriptRule("^look it up$", ((says("It is blue."),),))
    return Script(((says("", first),), *(((says("I see."),),) * 5)), (child,))
