"""Codex turns that are stopped, steered, interrupted or resumed."""

import os
import signal
from pathlib import Path
from shutil import rmtree

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Begun, Ended, Entry, Reply, Result
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_home, collect_notes, open_codex, processes, shell, summarize, texts
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def until(condition: object) -> None:
    assert callable(condition)
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.02)


async def running(agent: Agent, session: Session) -> None:
    """Wait until the journal says that a command has begun."""
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, Begun):
            return


async def over(agent: Agent, session: Session, count: int = 1) -> list[str]:
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, Ended):
            count -= 1
            if not count:
                return summarize(await agent.journal(session))
    raise AssertionError("never ended")


@pytest.mark.behaviour("A9")
async def test_a_stop_ends_the_running_command_and_keeps_a_process_that_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_codex(monkeypatch, tmp_path, interrupt_timeout=60.0)
    lines = script(says("starting", shell("touch began; sleep 300")), says("second"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await running(agent, session)
            (before,) = processes(tmp_path)
            assert await agent.stop(session)
            journal = await over(agent, session)
            done = await agent.say("again", session="s")
            assert processes(tmp_path) == [before]
    assert journal[4:] == ["reply starting", "reply shell", "begun", "ended interrupted stopped"]
    assert done.text == "second"


@pytest.mark.behaviour("A8")
async def test_when_codex_dies_the_turn_fails_and_the_next_one_continues_in_the_same_thread(tmp_path: Path) -> None:
    lines = script(says("remember plum", shell("touch began; sleep 300")), says("plum it was"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await running(agent, session)
            (before,) = processes(tmp_path)
            os.kill(before, signal.SIGKILL)
            journal = await over(agent, session)
            done = await agent.say("what was it?", session="s")
            assert before not in processes(tmp_path)
    assert journal[4:7] == ["reply remember plum", "reply shell", "begun"]
    assert "killed by SIGKILL" in journal[-1]
    assert "/runtime native" in journal[-1]
    assert done.text == "plum it was"
    assert "remember plum" in texts(server.requests[-1])


@pytest.mark.needs("bubblewrap")
async def test_a_message_during_a_turn_reaches_it(tmp_path: Path) -> None:
    waits = says("", shell("touch began; while [ ! -e go ]; do sleep 0.05; done"))
    # Until the message is there the model only runs commands, so the turn cannot end before the message comes.
    busy = says("", shell("sleep 0.1"))
    lines = Script(((waits,), *[(busy,)] * 200), (ScriptRule("and be quick", ((says("I am quick"),),)),))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await until((tmp_path / "work" / "began").exists)
            await agent.post("and be quick", session=session, address="terminal:t")
            (tmp_path / "work" / "go").touch()
            journal = await over(agent, session)
    assert journal.count("input and be quick") == 1
    assert journal[-2:] == ["reply I am quick", "ended done"]
    assert sum(line.startswith("started") for line in journal) == 1
    assert [texts(request).count("and be quick") for request in server.requests[-2:]] == [0, 1]


@pytest.mark.needs("bubblewrap")
async def test_our_tools_run_as_ours_and_a_background_command_outlives_the_turn(tmp_path: Path) -> None:
    wait = "touch bg; while [ ! -e go ]; do sleep 0.05; done; touch gone"
    lines = script(
        says("", call("background", command=wait, notify="never")), says("", call("tasks", action="list")), says("ok")
    )
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            done = await agent.say("go", session="s", address="terminal:t")
            (task,) = await agent.tasks(open_only=True)
            (tmp_path / "work" / "go").touch()
            ended = await agent.wait_task(task)
            journal = summarize(await agent.journal(await agent.find("s")))
    assert (done.text, ended.state) == ("ok", "succeeded")
    assert (tmp_path / "work" / "gone").exists()
    assert task.id in texts(server.requests[-1])
    assert [line for line in journal if line.startswith(("reply", "begun"))] == [
        "reply shell",
        "begun",
        "reply tasks",
        "begun",
        "reply ok",
    ]


@pytest.mark.needs("bubblewrap")
async def test_a_turn_that_is_handed_over_resumes_where_it_was(tmp_path: Path) -> None:
    lines = script(says("one", shell("echo first >> log")), says("two", shell("touch began; sleep 300")), says("three"))
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url) as agent:
                session = await agent.session("s")
                await agent.post("go", session=session, address="terminal:t")
                await until((tmp_path / "work" / "began").exists)
            assert processes(tmp_path) == []
            async with open_codex(tmp_path, server.url) as agent:
                await agent.resume_all()
                journal = await over(agent, session)
                entries = await agent.journal(session)
    assert (tmp_path / "work" / "log").read_text() == "first\n"
    assert [line for line in journal if line.startswith("input")] == ["input go"]
    replies = [entry.body.text for entry in entries if isinstance(entry.body, Reply) and entry.body.text]
    assert replies == ["one", "two", "three"]
    assert journal[-1] == "ended done"
    assert texts(server.requests[-1]).count('"go"') == 1
    assert "interrupted" in texts(server.requests[-1])


@pytest.mark.needs("bubblewrap")
async def test_secrets_are_in_no_command_of_codex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1234567890")
    monkeypatch.setenv("PROVIDER_KEY", "pk-secret-1234567890")
    lines = script(says("", shell("env")), says("ok"))
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_env="PROVIDER_KEY") as agent,
    ):
        with anyio.fail_after(90):
            await agent.say("go", session="s")
            journal = "\n".join(summarize(await agent.journal(await agent.find("s"))))
    assert "PATH=" in journal
    assert "secret-1234567890" not in journal


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A10")
async def test_a_turn_that_exceeds_its_time_ends_the_process_and_the_next_turn_starts_another(tmp_path: Path) -> None:
    lines = script(says("hm", ScriptedCall("exec_command", {"cmd": "touch began; sleep 300"})), says("fine"))
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_seconds="3") as agent,
    ):
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await running(agent, session)
            (before,) = processes(tmp_path)
            journal = await over(agent, session)
            done = await agent.say("again", session="s")
            assert before not in processes(tmp_path)
    assert "codex.seconds" in journal[-1]
    assert done.text == "fine"


@pytest.mark.behaviour("A11")
async def test_a_silent_turn_that_is_still_active_continues(tmp_path: Path) -> None:
    lines = script(says("", shell("true")), [Stall("headers"), says("at last")])
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url, codex_quiet="1") as agent:
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await server.wait_async(2)
            await anyio.sleep(2.5)  # the silence: longer than codex.quiet, after which Codex is asked whether it works
            server.release()
            journal = await over(agent, session)
    assert journal[-2:] == ["reply at last", "ended done"]


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A10")
async def test_a_process_is_reused_by_the_next_turn_and_ended_when_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_scripted_server(script("one", "two", "three")) as server,
        open_codex(tmp_path, server.url) as agent,
    ):
        with anyio.fail_after(90):
            await agent.say("a", session="s")
            before = processes(tmp_path)
            await agent.say("b", session="s")
            assert processes(tmp_path) == before
    tune_codex(monkeypatch, tmp_path, idle_timeout=0.5)
    async with (
        open_scripted_server(script("one", "two", "three")) as server,
        open_codex(tmp_path, server.url) as agent,
    ):
        codex_home(tmp_path, server.url)
        with anyio.fail_after(90):
            assert (await agent.say("c", session="s")).text == "three"
            await until(lambda: not processes(tmp_path))
            assert (await agent.say("d", session="s")).outcome == "done"


@pytest.mark.needs("bubblewrap")
async def test_sessions_of_one_workspace_share_a_process_and_get_only_their_own_messages(tmp_path: Path) -> None:
    rules = tuple(
        ScriptRule(f"number {n}", ((says(f"I am {n}", shell(f"echo {n}")),), (says(f"done {n}"),))) for n in range(4)
    )
    texts_of: dict[int, tuple[str, list[str]]] = {}

    async def ask(agent: Agent, n: int) -> None:
        done = await agent.say(f"number {n}", session=f"s{n}")
        journal = summarize(await agent.journal(await agent.find(f"s{n}")))
        texts_of[n] = done.text, [line for line in journal if line.startswith("result")]

    async with open_scripted_server(Script(rules=rules)) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            async with anyio.create_task_group() as group:
                for n in range(4):
                    group.start_soon(ask, agent, n)
            assert len(processes(tmp_path)) == 1
    assert texts_of == {n: (f"done {n}", [f"result {n}\n"]) for n in range(4)}


@pytest.mark.needs("bubblewrap")
async def test_a_long_output_is_stored_whole_outside_of_the_journal(tmp_path: Path) -> None:
    lines = script(says("", shell("seq 1 20000")), says("ok"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(90):
            await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
            (result,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
            whole = agent.home.blobs.get(result.blob).decode()
    assert len(result.text) < 21_000
    assert whole.splitlines()[-1] == "20000"
    assert whole.count("\n") == 20_000


@pytest.mark.needs("bubblewrap")
async def test_an_interrupted_call_of_our_tool_gets_a_result_and_does_not_run_twice(tmp_path: Path) -> None:
    start = call("background", command="echo x >> ran; touch began; sleep 300", notify="never")
    waiting = ScriptedCall("tasks", {"action": "list"})
    look = call("delegate", work="say hello", description="a child")
    hello = says("hello from the child")
    child = ScriptRule(r"say hello|was interrupted\. Continue", ((Stall("headers"), hello),))
    lines = Script(
        tuple((line,) for line in (says("", start), says("", look), says("", waiting), says("ok"))), (child,)
    )
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url) as agent:
                session = await agent.session("s")
                await agent.post("go", session=session, address="terminal:t")
                await server.wait_async(3)
                (task,) = [task for task in await agent.tasks() if task.spec.kind == "command"]
            async with open_codex(tmp_path, server.url) as agent:
                await agent.resume_all()
                await until(lambda: len(server.requests) > 3)
                server.release()
                journal = await over(agent, session)
                kinds = sorted(task.spec.kind for task in await agent.tasks())
                await agent.kill_task(await agent.find_task(task.id))
    assert (tmp_path / "work" / "ran").read_text() == "x\n"
    assert kinds == ["command", "session"]
    assert any("hello from the child" in line for line in journal if line.startswith("result"))
    assert journal[-1] == "ended done"


async def test_a_thread_that_codex_lost_is_replaced_by_a_new_one_with_the_history(tmp_path: Path) -> None:
    async with open_scripted_server(script("the word is plum", "plum")) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url) as agent:
                first = await agent.say("what is the word?", session="s")
            for folder in ("sessions", "archived_sessions"):
                rmtree(tmp_path / "codex" / folder, ignore_errors=True)
            for file in (tmp_path / "codex").glob("*.sqlite*"):
                file.unlink()
            async with open_codex(tmp_path, server.url) as agent:
                notes = collect_notes()
                second = await agent.say("again?", session="s", on_event=notes)
    assert (first.outcome, second.outcome) == ("done", "done")
    assert first.thread != second.thread
    assert "the word is plum" in texts(server.requests[-1])
    assert any("has lost its thread of this session" in note for note in notes.notes)
