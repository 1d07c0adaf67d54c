"""Approval requests of Codex become questions of Outrider: answered from anywhere, after a restart, or by nobody."""

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Ended, Entry, Resumed
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_home, open_codex, processes, shell, summarize
from tests.support.questions import asked
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.behaviour("A15")]

TERMINAL, PIPE = "terminal:test", "pipe:test"
WANTS = {"sandbox_permissions": "require_escalated", "justification": "to look around"}


def steps(*lines: ScriptedReply) -> Script:
    """The replies of the model, step by step since the last message of the person."""
    return Script(rules=(ScriptRule(".*", tuple((line,) for line in lines)),))


@asynccontextmanager
async def at_work(folder: Path, lines: Script, approval: str = "on-request") -> AsyncGenerator[Agent]:
    async with (
        open_scripted_server(lines) as server,
        open_codex(folder, server.url, codex_approval=approval) as agent,
    ):
        with anyio.fail_after(90):
            yield agent


async def begin(agent: Agent, address: str = TERMINAL) -> Session:
    session = await agent.session("s")
    await agent.post("go", session=session, address=address)
    return await agent.find(session.id)


async def ended(agent: Agent, session: Session) -> list[str]:
    """The journal when the turn has ended."""
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, Ended):
            return summarize(await agent.journal(session))
    raise AssertionError("never ended")


@pytest.mark.needs("bubblewrap")
async def test_a_turn_that_only_waits_for_an_answer_is_handed_over_at_once(tmp_path: Path) -> None:
    lines = steps(says("", shell("touch yes", **WANTS)), says("ok"))
    async with open_scripted_server(lines) as server:
        async with open_codex(tmp_path, server.url, codex_approval="on-request") as agent:
            question = await asked(agent, await begin(agent))
            # Longer than the test may take: no running step has to end first.
            await agent.drain("going down", 600)
        async with open_codex(tmp_path, server.url, codex_approval="on-request") as agent:
            session = await agent.find("s")
            assert await agent.answer(session, question, "once")
            await ended(agent, session)
            resumed = [entry.body for entry in await agent.journal(session) if isinstance(entry.body, Resumed)]
    assert resumed == [Resumed(crashed=False)]
    assert (tmp_path / "work" / "yes").exists()


@pytest.mark.needs("bubblewrap")
async def test_a_command_that_leaves_the_sandbox_runs_when_a_person_allows_it(tmp_path: Path) -> None:
    lines = steps(says("", shell("touch yes; echo done", **WANTS)), says("ok"))
    async with at_work(tmp_path, lines) as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        assert not (tmp_path / "work" / "yes").exists()
        assert await agent.answer(session, question, "once")
        journal = await ended(agent, session)
    assert (tmp_path / "work" / "yes").exists()
    assert question.question.splitlines() == [
        f"Allow this command without a sandbox, in {tmp_path / 'work'}?",
        "| touch yes; echo done",
        "The model's reason:",
        "| to look around",
        "A yes for the session or the workspace covers every later command there that needs the same. "
        "Without a sandbox, a command can do all that the user who runs Outrider can.",
    ]
    assert journal[4:] == [
        "reply shell",
        "asked",
        "answered once",
        "begun",
        "result done\n",
        "reply ok",
        "ended done",
    ]


NO_REASONS = {
    TERMINAL: "the person did not allow it",
    PIPE: "it needs approval, and nobody was there to give it",
}


@pytest.mark.parametrize("address", [TERMINAL, PIPE])
async def test_a_command_does_not_run_after_a_no_or_when_nobody_can_answer(tmp_path: Path, address: str) -> None:
    lines = steps(says("", shell("touch yes", **WANTS)), says("then not"))
    async with at_work(tmp_path, lines) as agent:
        session = await begin(agent, address)
        if address == TERMINAL:
            await agent.answer(session, await asked(agent, session), "no")
        journal = await ended(agent, session)
    assert not (tmp_path / "work" / "yes").exists()
    assert journal[4:] == [
        "reply shell",
        "asked",
        "answered no",
        f"result not run: {NO_REASONS[address]}",
        "reply then not",
        "ended done",
    ]


@pytest.mark.needs("bubblewrap")
async def test_two_questions_at_once_are_asked_one_after_the_other_and_both_results_are_kept(tmp_path: Path) -> None:
    lines = steps(says("", shell("echo one", **WANTS), shell("echo two", **WANTS)), says("ok"))
    async with at_work(tmp_path, lines) as agent:
        session = await begin(agent)
        await agent.answer(session, await asked(agent, session), "once")
        await agent.answer(session, await asked(agent, session, 2), "once")
        journal = await ended(agent, session)
    results = "".join(line for line in journal if line.startswith("result"))
    assert ("one\n" in results, "two\n" in results) == (True, True)


@pytest.mark.needs("bubblewrap")
async def test_after_a_yes_for_the_session_no_question_follows(tmp_path: Path) -> None:
    lines = steps(says("", shell("echo one", **WANTS)), says("", shell("echo two", **WANTS)), says("ok"))
    async with at_work(tmp_path, lines) as agent:
        session = await begin(agent)
        await agent.answer(session, await asked(agent, session), "session")
        journal = await ended(agent, session)
    assert journal.count("asked") == 1
    assert [line for line in journal if line.startswith("result")] == ["result one\n", "result two\n"]


@pytest.mark.needs("bubblewrap")
async def test_a_patch_is_shown_with_what_it_changes(tmp_path: Path) -> None:
    patch = ScriptedCall(
        "apply_patch", raw="*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n", custom=True
    )
    async with at_work(tmp_path, steps(says("", patch), says("ok")), approval="untrusted") as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        assert not (tmp_path / "work" / "a.txt").exists()
        await agent.answer(session, question, "once")
        journal = await ended(agent, session)
    path = tmp_path / "work" / "a.txt"
    assert path.read_text() == "hello\n"
    assert question.question.splitlines()[1:] == [
        f"| add {path}",
        "| hello",
        "| ",
        "A yes for the session or the workspace covers every later command there that needs the same.",
    ]
    assert journal[4:] == [
        "reply patch",
        "asked",
        "answered once",
        "begun",
        f"result add {path}",
        "reply ok",
        "ended done",
    ]


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("answer", ["once", "no"])
async def test_a_question_survives_a_restart_and_its_answer_applies_once(tmp_path: Path, answer: str) -> None:
    lines = steps(says("", shell("echo run >> ran", **WANTS)), says("ok"))
    async with open_scripted_server(lines) as server:
        async with open_codex(tmp_path, server.url) as agent:
            session = await begin(agent)
            question = await asked(agent, session)
        async with open_codex(tmp_path, server.url) as agent:
            await agent.answer(session, question, answer)
            await agent.resume_all()
            journal = await ended(agent, session)
    assert journal.count("asked") == 1
    assert journal[-2:] == ["reply ok", "ended done"]
    ran = tmp_path / "work" / "ran"
    assert (ran.read_text() if ran.exists() else "") == ("run\n" if answer == "once" else "")


@pytest.mark.needs("bubblewrap")
async def test_a_turn_whose_question_stays_unanswered_is_suspended_and_resumes_with_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_codex(monkeypatch, tmp_path, answer_timeout=0.5)
    lines = steps(says("", shell("echo run >> ran", **WANTS)), says("ok"))
    async with at_work(tmp_path, lines) as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        while (await agent.health()).turns:
            await anyio.sleep(0.05)
        (process,) = processes(tmp_path)
        await agent.answer(session, question, "once")
        journal = await ended(agent, session)
        assert processes(tmp_path) == [process]
    assert (tmp_path / "work" / "ran").read_text() == "run\n"
    assert journal.count("asked") == 1
    assert journal[-2:] == ["reply ok", "ended done"]


async def test_a_tool_of_an_mcp_server_needs_an_approval_and_its_result_is_recorded(tmp_path: Path) -> None:
    server = Path(__file__).parents[1] / "support" / "mcp_poke.py"
    more = f'[mcp_servers.pk]\ncommand = "{sys.executable}"\nargs = ["-I", "-S", "{server}"]\n'
    lines = steps(says("", ScriptedCall("poke", {"a": "1"}, namespace="mcp__pk")), says("ok"))
    async with open_scripted_server(lines) as model:
        codex_home(tmp_path, model.url, more=more)
        async with open_codex(tmp_path, model.url) as agent:
            with anyio.fail_after(60):
                session = await begin(agent)
                question = await asked(agent, session)
                await agent.answer(session, question, "once")
                journal = await ended(agent, session)
    assert "poke" in question.question
    assert '{"a":"1"}' in question.question
    assert journal[4:] == [
        "reply mcp_pk_poke",
        "asked",
        "answered once",
        "begun",
        "result poked 1",
        "reply ok",
        "ended done",
    ]


@pytest.mark.parametrize("answer", ["once", "no"])
async def test_a_tool_of_ours_asks_for_what_it_needs_and_codex_gets_its_result(tmp_path: Path, answer: str) -> None:
    wants = call("background", command="touch ran", needs=["network"], why="to fetch", notify="never")
    async with at_work(tmp_path, steps(says("", wants), says("ok"))) as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        assert await agent.tasks() == []
        await agent.answer(session, question, answer)
        journal = await ended(agent, session)
        count = len(await agent.tasks())
    assert "touch ran" in question.question
    assert count == (1 if answer == "once" else 0)
    assert [line.split()[0] for line in journal[4:]].count("result") == 1
    assert journal[-2:] == ["reply ok", "ended done"]


async def test_a_command_that_waited_for_an_answer_when_codex_died_was_not_run(tmp_path: Path) -> None:
    async with at_work(tmp_path, steps(says("", shell("touch yes", **WANTS)), says("ok"))) as agent:
        session = await begin(agent)
        await asked(agent, session)
        (process,) = processes(tmp_path)
        os.kill(process, signal.SIGKILL)
        journal = await ended(agent, session)
    assert journal[5:7] == ["asked", "result not run: it waited for an answer when the work was interrupted"]
    assert not (tmp_path / "work" / "yes").exists()
