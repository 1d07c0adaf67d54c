"""Commands as tasks, through the Python API, with real processes: rows of tests/behaviours.toml."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Ended, Input, Result
from outrider.core.prompt import Prompt, UserMessage
from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support.tasking import PIPE, TERMINAL, open_scripted, results, say_and_wait, wait_for_notices, with_task_id

pytestmark = pytest.mark.anyio


@pytest.mark.needs("sandbox")
async def test_a_command_runs_in_the_workspace_and_gives_its_output_and_exit_code(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="echo hello; pwd; ls; exit 3"), call("shell", command="cat", stdin="given")),
        says("ok"),
    )
    async with open_scripted(tmp_path, model) as agent:
        (tmp_path / "work" / "a.txt").write_text("x")
        first, second = await results(agent, await say_and_wait(agent, "go"))
    assert (first["status"], first["exit_code"]) == ("done", 3)
    assert first["output"] == f"hello\n{tmp_path / 'work'}\na.txt\n"
    assert (second["output"], second["exit_code"]) == ("given", 0)


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D1")
async def test_a_background_command_returns_at_once_with_its_task_and_output_file(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="cat fifo", background=True)), says("started"))
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        (started,) = await results(agent, session)
        tasks = await agent.tasks(session)
        (tmp_path / "work" / "fifo").write_text("done\n")
        (notice,) = await wait_for_notices(agent, session)
    assert (started["status"], started["notify"]) == ("background_started", True)
    assert [task.id for task in tasks] == [started["task"]]
    assert Path(started["output_file"]).read_text() == "done\n"
    assert started["task"] in notice.text


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D2")
async def test_a_task_that_ends_during_the_turn_is_reported_in_the_next_step(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="echo built; exit 2", description="the build", background=True)),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, limit=20))),
        says("it failed"),
        says("as I said"),
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "build")
        (started, _) = await results(agent, session)
    (notice,) = [m for m in model.prompts[2].messages if isinstance(m, UserMessage) and m.source == "task"]
    lines = notice.text.splitlines()
    assert lines[0] == f"[Task {started['task']} failed]"
    assert lines[1:4] == ["command: echo built; exit 2", "description: the build", "exit code: 2"]
    assert lines[4].startswith("duration: ")
    assert lines[5:] == [f"output file: {started['output_file']}", "last output:", "| built"]


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D2")
async def test_a_task_that_ends_after_the_turn_starts_a_new_one(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="cat fifo", background=True)), says("on it"), says("the build is green")
    )
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "build it and tell me")
        (tmp_path / "work" / "fifo").write_text("ok\n")
        await wait_for_notices(agent, session)
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.find(session.id))
    assert turn is None or turn.text == "the build is green"
    assert len(model.prompts) == 3


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D3")
async def test_a_command_that_outlives_its_timeout_continues_and_its_end_is_reported(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="echo before; cat fifo; echo $$ > same", timeout=1)), says("hm"), says("done")
    )
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        (flipped,) = await results(agent, session)
        (tmp_path / "work" / "fifo").write_text("after\n")
        (notice,) = await wait_for_notices(agent, session)
    assert (flipped["status"], flipped["output"], flipped["notify"]) == ("auto_backgrounded", "before\n", True)
    assert "no work was lost" in flipped["message"]
    assert "| before\n| after" in notice.text
    assert Path(flipped["output_file"]).read_text() == "before\nafter\n"


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D4")
@pytest.mark.parametrize(
    ("command", "is_refused"),
    [
        ("sleep 2", True),
        ("sleep 5m", True),
        ("sleep infinity", True),
        ("cd x && sleep 60", True),
        ('timeout 9 sh -c "sleep 3" >/dev/null # wait', True),
        ("sleep 1", False),
        ("sleep 0.1; echo ok", False),
        ("sleep 2 && echo woke", False),
    ],
)
async def test_a_command_that_only_sleeps_is_refused_and_the_turn_continues(
    tmp_path: Path, command: str, is_refused: bool
) -> None:
    model = ScriptedModel(says("", call("shell", command=command)), says("fine"))
    async with open_scripted(tmp_path, model) as agent:
        turn = await agent.say("go", session="s")
        journal = await agent.journal(await agent.session("s"))
    (result,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert (turn.outcome, turn.text, result.failed) == ("done", "fine", is_refused)
    assert not is_refused or "must run in the background. To wait for a task, use the tasks tool" in result.text


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D4")
async def test_a_sleep_in_the_background_is_allowed(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="sleep 300", background=True)), says("fine"))
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        (started,) = await results(agent, session)
        for task in await agent.tasks(session):
            assert (await agent.kill_task(task)).state == "killed"
    assert started["status"] == "background_started"


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D5")
async def test_running_tasks_are_listed_at_the_end_of_each_prompt_and_never_accumulate(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="sleep 300", description="a long build", background=True)),
        says("", call("list")),
        says("ok"),
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        (task,) = await agent.tasks(session)
        await agent.kill_task(task)
    tails = [prompt.tail for prompt in model.prompts[:3]]
    assert tails[0] == ""
    assert all(f"{task.id}: a long build (for " in tail for tail in tails[1:])
    assert not any("Tasks running" in str(prompt.messages) for prompt in model.prompts)


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D6")
async def test_tasks_can_be_listed_read_waited_on_written_to_and_killed(tmp_path: Path) -> None:
    script = "read name; echo hello $name; trap '' TERM; sleep 300 & wait; sleep 300"
    model = ScriptedModel(
        says("", call("shell", command=script, background=True, interactive=True, notify="never")),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, limit=1))),
        with_task_id(lambda task: says("", call("tasks", action="write", task=task, text="Ann", keys=["enter"]))),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, until="hello \\w+", limit=20))),
        with_task_id(lambda task: says("", call("tasks", action="read", task=task, start=0, most=5))),
        with_task_id(lambda task: says("", call("tasks", action="kill", task=task), call("tasks", action="list"))),
        says("killed"),
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        _, timeout, wrote, matched, read, killed, listed = await results(agent, session)
    assert (timeout["status"], timeout["state"]) == ("timeout", "running")
    assert wrote["message"] == "wrote 4 characters"
    assert (matched["status"], matched["output"]) == ("matched", "hello Ann\n")
    assert read["output"] == "hello"
    assert (killed["state"], listed["tasks"][0]["state"]) == ("killed", "killed")


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D6")
async def test_ctrl_c_reaches_the_command_which_can_handle_it(tmp_path: Path) -> None:
    script = "trap 'echo tidied up; exit 5' INT; echo ready; while :; do sleep 0.1; done"
    model = ScriptedModel(
        says("", call("shell", command=script, background=True, interactive=True)),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, until="ready", limit=20))),
        with_task_id(lambda task: says("", call("tasks", action="write", task=task, keys=["ctrl-c"]))),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, limit=20))),
        *[says("ok")] * 3,
    )
    async with open_scripted(tmp_path, model) as agent:
        *_, ended = await results(agent, await say_and_wait(agent, "go"))
    assert (ended["state"], ended["exit_code"], ended["output"]) == ("failed", 5, "ready\ntidied up\n")


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D7")
async def test_a_task_that_waits_at_a_prompt_is_reported_once_and_its_end_too(tmp_path: Path) -> None:
    script = "printf 'Continue? [y/n] '; read answer; echo got $answer"
    model = ScriptedModel(
        says("", call("shell", command=script, background=True, interactive=True)),
        says("it runs"),
        lambda prompt: says("", call("tasks", action="write", task=task_in(prompt), text="y\n")),
        *[says("ok")] * 4,
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        stalled, ended = await wait_for_notices(agent, session, 2)
    assert "seems to be waiting for input" in stalled.text
    assert "| Continue? [y/n]" in stalled.text
    assert ended.text.splitlines()[0].endswith("succeeded]")
    assert "got y" in ended.text


def task_in(prompt: Prompt) -> str:
    notices = [m.text for m in prompt.messages if isinstance(m, UserMessage) and m.source == "task"]
    return notices[-1].split()[1]


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("D8")
async def test_another_session_sees_none_of_a_sessions_tasks(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="sleep 300", background=True)), says("ok"))
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        (task,) = await agent.tasks(session)
        assert await agent.tasks(await agent.session("other")) == []
        await agent.kill_task(task)
    spy = ScriptedModel(
        says("", call("tasks", action="list"), call("tasks", action="read", task=task.id)), says("nothing to see")
    )
    async with open_scripted(tmp_path, spy) as agent:
        session = await say_and_wait(agent, "go", session="other")
        journal = await agent.journal(session)
    listed, read = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert json.loads(listed.text) == {"tasks": [], "count": 0}
    assert (read.failed, task.id in read.text) == (True, True)


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B3")
async def test_where_nothing_can_be_delivered_later_no_notice_is_promised(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="echo hi", background=True, watch="hi")), says("polling"))
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go", PIPE)
        (started,) = await results(agent, session)
        (task,) = await agent.tasks(session)
        with anyio.fail_after(60):
            ended = await agent.wait_task(task)
        journal = await agent.journal(session)
    assert (started["status"], started["notify"]) == ("background_started", False)
    assert "there will be no notice" in started["message"]
    assert "Poll it" in started["message"]
    assert (ended.state, ended.spec.notify, ended.spec.watch) == ("succeeded", "never", "")
    assert [e for e in journal if isinstance(e.body, Input) and e.body.source == "task"] == []


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B4")
@pytest.mark.behaviour("D9")
async def test_a_task_keeps_its_address_and_is_reported_there_after_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="cat fifo; exit 7", background=True)), says("ok"), says("7"))
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go", "terminal:desk")
    (tmp_path / "work" / "fifo").write_text("while nobody watched\n")
    async with open_scripted(tmp_path, model) as agent:
        (notice,) = await wait_for_notices(agent, session)
    assert (notice.address, notice.source) == ("terminal:desk", "task")
    assert "exit code: 7" in notice.text
    assert "| while nobody watched" in notice.text


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B2")
async def test_whether_a_notice_can_be_delivered_depends_on_the_address_of_the_turn(tmp_path: Path) -> None:
    background = call("shell", command="true", background=True)
    model = ScriptedModel(says("", background), says("one"), says("", background), says("two"), *[says("x")] * 4)
    async with open_scripted(tmp_path, model) as agent:
        await say_and_wait(agent, "from a pipe", PIPE)
        session = await say_and_wait(agent, "from the chat", TERMINAL)
        first, second = (await results(agent, session))[:2]
        (notice,) = await wait_for_notices(agent, session)
    assert (first["notify"], second["notify"]) == (False, True)
    assert second["task"] in notice.text


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B7")
async def test_watched_output_is_reported_while_the_command_runs_and_a_flood_is_one_notice(tmp_path: Path) -> None:
    script = "for i in $(seq 500); do echo ERROR $i; done; echo quiet; cat fifo"
    model = ScriptedModel(
        says("", call("shell", command=script, background=True, watch="^ERROR")), says("watching"), *[says("saw")] * 9
    )
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        (watched,) = await wait_for_notices(agent, session)
        (tmp_path / "work" / "fifo").write_text("end\n")
        _, ended = await wait_for_notices(agent, session, 2)
    assert watched.text.count("| ERROR") == 10
    assert "[… and 490 more: the first of them is at tasks(action=read, task=t-" in watched.text
    assert watched.text.endswith(", start=81)]")
    assert ended.text.splitlines()[0].endswith("succeeded]")


@pytest.mark.needs("sandbox")
async def test_a_stop_ends_the_command_the_turn_waits_for_and_keeps_those_in_the_background(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="sleep 300", background=True), call("shell", command="cat fifo", timeout=300)),
        says("never"),
    )
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        with anyio.fail_after(60):
            while len(await agent.tasks(session)) < 2:
                await anyio.sleep(0.05)
            await agent.stop(session)
        states = {task.spec.command: task.state for task in await agent.tasks(session)}
        await agent.stop(session, tasks=True)
        after = [task.state for task in await agent.tasks(session)]
    assert states == {"sleep 300": "running", "cat fifo": "killed"}
    assert after == ["killed", "killed"]


@pytest.mark.needs("sandbox")
@pytest.mark.promise("L6")
async def test_a_command_whose_turn_ended_at_a_limit_is_still_reported(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="cat fifo", timeout=300)), *[says("ok")] * 3)
    async with open_scripted(tmp_path, model, limits_seconds="2") as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        reasons = [entry.body.reason for entry in await agent.journal(session) if isinstance(entry.body, Ended)]
        (tmp_path / "work" / "fifo").write_text("late\n")
        (notice,) = await wait_for_notices(agent, session)
    assert "| late" in notice.text
    assert reasons == ["stopped after 2 s, the limit of one turn (limits.seconds). It was running shell"]


@pytest.mark.needs("sandbox")
@pytest.mark.promise("L7")
async def test_the_oldest_outputs_are_removed_and_those_of_running_tasks_are_kept(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="cat fifo", background=True)),
        says("", call("shell", command="echo")),
        says("ok"),
    )
    async with open_scripted(tmp_path, model) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        tasks = await agent.tasks(await say_and_wait(agent, "go"))
    running = next(task for task in tasks if task.spec.command == "cat fifo")
    for number in range(500):
        folder = tmp_path / "home" / "tasks" / f"old{number}"
        (folder / "started").mkdir(parents=True)
        (folder / "output").touch()
        os.utime(folder / "output", (number, number))
    async with open_scripted(tmp_path, model) as agent:
        names = {path.name for path in (tmp_path / "home" / "tasks").iterdir()}
        await agent.kill_task(running)
    assert names == {task.id for task in tasks} | {f"old{number}" for number in range(1, 500)}


@pytest.mark.needs("sandbox")
@pytest.mark.promise("L4")
async def test_a_command_that_dies_takes_nothing_with_it(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="kill -9 $$")), says("ok"))
    async with open_scripted(tmp_path, model) as agent:
        (killed,) = await results(agent, await say_and_wait(agent, "go"))
    assert killed["status"] == "done"
    assert killed["exit_code"] in (128 + signal.SIGKILL, -signal.SIGKILL)
