"""A home in which each message to a session is the list of calls that its model makes."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Asked, Ended, Entry, Result
from outrider.core.prompt import Prompt, UserMessage
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, ScriptedReply, says

TERMINAL = "terminal:test"


def obey(prompt: Prompt) -> ScriptedReply:
    """Make the calls of the last message, all in one reply; then end the turn."""
    last = prompt.messages[-1]
    if not isinstance(last, UserMessage):
        return says("done")
    return says("", *(ScriptedCall(tool, args) for tool, args in json.loads(last.text)))


@asynccontextmanager
async def open_commanded(home: Path) -> AsyncGenerator[Agent]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with outrider.open(config=load(home, {}, {}), model=ScriptedModel(*[obey] * 2_000)) as agent:
        yield agent


async def post(agent: Agent, session: Session, *calls: ScriptedCall) -> Entry:
    text = json.dumps([[call.tool, call.args] for call in calls])
    return await agent.post(text, session=session, address=TERMINAL)


async def finish(agent: Agent, session: Session, after: int) -> Sequence[Entry]:
    """The entries of the turn with this input, when it has ended."""
    entries: list[Entry] = []
    with anyio.fail_after(120):
        async for event in agent.follow(session, after):
            if isinstance(event, Entry):
                entries.append(event)
                if isinstance(event.body, Ended):
                    return entries
    raise AssertionError("a stream of events has no end")


async def act(agent: Agent, session: Session, *calls: ScriptedCall) -> Sequence[Entry]:
    posted = await post(agent, session, *calls)
    return await finish(agent, session, posted.seq)


async def next_question(agent: Agent, session: Session, number: int = 1) -> Asked:
    """The question with this number in the session, counted from 1."""
    with anyio.fail_after(120):
        async for event in agent.follow(session):
            if isinstance(event, Entry) and isinstance(event.body, Asked):
                number -= 1
                if not number:
                    return event.body
    raise AssertionError("a stream of events has no end")


def outcome(entries: Sequence[Entry]) -> str:
    """What the calls came to, and how the turn ended: all that a model and a person can read."""
    bodies = [entry.body for entry in entries]
    texts = [body.text for body in bodies if isinstance(body, Result)]
    return "\n".join([*texts, *(body.reason for body in bodies if isinstance(body, Ended))])
