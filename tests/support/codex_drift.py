"""Messages of Codex's own schema, and a scripted app-server that sends one of its messages differently."""

import json
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from outrider.app.agent import Agent
from outrider.core.events import Ended, Reply, Result
from outrider.core.turn_result import TurnResult
from tests.support.codex import codex_binary
from tests.support.codex_schema import REQUESTS
from tests.support.drift import Difference, Json, Schema, drifts, unique
from tests.support.scripted_codex import ScriptedCodex, Step

COMMAND = "item/commandExecution/requestApproval"
TURN: Sequence[Step] = (
    {"think": "hm"},
    {"say": "I look"},
    {"run": "echo x >> did"},
    {"ask": COMMAND, "requests": [{"command": "ls", "cwd": "/", "kind": "command", "reason": "may I"}]}
    | {"item": {"type": "commandExecution", "command": "ls", "cwd": "/", "processId": None}},
    {"ask": "item/fileChange/requestApproval", "requests": [{"reason": "may I", "grantRoot": None}]}
    | {"item": {"type": "fileChange", "changes": [{"path": "/w/a", "kind": {"type": "add"}, "diff": "x"}]}},
    {"ask": "item/permissions/requestApproval", "requests": [{"permissions": {"network": {"enabled": True}}}]},
    {"ask": "mcpServer/elicitation/request", "requests": [{"serverName": "pk", "message": "may I", "turnId": None}]},
    {"tool": "tasks", "args": {"action": "list"}},
    {"retry": "a hiccup"},
    {"say": "all done"},
)
RULES = '[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n'
SESSION = "restarted"
_AT_START = ("response initialize", "response account/read")
_PATIENCE = 60.0


@cache
def _definitions() -> Json:
    with tempfile.TemporaryDirectory() as folder:
        words = (codex_binary(), "app-server", "generate-json-schema", "--out", folder, "--experimental")
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        return json.loads(Path(folder, "codex_app_server_protocol.schemas.json").read_text())["definitions"]


def codex_messages(kind: str) -> list[Json]:
    """Samples of every message of this kind: `ServerNotification` or `ServerRequest`."""
    return unique(Schema(_definitions()).samples(_definitions()[kind]))


def response_samples() -> list[tuple[str, Any]]:
    """Samples of every response that we read, by method."""
    every = {**_definitions(), **_definitions()["v2"]}
    schema = Schema(_definitions())
    samples = {method: schema.samples(every[f"{name}Response"]) for method, name in REQUESTS.items()}
    return [(method, sample) for method, of_method in samples.items() for sample in of_method[:3]]


class DriftingCodex:
    """A scripted app-server whose every turn is the same, but for one field of one message."""

    def __init__(self, folder: Path) -> None:
        self._codex = ScriptedCodex(folder)
        self._codex.will(TURN)
        self._numbers = count()

    @asynccontextmanager
    async def open_agent(self) -> AsyncGenerator[Agent]:
        self._codex.home.mkdir(mode=0o700, exist_ok=True)
        config = self._codex.home / "config.toml"
        config.write_text(RULES)
        config.chmod(0o600)
        async with self._codex.open_agent(codex_seconds="40", codex_quiet="1") as agent:
            yield agent

    async def turn_differences(self) -> list[Difference]:
        """Every difference of every message of an undisturbed turn, after the start of the program."""
        async with self.open_agent() as agent:
            turn = await self._run(agent)
        assert (turn.outcome, turn.text) == ("done", "all done")
        return [each for each in self._differences(0) if each[0] not in _AT_START]

    async def restart_differences(self) -> list[Difference]:
        """Every difference of every response between the start of the program and the next turn of a session."""
        async with self.open_agent() as agent:
            await self._run(agent, session=SESSION)
        before = len(self._codex.messages("said"))
        async with self.open_agent() as agent:
            await self._run(agent, session=SESSION, turns=2)
        return [each for each in self._differences(before) if each[0].startswith("response ")]

    def _differences(self, first: int) -> list[Difference]:
        """Those of the messages from this one on, by the name and number of each message."""
        counts: dict[str, int] = {}
        found: list[Difference] = []
        # Each process counts its requests from 1: these are those of the newest one.
        asked = {m["id"]: m["method"] for m in self._codex.messages("received") if "id" in m and "method" in m}
        for message in self._codex.messages("said")[first:]:
            is_response = "method" not in message
            name = f"response {asked[message['id']]}" if is_response else message["method"]
            counts[name] = counts.get(name, 0) + 1
            # Without its id a response is lost, and the request waits its whole time.
            every = [drift for drift in drifts(message) if not (is_response and drift.path == ("id",))]
            found += [(name, counts[name], drift) for drift in every]
        return found

    async def assert_turn_ends_after_restart(self, difference: Difference, turns: int) -> TurnResult:
        """The same for the next turn of a session whose program was started again."""
        async with self.open_agent() as agent:
            return await self.assert_turn_ends(agent, difference, session=SESSION, turns=turns)

    async def assert_turn_ends(
        self, agent: Agent, difference: Difference, session: str = "", turns: int = 1
    ) -> TurnResult:
        """A turn in which this message differs ends once, in time and with words, and loses no call."""
        name, number, drift = difference
        wanted = {"number": next(self._numbers), "name": name, "count": number, "path": drift.path}
        path = self._codex.folder / "drift"
        path.write_text(json.dumps({**wanted, "how": drift.how, "value": drift.value}))
        label = f"{name} {number}: {drift}"
        turn = await self._run(agent, label, session, turns)
        assert not path.exists(), f"never sent: {label}"
        assert turn.outcome in ("done", "failed"), label
        assert (turn.outcome == "failed") == bool(turn.error), label
        assert "internal error" not in turn.error, f"{label}: {turn.error}"
        return turn

    async def _run(self, agent: Agent, label: str = "", session: str = "", turns: int = 1) -> TurnResult:
        name = session or f"s{next(self._numbers)}"
        try:
            with anyio.fail_after(_PATIENCE):
                turn = await agent.say("go", session=name)
        except TimeoutError:
            raise AssertionError(f"the turn hangs: {label}") from None
        journal = [entry.body for entry in await agent.journal(await agent.find(name))]
        assert sum(isinstance(body, Ended) for body in journal) == turns, label
        calls = [call.id for body in journal if isinstance(body, Reply) for call in body.calls]
        assert sorted(calls) == sorted(body.call for body in journal if isinstance(body, Result)), label
        return turn
