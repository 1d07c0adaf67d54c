"""The runtimes of the contract suite. Each can follow the same few plans.

To add one, put it into `RUNTIMES`: its settings, the input that makes it follow a plan, and its visible effects.
"""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from outrider.core.types import RuntimeTraits
from outrider.runtimes.acp.runtime import AcpRuntime
from outrider.runtimes.codex.runtime import CodexRuntime
from outrider.runtimes.native import NativeRuntime
from outrider.runtimes.remote.runtime import RemoteRuntime
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, ScriptStep, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.acp import World, do, tool
from tests.support.codex import codex_home, codex_settings, shell
from tests.support.remote import FarOutriderHome, far_outrider

GREET, WORK, ASK, HANG = "greet", "work", "ask", "hang"
"""Say something; run a command; run one that needs an approval; run one, and then never end."""
HELLO, BEGIN, DONE, WENT_ON = "Hello there, friend.", "I begin.", "All done.", "I went on."
COMMAND = "echo x >> did"


class Harness(Protocol):
    """One runtime in a folder."""

    traits: RuntimeTraits
    hint: str
    """A part of the error when its program is missing."""

    def settings(self) -> dict[str, str]: ...
    def broken(self) -> dict[str, str]:
        """Settings with which its program is missing."""
        ...

    def words(self, plan: str) -> str:
        """An input that makes it follow this plan."""
        ...

    def effects(self) -> int:
        """How often the command of a plan ran, counted outside of the runtime."""
        ...

    def knows(self, words: str) -> int:
        """How often the last prompt contains these words."""
        ...


def _script(run: ScriptedCall, ask: ScriptedCall) -> Script:
    def rule(when: str, *places: ScriptStep) -> ScriptRule:
        return ScriptRule(when, places)

    return Script(
        rules=(
            rule("interrupted", (says(WENT_ON),)),
            rule(GREET, (says(HELLO),)),
            rule(WORK, (says(BEGIN, run),), (says(DONE),)),
            rule(ASK, (says(BEGIN, ask),), (says(DONE),)),
            rule(HANG, (says(BEGIN, run),), (Stall("stream"), says("this is never said to its end"))),
            rule(".*", (says("ok"),)),
        )
    )


class _ScriptedModelHarness:
    """A runtime whose model is the scripted server, natively or with another program in between."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self._folder = folder
        self._server = server

    def words(self, plan: str) -> str:
        return plan

    def effects(self) -> int:
        book = self._folder / "work" / "did"
        return len(book.read_text().splitlines()) if book.exists() else 0

    def knows(self, words: str) -> int:
        return json.dumps(self._server.requests[-1].body).count(words)


def _model(server: ScriptedServer) -> dict[str, str]:
    return {"model.name": "openai-chat:scripted", "model.url": server.url, "model.key": "none"}


class Native(_ScriptedModelHarness):
    traits = NativeRuntime.traits
    hint = "available: anthropic, openai"

    def settings(self) -> dict[str, str]:
        return {"runtime.name": "native", **_model(self._server)}

    def broken(self) -> dict[str, str]:
        return {"runtime.name": "native", "model.name": "nobody:knows"}


class Codex(_ScriptedModelHarness):
    traits = CodexRuntime.traits
    hint = "/runtime native"

    def settings(self) -> dict[str, str]:
        return {**_model(self._server), **codex_settings(codex_home(self._folder, self._server.url))}

    def broken(self) -> dict[str, str]:
        return {**self.settings(), "codex.command": str(self._folder / "nowhere")}


class Acp:
    traits = AcpRuntime.traits
    hint = "/runtime native"

    def __init__(self, folder: Path, server: ScriptedServer, *agent: str) -> None:
        self._world = World(folder)
        self._server = server
        self._agent = agent

    def settings(self) -> dict[str, str]:
        return {**_model(self._server), "runtime.name": "acp", "acp.command": self._world.command(*self._agent)}

    def broken(self) -> dict[str, str]:
        return {**self.settings(), "acp.command": str(self._world.home / "nowhere")}

    def words(self, plan: str) -> str:
        run = [
            tool("c1", "pending", kind="execute", rawInput={"command": COMMAND}),
            tool("c1", "in_progress"),
            ("effect", "x"),
            tool("c1", "completed"),
        ]
        request = {"toolCallId": "c1", "title": COMMAND, "kind": "execute", "rawInput": {"command": COMMAND}}
        plans: Mapping[str, list[Any]] = {
            GREET: [("say", HELLO)],
            WORK: [("say", BEGIN), *run, ("say", DONE)],
            ASK: [("say", BEGIN), ("ask", request), tool("c1", "completed"), ("say", DONE)],
            HANG: [("say", BEGIN), *run, ("hang",)],
        }
        return do(*plans.get(plan, [("say", "ok")]), before=f"{plan} ")

    def effects(self) -> int:
        return sum(effect == "x" or _allows(effect) for effect in self._world.effects())

    def knows(self, words: str) -> int:
        newest = max(self._world.agents.glob("*.past"))
        updates = [json.loads(line) for line in newest.read_text().splitlines()]
        return json.dumps([update for update in updates if update["sessionUpdate"] == "user_message_chunk"]).count(
            words
        )


def _allows(effect: Any) -> bool:
    """Whether this is an answer to a question, and a yes."""
    chosen = effect.get("outcome", {}).get("optionId") if isinstance(effect, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return chosen in ("1", "2")


@contextmanager
def _native(folder: Path) -> Generator[Harness]:
    ask = call("shell", command=COMMAND, needs=["network"], why="to ring")
    with ScriptedServer(_script(call("shell", command=COMMAND), ask)) as server:
        yield Native(folder, server)


@contextmanager
def _codex(folder: Path) -> Generator[Harness]:
    ask = shell(COMMAND, sandbox_permissions="require_escalated", justification="to ring")
    with ScriptedServer(_script(shell(COMMAND), ask)) as server:
        yield Codex(folder, server)


@contextmanager
def _acp(folder: Path) -> Generator[Harness]:
    with ScriptedServer(_script(shell(COMMAND), shell(COMMAND))) as server:
        yield Acp(folder, server)


@contextmanager
def _acp_that_forgets(folder: Path) -> Generator[Harness]:
    with ScriptedServer(_script(shell(COMMAND), shell(COMMAND))) as server:
        yield Acp(folder, server, "forgets")


class Remote(_ScriptedModelHarness):
    """Another Outrider runs the turns, natively."""

    traits = RemoteRuntime.traits
    hint = "remote.url"

    def __init__(self, folder: Path, server: ScriptedServer, far: FarOutriderHome) -> None:
        super().__init__(folder, server)
        self._far = far

    def settings(self) -> dict[str, str]:
        return self._far.settings()

    def broken(self) -> dict[str, str]:
        return {"runtime.name": "remote"}

    def effects(self) -> int:
        return self._far.effects()


@contextmanager
def _remote(folder: Path) -> Generator[Harness]:
    ask = call("shell", command=COMMAND, needs=["network"], why="to ring")
    with (
        ScriptedServer(_script(call("shell", command=COMMAND), ask)) as server,
        far_outrider(folder / "far", _model(server)) as far,
    ):
        yield Remote(folder, server, far)


Opens = Callable[[Path], AbstractContextManager[Harness]]
RUNTIMES: Mapping[str, Opens] = {
    "native": _native,
    "codex": _codex,
    "acp": _acp,
    "acp that forgets": _acp_that_forgets,
    "remote": _remote,
}
