"""A home whose turns run in the scripted ACP agent, and what that agent received and did."""

import json
import shlex
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Body, Delta
from outrider.core.store_port import Session

SCRIPT = Path(__file__).with_name("acp_agent.py")
PATIENCE = 60.0
TERMINAL, PIPE = "terminal:test", "pipe:test"


class World:
    """The folder of a test: a home, a project, and the agent's own folder."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work, self.agents = folder / "home", folder / "work", folder / "agent"
        for path in (self.home, self.work, self.agents):
            path.mkdir(mode=0o700, exist_ok=True)

    def command(self, *words: str) -> str:
        return shlex.join([sys.executable, "-I", "-S", str(SCRIPT), str(self.agents), *words])

    @asynccontextmanager
    async def open_agent(self, *words: str, **settings: str) -> AsyncGenerator[Agent]:
        """The home, open, with the scripted agent that these words describe."""
        chosen = {"runtime.name": "acp", "acp.command": self.command(*words)}
        chosen |= {name.replace("_", ".", 1): value for name, value in settings.items()}
        with anyio.fail_after(PATIENCE):
            async with outrider.open(config=load(self.home, {}, chosen), workspace=self.work) as agent:
                yield agent

    def lines(self, name: str) -> list[Any]:
        path = self.agents / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def effects(self) -> list[Any]:
        return self.lines("effects")

    def received(self, method: str) -> list[Any]:
        """The parameters of all messages of this method."""
        return [line["params"] for line in self.lines("received") if line["method"] == method]

    def prompts(self) -> list[str]:
        return [params["prompt"][0]["text"] for params in self.received("session/prompt")]

    async def has(self, name: str, count: int = 1) -> None:
        """Wait until the agent has written so many lines."""
        with anyio.fail_after(PATIENCE):
            while len(self.lines(name)) < count:
                await anyio.sleep(0.02)


def do(*acts: Sequence[Any], before: str = "") -> str:
    """A message that makes the agent do this."""
    return f"{before}do {json.dumps(acts)}"


def tool(id: str, status: str, **more: Any) -> tuple[str, Any]:
    """The act of reporting a tool call."""
    kind = "tool_call" if status == "pending" else "tool_call_update"
    return "update", {"sessionUpdate": kind, "toolCallId": id, "title": f"Run {id}", "status": status, **more}


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": words}}]


async def post(agent: Agent, words: str, address: str = TERMINAL, name: str = "s") -> Session:
    """Post a message without waiting for its turn."""
    session = await agent.session(name)
    await agent.post(words, session=session, address=address)
    return await agent.find(session.id)


async def finished_journal(agent: Agent, name: str = "s") -> list[Body]:
    """The journal when nothing is left to do."""
    await agent.wait(await agent.session(name))
    return [entry.body for entry in await agent.journal(await agent.session(name))]


async def deltas(agent: Agent, session: Session, until: str) -> list[Delta]:
    """The deltas up to the one with this text."""
    seen: list[Delta] = []
    async for event in agent.follow(session):
        if isinstance(event, Delta):
            seen.append(event)
            if until in event.text:
                return seen
    raise AssertionError("never shown")
