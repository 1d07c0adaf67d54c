"""Patterns from a model that take for ever: the server answers meanwhile, and the model reads that they are refused."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.channels.http import health
from outrider.core.events import Result
from outrider.core.store_port import Session
from outrider.system import regex_worker
from outrider.system.processes import process_table
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, call, says
from outrider.tools.sleep_commands import sleep_seconds
from tests.support.http import client, serving
from tests.support.tasking import TERMINAL, open_scripted, say_and_wait, with_task_id

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7")]

SLOW_TO_COMPILE = "(?i)" + "[\0-\U0010ffff]x" * 2_000
HUGE = "|".join(f"{number}{'x' * 30}" for number in range(30_000))
NESTED = "((((((a{1,5000}){1,5000}){1,5000}){1,5000}){1,5000})b)"
CATASTROPHIC = "(a|a|b?)+(a|aa)+$"


async def stopped_worker() -> int:
    """The process that checks a pattern for this one, once there is one, held so that the check cannot end."""
    with anyio.fail_after(60):
        while True:
            for row in process_table.list_processes():
                if row.parent == os.getpid() and _is_worker(row.pid):
                    os.kill(row.pid, signal.SIGSTOP)
                    return row.pid
            await anyio.sleep(0.005)


def _is_worker(pid: int) -> bool:
    try:
        return regex_worker.__file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def result_texts(agent: Agent, session: Session) -> list[str]:
    return [entry.body.text for entry in await agent.journal(session) if isinstance(entry.body, Result)]


@pytest.fixture
def no_worker_left() -> Generator[None]:
    yield
    assert not [row for row in process_table.list_processes() if row.parent == os.getpid() and _is_worker(row.pid)]


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.needs("sandbox")
@pytest.mark.parametrize(
    "hostile_call",
    [
        call("shell", command="echo x", background=True, watch=SLOW_TO_COMPILE),
        call("shell", command="echo x", background=True, watch=HUGE),
        call("shell", command="echo x", background=True, watch=NESTED),
        call("search", pattern=SLOW_TO_COMPILE),
        call("search", pattern=CATASTROPHIC),
        call("search", pattern=NESTED),
    ],
    ids=[
        "watch, slow to compile",
        "watch, huge",
        "watch, nested",
        "search, slow to compile",
        "search, endless",
        "nested",
    ],
)
async def test_health_answers_while_a_pattern_is_still_being_checked(
    tmp_path: Path, hostile_call: ScriptedCall
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fodder.txt").write_text("a" * 5_000 + "c\n")
    model = ScriptedModel(says("", hostile_call), says("fine"))
    async with open_scripted(tmp_path, model) as agent, serving(agent, health.ENDPOINTS) as url, client(url) as owner:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        worker = await stopped_worker()
        statuses = [(await owner.get("/health")).status_code for _ in range(3)]
        assert (statuses, await result_texts(agent, session)) == ([200] * 3, [])
        os.kill(worker, signal.SIGKILL)  # as the kernel does when its time is up
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        (text,) = await result_texts(agent, session)
    assert "takes too long" in text or "stopped after" in text


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.needs("sandbox")
async def test_health_answers_while_a_call_waits_for_an_endless_pattern(tmp_path: Path) -> None:
    command = f"echo {'a' * 5_000}c; sleep 300"
    model = ScriptedModel(
        says("", call("shell", command=command, background=True)),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, until=SLOW_TO_COMPILE))),
        says("fine"),
    )
    async with open_scripted(tmp_path, model) as agent, serving(agent, health.ENDPOINTS) as url, client(url) as owner:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        worker = await stopped_worker()
        assert (await owner.get("/health")).status_code == 200
        assert len(await result_texts(agent, session)) == 1
        os.kill(worker, signal.SIGKILL)
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        assert "neither done, idle nor a usable pattern" in (await result_texts(agent, session))[1]
        for task in await agent.tasks(session):
            await agent.kill_task(task)


@pytest.mark.parametrize("command", [("a" + "=" * 40 + " ") * 40 + "x", "a=" * 500_000, "sleep " + "9" * 100_000])
def test_no_command_makes_the_check_for_a_sleep_take_long(command: str) -> None:
    assert sleep_seconds(command) in (0.0, float("inf"))


@pytest.mark.needs("sandbox")
async def test_a_glob_that_takes_long_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "work" / "/".join("abcdefghijklmnopqrstuvwxyz")
    deep.mkdir(parents=True)
    for number in range(2_000):
        (deep / f"{number}.txt").write_text("x\n")
    hostile = "**/*/" * 90 + "{a,b,c,d,e,f,g,h}"
    model = ScriptedModel(says("", call("search", pattern="x", glob=hostile)), says("fine"))
    async with open_scripted(tmp_path, model) as agent, serving(agent, health.ENDPOINTS) as url, client(url) as owner:
        async with anyio.create_task_group() as group:
            group.start_soon(say_and_wait, agent, "go")
            assert (await owner.get("/health")).status_code == 200
        (text,) = await result_texts(agent, await agent.session("s"))
    assert text == "comparing the glob with the files takes too long; use a simpler one"
