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
from tests.support.drift import Drift, Json, Schema, drifts, unique
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
    {"ask": "mcpServer/elicitation/request", "requests": [{"serverName": "pk", "message": "may I", "_meta": {}}]},
    {"tool": "tasks", "args": {"action": "list"}},
    {"retry": "a hiccup"},
    {"say": "all done"},
)
RULES = '[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n'
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

    async def all_differences(self, agent: Agent) -> list[tuple[str, int, Drift]]:
        """The name and number of each message of an undisturbed turn, with each of its differences."""
        turn = await self._run(agent)
        assert (turn.outcome, turn.text) == ("done", "all done")
        asked = {m["id"]: m["method"] for m in self._codex.messages("received") if "id" in m and "method" in m}
        counts: dict[str, int] = {}
        found: list[tuple[str, int, Drift]] = []
        for message in self._codex.messages("said"):
            name = message.get("method") or f"response {asked[message['id']]}"
            counts[name] = counts.get(name, 0) + 1
            # Without its id a response is lost, and the request waits its whole time.
            is_response = name.startswith("response ")
            every = [drift for drift in drifts(message) if not (is_response and drift.path == ("id",))]
            found += [(name, counts[name], drift) for drift in every]
        return found

    async def assert_turn_ends(self, agent: Agent, name: str, number: int, drift: Drift) -> TurnResult:
        """A turn in which this message differs ends once, in time and with words, and loses no call."""
        wanted = {"number": next(self._numbers), "name": name, "count": number, "path": drift.path}
        path = self._codex.folder / "drift"
        path.write_text(json.dumps({**wanted, "how": drift.how, "value": drift.value}))
        label = f"{name} {number}: {drift}"
        turn = await self._run(agent, label)
        path.unlink(missing_ok=True)
        assert turn.outcome in ("done", "failed"), label
        assert (turn.outcome == "failed") == bool(turn.error), label
        assert "internal error" not in turn.error, f"{label}: {turn.error}"
        return turn

    async def _run(self, agent: Agent, label: str = "") -> TurnResult:
        name = f"s{next(self._numbers)}"
        try:
            with anyio.fail_after(_PATIENCE):
                turn = await agent.say("go", session=name)
        except TimeoutError:
            raise AssertionError(f"the turn hangs: {label}") from None
        journal = [entry.body for entry in await agent.journal(await agent.find(name))]
        assert sum(isinstance(body, Ended) for body in journal) == 1, label
        calls = [call.id for body in journal if isinstance(body, Reply) for call in body.calls]
        assert sorted(calls) == sorted(body.call for body in journal if isinstance(body, Result)), label
        return turn
