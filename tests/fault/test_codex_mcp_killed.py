"""kill -9 during a call of our tool that Codex made over MCP: it gets a result and never runs twice."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Body, Ended, Reply, Result
from outrider.core.turn_result import TurnResult
from outrider.testing.scripted_model import ScriptedCall, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server
from tests.support.codex import codex_home, codex_settings, open_codex, processes, texts
from tests.support.life import killed_at
from tests.support.survivors import end_all

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.promise("L3"),
    pytest.mark.promise("L4"),
]
_TIMEOUT = 90.0
DONE = "The rent is paid."
START = ScriptedCall("background", {"command": "echo rent >> paid", "notify": "never"}, namespace="mcp__outrider")
CHILD = ScriptedCall("delegate", {"work": "say hello", "description": "a child"}, namespace="mcp__outrider")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(tmp_path)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    "point", ["calls_not_recorded", "call_intent_recorded", "result_not_recorded", "result_recorded"]
)
async def test_a_call_over_mcp_gets_one_result_and_is_not_repeated_when_outrider_was_killed_in_it(
    folder: Path, point: str
) -> None:
    # An app-server that outlives Outrider for a moment gets no answer, so that it cannot end the turn by itself.
    resumed = ScriptRule("was interrupted", ((says(DONE),),))
    lines = Script(((says("", START),), (Stall("headers"), says("too late"))), (resumed,))
    with ScriptedServer(lines) as server, anyio.fail_after(_TIMEOUT):
        killed_at(point, folder, codex_settings(codex_home(folder, server.url), codex_tools="mcp"))
        async with open_codex(folder, server.url, codex_tools="mcp") as agent:
            await agent.resume_all()
            ended = await agent.wait(await agent.find("s"))
            for task in await agent.tasks():
                await agent.wait_task(task)
            journal = [entry.body for entry in await agent.journal(await agent.find("s"))]
        request = texts(server.requests[-1])
    assert ended
    assert (ended.outcome, ended.text) == ("done", DONE)
    calls = [call for body in journal if isinstance(body, Reply) for call in body.calls]
    results = [body for body in journal if isinstance(body, Result)]
    assert [(call.tool, call.id) for call in calls] == [("shell", result.call) for result in results]
    book = folder / "work" / "paid"
    paid = book.read_text() if book.exists() else ""
    # Killed before the call was recorded, it had not begun either.
    assert (len(calls), paid) == ((0, "") if point == "calls_not_recorded" else (1, "rent\n")), results
    assert "was interrupted" in request


async def test_a_call_over_mcp_is_not_repeated_after_codex_was_killed_in_it(folder: Path) -> None:
    # Both turns were in the process, so both continue.
    resumed = ScriptRule("was interrupted", ((says("hello"),),))
    child = ScriptRule("say hello", ((Stall("headers"), says("too late")),))
    lines = Script(((says("", CHILD),), (says("ok"),), (says("ok"),)), (resumed, child))
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(_TIMEOUT):
            done, journal, kinds = await _killed_codex(folder, server)
    assert done.outcome == "done"
    assert kinds == ["session"]
    assert [body.outcome for body in journal if isinstance(body, Ended)] == ["done", "done"]
    calls = [call.id for body in journal if isinstance(body, Reply) for call in body.calls]
    (result,) = [body for body in journal if isinstance(body, Result)]
    assert ([result.call], result.failed, '"reply":"hello"' in result.text) == (calls, False, True)


async def _killed_codex(folder: Path, server: ScriptedServer) -> tuple[TurnResult, list[Body], list[str]]:
    async with open_codex(folder, server.url, codex_tools="mcp") as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address="terminal:t")
        await server.wait_async(2)
        (codex,) = processes(folder)
        os.kill(codex, signal.SIGKILL)
        await agent.wait(await agent.find("s"))
        server.release()
        done = await agent.say("and now?", session="s")
        journal = [entry.body for entry in await agent.journal(session)]
        return done, journal, [task.spec.kind for task in await agent.tasks()]
