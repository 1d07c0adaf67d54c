"""The marker of an aborted turn in the text of Codex: quoted, it is text; followed by silence, it ends the turn."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider.testing.scripted_model import ScriptedReply
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import open_codex, shell, summarize
from tests.support.scripted_codex import ScriptedCodex, at
from tests.support.survivors import end_all
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_QUOTE = "Codex writes `<turn_aborted>` or `<turn_aborted/>` when it stops. That is all."


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCodex]:
    """A scripted Codex, with a short grace after the marker."""
    tune_codex(monkeypatch, tmp_path, abort_grace=2.0)
    yield ScriptedCodex(tmp_path)
    end_all(tmp_path)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A12")
@pytest.mark.parametrize("chunk", [0, 1, 5])
async def test_an_answer_that_quotes_the_marker_is_whole_and_the_turn_goes_on(tmp_path: Path, chunk: int) -> None:
    quotes = ScriptedReply(_QUOTE, (shell("echo after"),), chunk=chunk)
    lines = script(quotes, ScriptedReply(f"As I said: {_QUOTE}", chunk=chunk))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            done = await agent.say("what is the marker?", session="s")
            journal = await agent.journal(await agent.find("s"))
    assert (done.outcome, done.text) == ("done", f"As I said: {_QUOTE}")
    assert [line for line in summarize(journal) if line.startswith(("reply", "result"))] == [
        f"reply {_QUOTE}",
        "reply shell",
        "result after\n",
        f"reply As I said: {_QUOTE}",
    ]


@pytest.mark.behaviour("A12")
@pytest.mark.parametrize("size", [1, 8, 80])
async def test_silence_after_the_marker_ends_the_turn_and_keeps_its_text(scripted: ScriptedCodex, size: int) -> None:
    step = {"say": "half <turn_aborted> done", "chunk": size}
    scripted.will([{"run": "true"}, step], faults=at("before turn/completed", "wait released"))
    async with scripted.open_agent(codex_seconds="86400", codex_quiet="86400") as agent:
        with anyio.fail_after(60):
            done = await agent.say("go", session="s")
    assert (done.outcome, done.text) == ("failed", "half <turn_aborted> done")
    assert done.error.startswith("Codex aborted the turn.")
    scripted.release("released")


@pytest.mark.behaviour("A12")
async def test_what_codex_says_of_the_turn_decides_after_the_marker(scripted: ScriptedCodex) -> None:
    scripted.will([{"say": f"It says {_QUOTE}"}, {"fail": {"message": "out of quota"}}])
    async with scripted.open_agent() as agent:
        with anyio.fail_after(60):
            done = await agent.say("go", session="s")
    assert done.outcome == "failed"
    assert done.error.startswith("out of quota.")
    assert done.text == f"It says {_QUOTE}"
