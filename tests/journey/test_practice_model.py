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
from tests.journey.support import Person

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_practice(folder: Path) -> AsyncGenerator[Agent]:
    work = folder / "work"
    await anyio.Path(work).mkdir()
    config = load(folder / "home", {}, {"sandbox.mode": "auto", "model.name": "practice"})
    async with outrider.open(config=config, workspace=work) as agent:
        yield agent


async def ask(agent: Agent, text: str, address: str = "terminal:test") -> str:
    """The reply to this message, whatever follows it."""
    session = await agent.session("s")
    await agent.post(text, session=session, address=address)
    is_accepted = False
    with anyio.fail_after(60):
        async for event in agent.follow(session):
            body = event.body if isinstance(event, Entry) else None
            is_accepted = is_accepted or (isinstance(body, Input) and body.text == text)
            if is_accepted and isinstance(body, Reply) and not body.calls:
                return body.text
    raise AssertionError("never answered")


async def wait_for_reply(agent: Agent, session: Session, words: str) -> str:
    """The first reply with these words in it."""
    with anyio.fail_after(60):
        async for event in agent.follow(session):
            if isinstance(event, Entry) and isinstance(event.body, Reply) and words in event.body.text:
                return event.body.text
    raise AssertionError("never answered")


@pytest.mark.needs("sandbox")
def test_a_newcomer_runs_a_command_and_sees_its_output_and_exit_code(person: Person) -> None:
    script = "write a.sh saying echo hi, then run `sh a.sh`, then run sh -c 'exit 3'"
    ran = person.types("run", script)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split("\n\n")[1:] == [
        "`sh a.sh` finished: exit code 0.",
        "```\nhi\n```",
        "`sh -c 'exit 3'` failed: exit code 3.\n",
    ]


@pytest.mark.needs("sandbox")
async def test_a_background_command_is_started_and_listed_and_its_end_is_reported_without_a_request(
    tmp_path: Path,
) -> None:
    async with open_practice(tmp_path) as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        started = await ask(agent, "run cat fifo && echo done in the background and tell me")
        session = await agent.session("s")
        (task,) = await agent.tasks(session)
        running = await ask(agent, "what is running?")
        (tmp_path / "work" / "fifo").write_text("run rm -rf x\n")
        ended = await wait_for_reply(agent, session, "finished")
    assert started == (
        f"`cat fifo && echo done` is running in the background as task `{task.id}`. I will tell you when it ends."
    )
    assert running.endswith(f"\n\n- `{task.id}` `cat fifo && echo done`: running")
    assert ended == "`cat fifo && echo done` finished: exit code 0.\n\n```\nrun rm -rf x\ndone\n```"


@pytest.mark.needs("sandbox")
async def test_where_it_cannot_report_later_it_says_so_and_can_be_asked(tmp_path: Path) -> None:
    async with open_practice(tmp_path) as agent:
        started = await ask(agent, "run echo ready in the background", "pipe:test")
        (task,) = await agent.tasks(await agent.session("s"))
        waited = await ask(agent, f"wait for {task.id}", "pipe:test")
        read = await ask(agent, f"show the output of task {task.id}", "pipe:test")
    assert started.endswith(f" To see how it ends: `wait for {task.id}`.")
    assert waited == read == "`echo ready` finished: exit code 0.\n\n```\nready\n```"


@pytest.mark.needs("sandbox")
async def test_a_task_is_killed_on_request(tmp_path: Path) -> None:
    async with open_practice(tmp_path) as agent:
        await ask(agent, "run sleep 300 in the background")
        (task,) = await agent.tasks(await agent.session("s"))
        killed = await ask(agent, f"kill task {task.id}")
        (task,) = await agent.tasks(await agent.session("s"))
    assert killed.startswith("`sleep 300` was killed")
    assert task.state == "killed"


async def test_a_refused_command_is_reported_with_its_reason(tmp_path: Path) -> None:
    async with open_practice(tmp_path) as agent:
        refused = await ask(agent, "run sleep 60")
    assert refused == "I did not run `sleep 60`: a command that only sleeps must run in the background."
