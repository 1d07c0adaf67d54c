"""kill -9 of Outrider while ten background commands, a child session and a command that a turn waits for run.

Counted outside: by the logs of the commands, by the process table, and by a model that writes down what it is shown.
"""

import json
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import outrider
from bench.task_soak import TICKS, Verdict, judge, round_of, soak, start
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.approvals import HOST, Rule
from outrider.core.events import Entry, Input, Result
from outrider.core.prompt import Prompt, ToolMessage, UserMessage
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedModel, ScriptedReply, call, says
from tests.support.survivors import end_all, living, survivors, until_none_survives

pytestmark = [pytest.mark.promise("L4"), pytest.mark.promise("L6")]


@pytest.mark.parametrize(
    "points",
    [
        ("call_intent_recorded:3",),
        ("result_not_recorded:5",),
        ("task_end_not_recorded",),
        ("task_started:6",),
        ("result_not_recorded:2", "call_intent_recorded:3", "task_end_not_recorded:3"),
    ],
)
def test_commands_run_on_and_each_end_is_reported_once_wherever_outrider_is_killed(
    tmp_path: Path, points: tuple[str, ...]
) -> None:
    verdict = round_of(tmp_path, points)
    # Commands that were about to start at that very moment are told as not run; no other end is missing.
    assert verdict.unstarted <= 2
    assert replace(verdict, unstarted=0) == Verdict(kills=len(points))


def test_a_command_whose_start_was_interrupted_is_reported_as_not_run(tmp_path: Path) -> None:
    verdict = round_of(tmp_path, ["task_created:4"])
    # The child session may be about to start its command at the same moment.
    assert verdict in (Verdict(kills=1, unstarted=1), Verdict(kills=1, unstarted=2))


def test_random_kills_disturb_no_command_and_no_end_is_lost_or_reported_twice(tmp_path: Path) -> None:
    verdict = soak(tmp_path, rounds=3, seed=11)
    assert not verdict.is_bad, verdict


def test_commands_that_ended_while_outrider_was_down_are_reported_and_others_are_the_same_process(
    tmp_path: Path,
) -> None:
    with start(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "begun\n"
        before = supervisors(tmp_path)
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    assert len(before) > len(TICKS) // 2
    assert len(supervisors(tmp_path) - before) <= 2  # those that were being started at that moment
    before |= supervisors(tmp_path)
    wait_for_end(tmp_path / "work" / f"c{len(TICKS) - 2}")
    between = supervisors(tmp_path)
    with start(tmp_path) as second:
        assert second.wait(60) == 0
    assert between <= before
    assert judge(tmp_path, 1) == Verdict(kills=1)
    assert survivors(tmp_path) == []


def supervisors(folder: Path) -> set[tuple[bytes, int]]:
    """Task and pid of every supervisor that runs. Those it keeps beside the command have its arguments too."""
    found = living(folder / "home" / "tasks").items()
    return {(words.split(b"\0")[4], pid) for pid, words in found if words.split(b"\0")[3:4] == [b"outrider-task"]}


def wait_for_end(log: Path) -> None:
    """Of a command, as it says itself."""
    waiting = f"until grep -qs end '{log}'; do sleep 0.05; done"
    subprocess.run(["/bin/sh", "-c", waiting], check=True, timeout=60)


@asynccontextmanager
async def open_killable(folder: Path, model: ScriptedModel) -> AsyncGenerator[Agent]:
    """Every command here is harmless and needs no sandbox. None of them is left afterwards."""
    (folder / "work").mkdir(exist_ok=True)
    config = replace(load(folder / "home", {}, {}), rules=(Rule("allow", "shell", needs=(HOST,)),))
    try:
        async with outrider.open(config=config, model=model, workspace=folder / "work") as agent:
            yield agent
        await until_none_survives(folder)
    finally:
        end_all(folder)


async def posted(agent: Agent, name: str = "s") -> Session:
    session = await agent.session(name)
    await agent.post("go", session=session, address="terminal:test")
    return session


@pytest.mark.anyio
async def test_a_stop_that_comes_while_a_command_is_being_started_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(says("", call("shell", command="while :; do sleep 0.1; done")), says("never"))
    async with open_killable(tmp_path, model) as agent:
        with anyio.fail_after(60):
            for moment in range(40):
                session = await posted(agent, f"s{moment}")
                await anyio.sleep(moment / 2000)
                await agent.stop(session)
        assert await agent.tasks(open_only=True) == []
        states = {task.state for task in await agent.tasks()}
    assert states <= {"killed"}
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.anyio
async def test_killing_a_child_session_ends_the_command_it_waits_for(tmp_path: Path) -> None:
    def answer(prompt: Prompt) -> ScriptedReply:
        if prompt.messages[0] == UserMessage("work on"):
            return says("", call("shell", command="while :; do sleep 0.1; done"))
        return says("", call("delegate", work="work on", background=True)) if len(prompt.messages) == 1 else says("ok")

    async with open_killable(tmp_path, ScriptedModel(*[answer] * 9)) as agent:
        session = await posted(agent)
        with anyio.fail_after(60):
            while len(await agent.tasks(open_only=True)) < 2:
                await anyio.sleep(0.02)
            (child,) = await agent.tasks(session)
            ended = await agent.kill_task(child)
        left = await agent.tasks(open_only=True)
    assert (ended.state, left) == ("killed", [])


@pytest.mark.anyio
async def test_a_command_that_cannot_be_started_now_is_reported_in_the_result_only(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="true", background=True)), says("sorry"), says("again?"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "tasks").write_text("in the way")
    async with open_killable(tmp_path, model) as agent:
        with anyio.fail_after(60):
            turn = await agent.say("go", session="s", address="terminal:test")
            (task,) = await agent.tasks()
            task = await agent.wait_task(task)
        bodies = [entry.body for entry in await agent.journal(await agent.session("s"))]
    (result,) = [body for body in bodies if isinstance(body, Result)]
    assert (turn.outcome, turn.text, result.failed) == ("done", "sorry", True)
    assert (task.state, task.why) == ("failed", result.text)
    assert result.text.startswith("the command was not started: ")
    assert [body for body in bodies if isinstance(body, Input) and body.source == "task"] == []


@pytest.mark.anyio
async def test_a_line_too_long_to_be_read_at_once_does_not_hide_what_is_watched_for(tmp_path: Path) -> None:
    script = "head -c 1200000 /dev/zero | tr '\\0' x; echo; echo FOUND it; while [ ! -e go ]; do sleep 0.05; done"
    model = ScriptedModel(says("", call("shell", command=script, background=True, watch="FOUND")), *[says("ok")] * 4)
    async with open_killable(tmp_path, model) as agent:
        session = await posted(agent)
        notices: list[str] = []
        with anyio.fail_after(60):
            async for event in agent.follow(session):
                if isinstance(event, Entry) and isinstance(event.body, Input) and event.body.source == "task":
                    notices.append(event.body.text)
                    (tmp_path / "work" / "go").touch()
                    if len(notices) == 2:
                        break
    assert "| FOUND it" in notices[0]
    assert notices[1].splitlines()[0].endswith("succeeded]")


@pytest.mark.anyio
@pytest.mark.promise("L7")
async def test_a_catastrophic_watch_pattern_blocks_nothing_and_is_reported(tmp_path: Path) -> None:
    pattern = "(a+)+$"

    def waits(prompt: Prompt) -> ScriptedReply:
        (started,) = [message for message in prompt.messages if isinstance(message, ToolMessage)]
        task = json.loads(started.results[0].text)["task"]
        return says("", call("tasks", action="wait", task=task, until=pattern, limit=30))

    script = f"echo {'a' * 60}!; while [ ! -e go ]; do sleep 0.05; done"
    begins = says("", call("shell", command=script, background=True, watch=pattern))
    async with open_killable(tmp_path, ScriptedModel(begins, waits, *[says("ok")] * 4)) as agent:
        with anyio.fail_after(60):
            turn = await agent.say("go", session="s", address="terminal:test")
            (task,) = await agent.tasks()
            while not (task := await agent.find_task(task.id)).notices:
                await anyio.sleep(0.05)
            (tmp_path / "work" / "go").touch()
            ended = await agent.wait_task(task)
            await agent.wait(await agent.session("s"))
        bodies = [entry.body for entry in await agent.journal(await agent.session("s"))]
    _, waited = [body for body in bodies if isinstance(body, Result)]
    slow, _ = [body.text for body in bodies if isinstance(body, Input) and body.source == "task"]
    assert (turn.outcome, ended.state, waited.failed) == ("done", "succeeded", True)
    assert waited.text == f"matching {pattern!r} takes too long; use a simpler pattern"
    assert slow == "\n".join(
        [
            f"[Task {task.id} is no longer watched: matching {pattern} takes too long]",
            f"[… the output after this was not searched: tasks(action=read, task={task.id}, start=0)]",
        ]
    )
