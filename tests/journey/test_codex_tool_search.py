"""A person's own MCP tools in turns of the real Codex, which its model finds with `tool_search`."""

import sys
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Reply, Result
from outrider.testing.scripted_model import ScriptedCall, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_home, open_codex, summarize, texts
from tests.support.questions import asked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.behaviour("A3")]
POKE = Path(__file__).parents[1] / "support" / "mcp_poke.py"


@pytest.mark.behaviour("A15")
@pytest.mark.parametrize(("answer", "result"), [("once", "poked it"), ("no", "not run: the person did not allow it")])
async def test_a_tool_that_the_model_searches_for_is_asked_about_called_and_recorded(
    tmp_path: Path, answer: str, result: str
) -> None:
    settings = f'[mcp_servers.pk]\ncommand = "{sys.executable}"\nargs = ["-I", "-S", "{POKE}"]\n'
    lines = script(
        says("", ScriptedCall("tool_search", {"query": "poke something", "limit": 3})),
        says("", ScriptedCall("poke", {"a": "it"}, namespace="mcp__pk")),
        says("ok"),
    )
    async with open_scripted_server(lines) as model:
        codex_home(tmp_path, model.url, more=settings)
        async with open_codex(tmp_path, model.url) as agent:
            with anyio.fail_after(90):
                session = await agent.session("s")
                await agent.post("go", session=session, address="terminal:test")
                question = await asked(agent, session)
                await agent.answer(session, question, answer)
                await agent.wait(await agent.find(session.id))
                journal = await agent.journal(session)
    calls = [call for entry in journal if isinstance(entry.body, Reply) for call in entry.body.calls]
    assert ("poke" in question.question, '{"a":"it"}' in question.question) == (True, True)
    assert [(call.tool, call.args) for call in calls] == [("mcp_pk_poke", {"a": "it"})]
    assert [entry.body.text for entry in journal if isinstance(entry.body, Result)] == [result]
    assert summarize(journal)[-2:] == ["reply ok", "ended done"]
    # The search itself was answered by Codex with our tool, and its model got what the tool returned.
    assert '"tool_search_output"' in texts(model.requests[1])
    assert "mcp__pk" in texts(model.requests[1])
    assert (answer == "once") == ("poked it" in texts(model.requests[2]))
