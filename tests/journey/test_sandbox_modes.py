"""`sandbox.mode`: commands of a model with Landlock, and without a sandbox."""

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked
from outrider.core.tasks import Task
from outrider.system.processes import process_table
from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support.outer import ORDINARY, require_landlock
from tests.support.tasking import open_scripted, results, say_and_wait

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S7")]


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder that every account can use, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="outrider-test-", dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        (Path(name) / "work").mkdir()
        if os.geteuid() == 0:
            os.chown(Path(name) / "work", ORDINARY, ORDINARY)
        yield Path(name)


async def test_with_landlock_commands_run_unasked_and_cannot_leave_the_workspace(tmp_path: Path) -> None:
    require_landlock()
    (tmp_path / "private").write_text("private")
    model = ScriptedModel(
        says("", call("shell", command="echo hello >a && chmod +x a && cat a; cat ../private; echo x >../private")),
        says("ok"),
    )
    async with open_scripted(tmp_path, model, sandbox_mode="landlock") as agent:
        session = await say_and_wait(agent, "go")
        (ran,) = await results(agent, session)
        journal = await agent.journal(session)
    assert ran["output"].startswith("hello\n")
    assert ran["output"].count("ermission denied") == 2
    assert [entry for entry in journal if isinstance(entry.body, Asked)] == []
    assert (tmp_path / "private").read_text() == "private"


@asynccontextmanager
async def running_in_landlock(folder: Path, command: str) -> AsyncGenerator[tuple[Agent, Task, int]]:
    """A command that said `ready`, and a process that it started in a session of its own."""
    require_landlock()
    start = "(setsid sleep 600 >/dev/null 2>&1 & echo $! >pid); "
    model = ScriptedModel(says("", call("shell", command=start + command, background=True)), says("ok"), says("noted"))
    async with open_scripted(folder, model, sandbox_mode="landlock") as agent:
        os.mkfifo(folder / "work" / "fifo")
        fifo = os.open(folder / "work" / "fifo", os.O_RDWR | os.O_NONBLOCK)
        try:
            session = await say_and_wait(agent, "go")
            with anyio.fail_after(60):
                await anyio.wait_readable(fifo)
        finally:
            os.close(fifo)
        (task,) = await agent.tasks(session, open_only=True)
        yield agent, task, int((folder / "work" / "pid").read_text())


async def test_with_landlock_an_interrupted_command_leaves_nothing_running(tmp_path: Path) -> None:
    command = "trap 'echo stopped; exit 7' INT; echo ready >fifo; while :; do sleep 0.1; done"
    async with running_in_landlock(tmp_path, command) as (agent, task, other):
        assert process_table.find_process(other)
        agent.commands.interrupt(task)
        with anyio.fail_after(60):
            ended = await agent.wait_task(task)
        output = agent.commands.read(task, 0, 100)
    assert (ended.exit_code, output, process_table.find_process(other)) == (7, b"stopped\n", None)


async def test_with_landlock_a_killed_command_leaves_nothing_running(tmp_path: Path) -> None:
    command = "trap '' INT TERM; echo ready >fifo; while :; do sleep 0.1; done"
    async with running_in_landlock(tmp_path, command) as (agent, task, other):
        killed = await agent.kill_task(task)
    assert (killed.state, process_table.find_process(other)) == ("killed", None)


async def test_without_a_sandbox_nothing_is_asked(folder: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="id -u; touch made; ls", needs=["network"])), says("ok"))
    async with open_scripted(folder, model, sandbox_mode="off") as agent:
        session = await say_and_wait(agent, "go")
        (ran,) = await results(agent, session)
        journal = await agent.journal(session)
    account = ORDINARY if os.geteuid() == 0 else os.geteuid()
    assert (ran["exit_code"], ran["output"]) == (0, f"{account}\nmade\n")
    assert [entry for entry in journal if isinstance(entry.body, Asked)] == []


async def test_without_a_sandbox_a_command_of_root_cannot_read_outriders_home(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    home = folder / "home"
    model = ScriptedModel(says("", call("shell", command=f"cat {home}/store.db; ls {home}")), says("ok"))
    async with open_scripted(folder, model, sandbox_mode="off") as agent:
        (ran,) = await results(agent, await say_and_wait(agent, "go"))
    assert ran["output"].count("Permission denied") == 2
