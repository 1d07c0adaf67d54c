"""One process of Codex for all workspaces: each thread stays in its own, and a turn survives the faults of others."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Begun, Ended, Entry, Reply, Result
from outrider.core.prompt import UNKNOWN
from outrider.core.store_port import Session
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import open_codex, processes, shell
from tests.support.scripted_codex import ScriptedCodex
from tests.support.survivors import end_all
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.promise("L3")]
PATIENCE = 120.0


async def begin(agent: Agent, folder: Path, text: str) -> Session:
    """Start a turn in this workspace, in a session with the same name."""
    folder.mkdir(exist_ok=True)
    there = agent.in_workspace(folder)
    session = await there.session(folder.name)
    await there.post(text, session=session, address="terminal:t")
    return session


async def ended(agent: Agent, session: Session) -> Ended:
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, Ended):
            return event.body
    raise AssertionError("never ended")


async def until_exists(*paths: Path) -> None:
    while not all(path.exists() for path in paths):
        await anyio.sleep(0.02)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A10")
async def test_turns_in_two_workspaces_share_a_process_and_both_continue_after_it_was_killed(tmp_path: Path) -> None:
    waits = shell("pwd >> where; touch began; while [ -e began ]; do sleep 0.05; done")
    lines = Script(rules=(ScriptRule("interrupted", ((says("done"),),)), ScriptRule(".*", ((says("", waits),),))))
    with anyio.fail_after(PATIENCE):
        async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
            folders = [tmp_path / "one", tmp_path / "two"]
            sessions = [await begin(agent, folder, "go") for folder in folders]
            await until_exists(*(folder / "began" for folder in folders))
            for session in sessions:
                while not any(isinstance(entry.body, Begun) for entry in await agent.journal(session)):
                    await anyio.sleep(0.02)
            (process,) = processes(tmp_path)
            os.kill(process, signal.SIGKILL)
            ends = [(await ended(agent, session)).outcome for session in sessions]
            journals = [await agent.journal(session) for session in sessions]
            assert (ends, len(processes(tmp_path))) == (["done", "done"], 1)
    for folder, journal in zip(folders, journals, strict=True):
        assert (folder / "where").read_text() == f"{folder}\n"
        assert [entry.body.text for entry in journal if isinstance(entry.body, Result)] == [UNKNOWN]
        assert [entry.body.text for entry in journal if isinstance(entry.body, Reply) and entry.body.text] == ["done"]


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[ScriptedCodex]:
    yield ScriptedCodex(tmp_path)
    end_all(tmp_path)


async def test_a_turn_continues_elsewhere_when_its_process_is_ended_because_another_turn_does_not_stop(
    codex: ScriptedCodex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_codex(monkeypatch, tmp_path, interrupt_timeout=0.2)
    waits = "echo x >> did; while [ ! -e go ]; do sleep 0.05; done"
    codex.will([{"run": waits}, {"say": "done"}], faults={"ignores": ["turn/interrupt"]})
    with anyio.fail_after(PATIENCE):
        async with codex.open_agent() as agent:
            stuck, other = tmp_path / "stuck", tmp_path / "other"
            sessions = [await begin(agent, folder, "go") for folder in (stuck, other)]
            await until_exists(stuck / "did", other / "did")
            await agent.stop(sessions[0])
            first = await ended(agent, sessions[0])
            second = await ended(agent, sessions[1])
            assert (first.outcome, second.outcome, len(codex.lives)) == ("interrupted", "done", 2)
            assert (other / "did").read_text() == "x\n"
