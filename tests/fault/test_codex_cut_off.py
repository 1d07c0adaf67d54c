"""kill -9 of Outrider at moments of a Codex turn that only a scripted app-server can hold still: between its messages.

The old app-server may still be there when the next life begins, and may still have the thread open.
"""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Bound, Ended, Reply, Result
from tests.support.life import start_life
from tests.support.scripted_codex import ScriptedCodex, Step, at
from tests.support.survivors import end_all, until_none_survives

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("L3"),
    pytest.mark.promise("L4"),
    pytest.mark.promise("L12"),
]
TURN: list[Step] = [
    {"say": "I look"},
    {"run": "echo x >> did"},
    {"tool": "tasks", "args": {"do": "list"}},
    {"say": "all done"},
]
WENT_ON: list[Step] = [{"say": "went on"}]
BEFORE = ("got initialize", "got thread/start", "answered thread/start", "got turn/start")
AFTER = (
    "answered turn/start",
    "turn/started",
    "item/completed userMessage",
    "item/completed agentMessage",
    "item/started commandExecution",
    "before item/completed commandExecution",
    "item/completed commandExecution",
    "before item/tool/call",
    "answered item/tool/call",
    "item/completed dynamicToolCall",
    "before turn/completed",
)
_PATIENCE = 60.0


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[ScriptedCodex]:
    yield ScriptedCodex(tmp_path)
    end_all(tmp_path)


@pytest.mark.parametrize("is_gone", [True, False], ids=["it is gone", "it is still there"])
@pytest.mark.parametrize("moment", [*BEFORE, *AFTER])
async def test_a_killed_turn_continues_where_codex_was(codex: ScriptedCodex, moment: str, is_gone: bool) -> None:
    codex.will(TURN, WENT_ON, faults=at(moment, "mark met", "wait go"))
    await _killed_when_met(codex)
    if is_gone:
        codex.release("go")
        with anyio.fail_after(_PATIENCE):
            while codex.alive():
                await anyio.sleep(0.02)
    async with codex.open_agent() as agent:
        with anyio.fail_after(_PATIENCE):
            await agent.resume_all()
            turn = await agent.wait(await agent.find("s"))
        assert turn
        assert (turn.outcome, turn.text in ("all done", "went on")) == ("done", True), turn
        journal = [entry.body for entry in await agent.journal(await agent.find("s"))]
    assert len((codex.work / "did").read_text().splitlines() if (codex.work / "did").exists() else []) <= 1
    assert sum(isinstance(body, Ended) for body in journal) == 1
    calls = [call.id for body in journal if isinstance(body, Reply) for call in body.calls]
    results = [body.call for body in journal if isinstance(body, Result)]
    assert (len(set(calls)), sorted(results)) == (len(calls), sorted(calls))
    replies = [body.text for body in journal if isinstance(body, Reply) and body.text]
    assert len(replies) == len(set(replies))
    threads = {body.thread for body in journal if isinstance(body, Bound)}
    inputs = [line for params in codex.requests("turn/start") for line in params["input"] if line["text"] == "go"]
    if moment in AFTER[2:]:
        assert (len(threads), len(inputs)) == (1, 1)
    await until_none_survives(codex.work.parent)


async def _killed_when_met(codex: ScriptedCodex) -> None:
    """A life of Outrider that is killed at the moment at which the app-server holds still."""
    with start_life(codex.work.parent, codex.settings()) as life:
        with anyio.fail_after(_PATIENCE):
            while not (codex.folder / "met").exists():
                await anyio.sleep(0.02)
        life.kill()
        life.communicate(timeout=_PATIENCE)


@pytest.mark.promise("L5")
async def test_an_answered_question_is_not_asked_again_after_a_kill(codex: ScriptedCodex) -> None:
    answer: list[Step] = [{"say": "all done", "phase": "final_answer"}]
    codex.will(answer, WENT_ON, faults=at("item/completed agentMessage", "mark met", "wait go"))
    await _killed_when_met(codex)
    async with codex.open_agent() as agent:
        with anyio.fail_after(_PATIENCE):
            await agent.resume_all()
            turn = await agent.wait(await agent.find("s"))
        assert turn
        assert (turn.outcome, turn.text) == ("done", "all done")
        journal = [entry.body for entry in await agent.journal(await agent.find("s"))]
    replies = [body.text for body in journal if isinstance(body, Reply)]
    assert (replies, len(codex.requests("turn/start"))) == (["all done"], 1)
