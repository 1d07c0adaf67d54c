"""A task that waits at a prompt: who is told, once for each prompt, and when it is running again."""

import json
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import anyio
import httpx2
import pytest

from outrider.app.agent import Agent
from outrider.channels.http.app import ENDPOINTS, build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.core.events import Result
from outrider.core.tasks import Task, running_summary
from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support.http import any_key, key_of
from tests.support.task_notices import (
    PATIENCE,
    Reported,
    command_runner,
    notices_in,
    reports_at_end,
    start,
    summary_of,
    wait_for_state,
)
from tests.support.tasking import PIPE, TERMINAL, open_scripted, say_and_wait, wait_for_notices

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("D7")]

ASK_TWICE = "printf 'Continue? [y/n] '; read one; printf '\\nSure? [y/n] '; read two; echo; echo $one $two"
REPORTED_TO = {
    "always": (TERMINAL, {"notify": "always"}, True),
    "failures": (TERMINAL, {"notify": "failures"}, True),
    "never": (TERMINAL, {"notify": "never"}, False),
    "nowhere to tell": (PIPE, {"notify": "always"}, False),
    "an open turn waits": (TERMINAL, {"background": False, "timeout": 300}, False),
}


@pytest.mark.behaviour("B3")
async def test_a_stall_is_recorded_everywhere_and_told_where_a_failure_is(tmp_path: Path) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    model = command_runner()
    async with open_scripted(tmp_path, model, sandbox_mode="off") as agent:

        async def run(name: str) -> None:
            address, arguments, _ = REPORTED_TO[name]
            text = json.dumps({"command": ASK_TWICE, "interactive": True, "background": True, **arguments})
            session = await agent.session(name)
            await agent.post(text, session=session, address=address)
            with anyio.fail_after(PATIENCE):
                while not (tasks := await agent.tasks(session)):
                    await anyio.sleep(0.05)
            await wait_for_state(agent, tasks[0], "stalled")
            seen[name] = summary_of(await notices_in(agent, session.id)).stalls
            await agent.stop(session, tasks=True)

        async with anyio.create_task_group() as group:
            for name in REPORTED_TO:
                group.start_soon(run, name)
        turns = len(model.prompts)
    expected = {name: ("Continue? [y/n]",) * is_reported for name, (_, _, is_reported) in REPORTED_TO.items()}
    assert seen == expected
    assert turns <= 2 * len(REPORTED_TO) - 1 + sum(is_reported for _, _, is_reported in REPORTED_TO.values())


Write = Callable[[Agent, Task, str], Awaitable[str]]
"""Writes a line to a task; the state that the answer shows."""


async def over_http(agent: Agent, task: Task, line: str) -> str:
    transport = httpx2.ASGITransport(build_app(HttpContext(agent, "test"), ENDPOINTS, (any_key,)))  # pyright: ignore[reportArgumentType]
    headers = {"authorization": f"Bearer {key_of()}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        answer = await client.post(f"/v1/tasks/{task.id}/input", json={"text": f"{line}\n"})
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


async def by_command(agent: Agent, task: Task, line: str) -> str:
    environ = {**os.environ, "OUTRIDER_HOME": str(agent.config.home)}
    program = [sys.executable, "-m", "outrider", "tasks"]
    with anyio.fail_after(PATIENCE):
        await anyio.run_process([*program, "write", task.id, line], env=environ)
        shown = await anyio.run_process([*program, "show", task.id, "--json"], env=environ)
    return json.loads(shown.stdout)["state"]


async def by_python(agent: Agent, task: Task, line: str) -> str:
    await anyio.to_thread.run_sync(agent.commands.write, task, f"{line}\n".encode())
    return (await agent.refresh_task(task)).state


@pytest.mark.parametrize("write", [over_http, by_command, by_python])
async def test_input_makes_a_stalled_task_run_and_the_next_prompt_is_told_again(tmp_path: Path, write: Write) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        task = await start(agent, command=f"{ASK_TWICE}; cat fifo", interactive=True)
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await agent.find(task.session)
        await wait_for_notices(agent, session)
        stalled = await agent.find_task(task.id)
        answered = await write(agent, task, "yes")
        running = await agent.find_task(task.id)
        await wait_for_notices(agent, session, 2)
        again = await agent.find_task(task.id)
        await write(agent, task, "sure")
        (tmp_path / "work" / "fifo").write_text("end\n")
        seen = await reports_at_end(agent, task)
        output = await anyio.to_thread.run_sync(agent.commands.read, task, 0, 1_000)
    assert (stalled.state, answered, running.state, again.state) == ("stalled", "running", "running", "stalled")
    assert "(stalled, for " in running_summary([stalled], stalled.created)
    assert "stalled" not in running_summary([running], running.created)
    assert seen == Reported(stalls=("Continue? [y/n]", "Sure? [y/n]"), others=("succeeded",))
    assert output.endswith(b"Continue? [y/n] \nSure? [y/n] \nyes sure\nend\n")


async def test_the_model_reads_that_the_task_it_wrote_to_is_running(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command=f"{ASK_TWICE}; cat fifo", background=True, interactive=True)),
        says("started"),
        lambda prompt: says("", call("tasks", action="write", task=ids[0], text="yes\n")),
        lambda prompt: says("", call("tasks", action="list")),
        *[says("ok")] * 9,
    )
    ids: list[str] = []
    async with open_scripted(tmp_path, model, sandbox_mode="off") as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        ids += [task.id for task in await agent.tasks(session)]
        await wait_for_notices(agent, session)
        with anyio.fail_after(PATIENCE):
            await agent.wait(await agent.find(session.id))
        journal = await agent.journal(session)
        await agent.stop(session, tasks=True)
    _, wrote, listed = [json.loads(entry.body.text) for entry in journal if isinstance(entry.body, Result)]
    assert (wrote["state"], listed["tasks"][0]["state"]) == ("running", "running")


async def test_output_alone_makes_a_stalled_task_run_and_an_answered_prompt_does_not_stall_again(
    tmp_path: Path,
) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        for name in ("moves", "silent"):
            os.mkfifo(tmp_path / "work" / name)
        moves = await start(agent, "moves", command="printf 'Continue? '; cat moves; cat moves", interactive=True)
        silent = await start(agent, "silent", command="printf 'Password: '; read it; cat silent", interactive=True)
        for task in (moves, silent):
            await wait_for_notices(agent, await agent.find(task.session))
        await anyio.to_thread.run_sync((tmp_path / "work" / "moves").write_text, "yes\n")
        await wait_for_state(agent, moves, "running")
        assert await by_python(agent, silent, "secret") == "running"
        # By the time that this one has been found to wait, the other has been quiet for longer.
        last = await start(agent, "last", command="printf 'Really? '; read it", interactive=True)
        await wait_for_notices(agent, await agent.find(last.session))
        states = [(await agent.find_task(task.id)).state for task in (moves, silent, last)]
        for task in (moves, silent, last):
            await agent.kill_task(task)
        seen = [summary_of(await notices_in(agent, task.session)) for task in (moves, silent)]
    assert states == ["running", "running", "stalled"]
    assert seen == [
        Reported(stalls=("Continue?",), others=("killed",)),
        Reported(stalls=("Password:",), others=("killed",)),
    ]


async def test_a_stall_found_while_a_call_waited_is_told_when_the_call_stops_waiting(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        session = await agent.session("s")
        text = json.dumps({"command": ASK_TWICE, "interactive": True, "timeout": 6})
        await agent.post(text, session=session, address=TERMINAL)
        with anyio.fail_after(PATIENCE):
            while not (tasks := await agent.tasks(session)):
                await anyio.sleep(0.05)
            waited = await wait_for_state(agent, tasks[0], "stalled")
            before = await notices_in(agent, session.id)
        (notice,) = await wait_for_notices(agent, session)
        after = await agent.find_task(waited.id)
        await agent.kill_task(after)
    assert (waited.spec.is_awaited, before) == (True, [])
    assert (after.spec.is_awaited, after.state, summary_of([notice]).stalls) == (False, "stalled", ("Continue? [y/n]",))


async def test_a_restart_neither_repeats_nor_loses_what_happened_to_a_stalled_task(tmp_path: Path) -> None:
    """While no process watches: one is answered and waits at its next prompt, one is silent then, two wait as before.

    The last one was reported by a version that reported one prompt of each task.
    """
    names = ("next", "silent", "same", "old")
    silent = "printf 'Password: '; read it; read more"
    commands = {"next": ASK_TWICE, "silent": silent, "same": ASK_TWICE, "old": ASK_TWICE}
    tasks: dict[str, Task] = {}
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        for name in names:
            tasks[name] = await start(agent, name, command=commands[name], interactive=True)
        for name in names:
            await wait_for_state(agent, tasks[name], "stalled")
        home, write = agent.config.home, agent.commands.write
    for name in ("next", "silent"):
        await anyio.to_thread.run_sync(write, tasks[name], b"yes\n")
    with anyio.fail_after(PATIENCE):
        while b"Sure" not in (home / "tasks" / tasks["next"].id / "output").read_bytes():
            await anyio.sleep(0.02)
    old = tasks["old"]
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        key = f"task/{old.id}/stalled"
        changed = db.execute(
            "UPDATE entries SET key = ? WHERE session = ? AND key LIKE ?", (key, old.session, f"{key}/%")
        )
        assert changed.rowcount == 1
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        await wait_for_notices(agent, await agent.find(tasks["next"].session), 2)
        states = {name: (await agent.find_task(tasks[name].id)).state for name in names}
        stalls = {name: summary_of(await notices_in(agent, tasks[name].session)).stalls for name in names}
        for task in tasks.values():
            await agent.kill_task(task)
    assert states == {"next": "stalled", "silent": "running", "same": "stalled", "old": "stalled"}
    assert stalls == {
        "next": ("Continue? [y/n]", "Sure? [y/n]"),
        "silent": ("Password:",),
        "same": ("Continue? [y/n]",),
        "old": ("Continue? [y/n]",),
    }
