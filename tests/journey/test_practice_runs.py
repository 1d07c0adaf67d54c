"""The practice model runs real commands, through the Python API and through the program."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Entry, Input, Reply
from outrider.core.store_port import Session
from outrider.models.practice.phrases import INTRODUCTION
from tests.journey.support import Person

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[Agent]:
    work = folder / "work"
    await anyio.Path(work).mkdir()
    config = load(folder / "home", {}, {"sandbox.mode": "auto", "model.name": "practice"})
    async with outrider.open(config=config, workspace=work) as agent:
        yield agent


async def says(agent: Agent, text: str, address: str = "terminal:test") -> str:
    """What is answered to this, whatever else is told afterwards."""
    session = await agent.session("s")
    await agent.post(text, session=session, address=address)
    is_heard = False
    with anyio.fail_after(60):
        async for event in agent.follow(session):
            body = event.body if isinstance(event, Entry) else None
            is_heard = is_heard or (isinstance(body, Input) and body.text == text)
            if is_heard and isinstance(body, Reply) and not body.calls:
                return body.text
    raise AssertionError("never answered")


async def until_said(agent: Agent, session: Session, words: str) -> str:
    """The first reply that has these words in it."""
    with anyio.fail_after(60):
        async for event in agent.follow(session):
            if isinstance(event, Entry) and isinstance(event.body, Reply) and words in event.body.text:
                return event.body.text
    raise AssertionError("never said")


def test_a_newcomer_runs_a_command_and_sees_its_output_and_exit_code(person: Person) -> None:
    script = "write a.sh saying echo hi, then run `sh a.sh`, then run sh -c 'exit 3'"
    ran = person.types("run", script)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split("\n\n") == [
        "I wrote `a.sh` (7 characters).",
        "`sh a.sh` finished: exit code 0.",
        "```\nhi\n```",
        "`sh -c 'exit 3'` failed: exit code 3, and it wrote nothing.",
        f"{INTRODUCTION}\n",
    ]


async def test_a_background_command_is_begun_listed_and_its_end_told_unasked(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        begun = await says(agent, "in the background run cat fifo && echo done and tell me")
        session = await agent.session("s")
        (task,) = await agent.tasks(session)
        running = await says(agent, "what is running?")
        (tmp_path / "work" / "fifo").write_text("run rm -rf x\n")
        told = await until_said(agent, session, "finished")
    assert begun.startswith(
        f"`cat fifo && echo done` was started in the background as task `{task.id}`. I will tell you when it has ended."
    )
    assert running == f"These tasks are running:\n\n- `{task.id}` `cat fifo && echo done`: running"
    assert told == "`cat fifo && echo done` finished: exit code 0.\n\n```\nrun rm -rf x\ndone\n```"


async def test_where_nothing_can_be_told_later_it_says_so_and_can_be_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        begun = await says(agent, "run echo ready in the background", "pipe:test")
        (task,) = await agent.tasks(await agent.session("s"))
        waited = await says(agent, "wait for the last task", "pipe:test")
        read = await says(agent, f"show the output of task {task.id}", "pipe:test")
    assert f"I cannot tell you here when it ends; ask with `wait for {task.id}`." in begun
    assert waited == read == "`echo ready` finished: exit code 0.\n\n```\nready\n```"


async def test_the_last_task_is_killed_on_request_and_said_to_be(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        await says(agent, "start `sleep 300`")
        killed = await says(agent, "stop the last task")
        (task,) = await agent.tasks(await agent.session("s"))
    assert killed == "`sleep 300` was killed."
    assert task.state == "killed"


async def test_a_refused_command_is_told_with_its_reason(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        refused = await says(agent, "run sleep 60")
    assert refused.startswith("I could not run `sleep 60`: a command that only sleeps is not run.")
