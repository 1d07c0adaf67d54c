"""A home in which a scripted model runs commands, and what tests read from it."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Entry, Input, Result
from outrider.core.prompt import Prompt, ToolMessage
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedModel, ScriptedReply

TERMINAL, PIPE = "terminal:test", "pipe:test"


@asynccontextmanager
async def open_scripted(folder: Path, model: ScriptedModel, **settings: str) -> AsyncGenerator[Agent]:
    work = folder / "work"
    await anyio.Path(work).mkdir(exist_ok=True)
    overrides = {"sandbox.mode": "auto", **{name.replace("_", ".", 1): value for name, value in settings.items()}}
    config = load(folder / "home", {}, overrides)
    async with outrider.open(config=config, model=model, workspace=work) as agent:
        yield agent


async def say_and_wait(agent: Agent, text: str, address: str = TERMINAL, session: str = "s") -> Session:
    target = await agent.session(session)
    await agent.post(text, session=target, address=address)
    with anyio.fail_after(60):
        await agent.wait(await agent.find(target.id))
    return await agent.find(target.id)


async def results(agent: Agent, session: Session) -> list[dict[str, Any]]:
    journal = await agent.journal(session)
    return [json.loads(entry.body.text) for entry in journal if isinstance(entry.body, Result)]


async def wait_for_notices(agent: Agent, session: Session, count: int = 1) -> list[Input]:
    """The notices of this session, when there are `count` of them."""
    notices: list[Input] = []
    with anyio.fail_after(60):
        async for event in agent.follow(session):
            if isinstance(event, Entry) and isinstance(event.body, Input) and event.body.source == "task":
                notices.append(event.body)
                if len(notices) == count:
                    return notices
    raise AssertionError("a stream of events has no end")


def last_results(prompt: Prompt) -> list[dict[str, Any]]:
    tools = [message for message in prompt.messages if isinstance(message, ToolMessage)]
    return [json.loads(result.text) for result in tools[-1].results]


def with_task_id(make: Callable[[str], ScriptedReply]) -> Callable[[Prompt], ScriptedReply]:
    """A scripted reply that needs the id of the task that the last call started."""
    return lambda prompt: make(str(last_results(prompt)[0]["task"]))
