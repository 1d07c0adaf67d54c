"""Messages of ACP's own schema, and a scripted agent that sends one of its messages differently."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import acp.schema
import anyio

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Ended, Reply, Result
from outrider.core.turn_result import TurnResult
from tests.support.acp import World, do, text, tool
from tests.support.drift import Difference, Drift, Json, Schema, drifts, unique

RULES = '[[rules]]\nverdict = "allow"\ntool = "*"\nneeds = ["host"]\n'
ACTS = (
    ["think", "hm"],
    ["say", "I look", "m1"],
    tool("c1", "pending", kind="execute", rawInput={"command": "ls"}),
    tool("c1", "in_progress"),
    tool("c1", "completed", content=text("a file"), rawOutput={"output": "a file"}),
    ["ask", {"toolCallId": "c2", "title": "rm x", "kind": "execute", "rawInput": {"command": "rm x"}}],
    tool("c2", "completed", content=text("gone")),
    ["update", {"sessionUpdate": "plan", "entries": [{"content": "look", "status": "completed", "priority": "low"}]}],
    ["say", "all done", "m2"],
)
"""What the agent does in a turn."""
_PATIENCE = 60.0


def samples(name: str) -> list[Json]:
    """Samples of this message, as the package of the protocol describes it."""
    schema = getattr(acp.schema, name).model_json_schema(by_alias=True)
    return unique(Schema(schema.get("$defs", {})).samples(schema))


def set_tool_call_id(message: Any, id: str) -> Any:
    """The message with this as the id of the tool call it is about."""
    if isinstance(message, dict):
        return {k: id if k == "toolCallId" else set_tool_call_id(v, id) for k, v in message.items()}  # pyright: ignore
    return message


class DriftingAgent:
    """A scripted agent whose every turn is the same, but for one field of one message."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self._numbers = count()
        config = self.world.home / "config.toml"
        config.write_text(RULES)
        config.chmod(0o600)

    @asynccontextmanager
    async def open_agent(self) -> AsyncGenerator[Agent]:
        settings = {"runtime.name": "acp", "acp.command": self.world.command("quiet"), "acp.quiet": "5"}
        async with outrider.open(config=load(self.world.home, {}, settings), workspace=self.world.work) as agent:
            yield agent

    async def differences(self) -> list[Difference]:
        """Every difference of every message of an undisturbed turn and of the start of the agent."""
        async with self.open_agent() as agent:
            turn = await self.run(agent, do(*ACTS))
        assert (turn.outcome, turn.text) == ("done", "all done")
        requests = [line["method"] for line in self.world.lines("received") if line["method"] in _REQUESTS]
        counts: dict[str, int] = {}
        found: list[Difference] = []
        for message in self.world.lines("said"):
            is_response = "method" not in message
            name = f"response {requests.pop(0)}" if is_response else message["method"]
            counts[name] = counts.get(name, 0) + 1
            # Without its id a response is lost, and a request cannot be answered.
            found += [(name, counts[name], drift) for drift in drifts(message) if drift.path != ("id",)]
        return found

    async def assert_turn_ends(self, difference: Difference, agent: Agent | None = None) -> TurnResult:
        """A turn in which this message differs ends once, in time and with words, and loses no call."""
        if agent is None:
            async with self.open_agent() as opened:
                return await self.assert_turn_ends(difference, opened)
        name, number, drift = difference
        path = self.world.agents / "drift"
        wanted = {"number": next(self._numbers), "name": name, "count": number, "path": drift.path}
        path.write_text(json.dumps({**wanted, "how": drift.how, "value": drift.value}))
        label = f"{name} {number}: {drift}"
        turn = await self.run(agent, do(*ACTS), label)
        assert not path.exists(), f"never sent: {label}"
        assert turn.outcome in ("done", "failed"), label
        assert "internal error" not in turn.error, f"{label}: {turn.error}"
        return turn

    async def run(self, agent: Agent, words: str, label: str = "") -> TurnResult:
        name = f"s{next(self._numbers)}"
        try:
            with anyio.fail_after(_PATIENCE):
                turn = await agent.say(words, session=name)
        except TimeoutError:
            raise AssertionError(f"the turn hangs: {label}") from None
        journal = [entry.body for entry in await agent.journal(await agent.find(name))]
        assert sum(isinstance(body, Ended) for body in journal) == 1, label
        calls = [call.id for body in journal if isinstance(body, Reply) for call in body.calls]
        assert sorted(calls) == sorted(body.call for body in journal if isinstance(body, Result)), label
        return turn


_REQUESTS = ("initialize", "session/new", "session/prompt")
AT_START = ("response initialize",)


def drifted(name: str, method: str, **more: Any) -> list[tuple[Drift, Json]]:
    """Every difference of every sample of these parameters, with the message that has it."""
    found: list[tuple[Drift, Json]] = []
    for sample in samples(name):
        for drift in drifts({"method": method, "params": sample}):
            params = set_tool_call_id(sample, f"call-{len(found)}")
            found.append((drift, drift.apply({"method": method, "params": params, **more})))
    return found
