"""The runtimes of the contract suite. Each can follow the same few plans.

To add one, put it into `RUNTIMES`: its settings, the input that makes it follow a plan, and its visible effects.
Real programs that only `./dev runtimes` installs are in `programs.py`.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from outrider.core.types import RuntimeTraits
from outrider.runtimes.acp.runtime import AcpRuntime
from outrider.runtimes.codex.runtime import CodexRuntime
from outrider.runtimes.native import NativeRuntime
from outrider.runtimes.remote.runtime import RemoteRuntime
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import ErrorStatus, Script, ScriptRule, ScriptStep, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.contract.programs import (
    CODEX_CALLS,
    CODEX_LIMITS,
    NO_STEERING,
    PROGRAMS,
    RuntimeProgram,
    ToolCalls,
    codex_mcp_server,
)
from tests.support.acp import World, do, tool
from tests.support.codex import codex_home, codex_settings
from tests.support.remote import FarOutriderHome, far_outrider
from tests.support.survivors import end_all

GREET, WORK, ASK, HANG = "plan-greet", "plan-work", "plan-ask", "plan-hang"
"""Say something; run a command; run one that needs an approval; run one, and then never end."""
WRITE, POKE, TASKS, LOCKED = "plan-write", "plan-poke", "plan-tasks", "plan-locked"
"""Write a file; call the MCP tool in the program's own settings; call Outrider's `tasks`; be refused by the model."""
REMEMBER, MEANWHILE = "plan-remember", "plan-meanwhile"
"""Say ok."""
HELLO, BEGIN, DONE, WENT_ON = "Hello there, friend.", "I begin.", "All done.", "I went on."
COMMAND = "echo x >> did"
NEW_FILE, NEW_TEXT, POKED = "new.txt", "words of a new file", "poked me"
ABILITIES: Mapping[str, str] = {
    "text": "text, streamed",
    "usage": "usage",
    "commands": "commands in the journal",
    "edits": "edits in the journal",
    "approvals": "asks, obeys the answer",
    "question": "question survives kill -9",
    "stop": "stop",
    "steer": "message reaches the running turn",
    "memory": "remembers after a restart",
    "resume": "resumes after kill -9",
    "switch": "switch of runtimes",
    "images": "images",
    "mcp": "its own MCP tools",
    "tools": "Outrider's tools",
    "modes": "modes",
    "login": "401 is told as a login problem",
}
"""What the suite finds out, and the heads of the table in docs/runtimes.md. Tests are marked with the names."""


class Harness(Protocol):
    """One runtime in a folder."""

    traits: RuntimeTraits
    hint: str
    """A part of the error when its program is missing."""
    limits: Mapping[str, str]
    """The abilities it lacks, with the reason."""
    unreliable: frozenset[str]
    """Those of the limits that it sometimes does not have."""
    login_hint: str
    """A part of the error when the model refuses the key."""
    mode: str
    """One of its modes, not the first; empty when it has none."""
    ends_at_denial: bool
    """Whether a no ends its turn, so that its model is not told."""

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

    def written(self) -> str:
        """The file that a plan writes."""
        ...

    def knows(self, words: str) -> int:
        """How often the last prompt contains these words."""
        ...

    def is_steered(self, words: str) -> bool:
        """Whether these words arrived before the model had answered everything before them."""
        ...

    def has_image(self) -> bool:
        """Whether an image arrived."""
        ...

    def age(self) -> None:
        """Make what it keeps look older than a minute."""
        ...


class PlanCalls(Struct, frozen=True):
    """The calls by which the model of a runtime follows the plans."""

    run: ScriptedCall
    ask: ScriptedCall
    write: ScriptedCall
    poke: ScriptedCall
    tasks: ScriptedCall


NATIVE_CALLS = PlanCalls(
    run=call("shell", command=COMMAND),
    ask=call("shell", command=COMMAND, needs=["network"], why="to ring"),
    write=call("write", path=NEW_FILE, content=NEW_TEXT),
    poke=call("poke", a="me"),
    tasks=call("tasks", action="list"),
)


def _script(calls: PlanCalls) -> Script:
    def rule(plan: str, *places: ScriptStep) -> ScriptRule:
        # A prompt may repeat earlier inputs: the last one counts.
        return ScriptRule(f"{plan}(?!.*plan-)", places)

    def work(plan: str, call: ScriptedCall) -> ScriptRule:
        return rule(plan, (says(BEGIN, call),), (says(DONE),))

    return Script(
        rules=(
            ScriptRule("the person (has )?allowed it", ((says(BEGIN, calls.ask),), (says(DONE),))),
            ScriptRule("was cut off|work on this was interrupted", ((says(WENT_ON),),)),
            rule(GREET, (says(HELLO),)),
            work(WORK, calls.run),
            work(ASK, calls.ask),
            work(WRITE, calls.write),
            work(POKE, calls.poke),
            work(TASKS, calls.tasks),
            rule(HANG, (says(BEGIN, calls.run),), (Stall("stream"), says("this is never said to its end"))),
            rule(LOCKED, (ErrorStatus(401, "Incorrect API key provided"),)),
            ScriptRule(".*", ((says("ok"),),)),
        )
    )


class _ScriptedModelHarness:
    """A runtime whose model is the scripted server, natively or with another program in between."""

    ends_at_denial = False
    mode = ""
    unreliable = frozenset[str]()

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self._folder = folder
        self._server = server

    def words(self, plan: str) -> str:
        return plan

    def effects(self) -> int:
        book = self._folder / "work" / "did"
        return len(book.read_text().splitlines()) if book.exists() else 0

    def written(self) -> str:
        return (self._folder / "work" / NEW_FILE).read_text()

    def knows(self, words: str) -> int:
        return self._conversations()[-1].count(words)

    def is_steered(self, words: str) -> bool:
        return DONE not in next(text for text in self._conversations() if words in text)

    def has_image(self) -> bool:
        # Some programs encode it again.
        return any(re.search(r"image/png|\"image\"", text) for text in self._conversations())

    def age(self) -> None:
        """Nothing here depends on the time."""

    def _conversations(self) -> list[str]:
        """The messages of each request, without the requests that programs make for themselves, such as for a title."""
        bodies = [request.body for request in self._server.requests if request.body.get("tools")]
        return [json.dumps([body.get(name) for name in ("messages", "input", "contents")]) for body in bodies]


def _model(server: ScriptedServer) -> dict[str, str]:
    return {"model.name": "openai-chat:scripted", "model.url": server.url, "model.key": "none"}


class Native(_ScriptedModelHarness):
    traits = NativeRuntime.traits
    hint = "available: anthropic, openai"
    login_hint = "key"
    limits: Mapping[str, str] = {"mcp": "the native loop does not use MCP servers", "modes": "it has none"}

    def settings(self) -> dict[str, str]:
        return {"runtime.name": "native", **_model(self._server)}

    def broken(self) -> dict[str, str]:
        return {"runtime.name": "native", "model.name": "nobody:knows"}


class Codex(_ScriptedModelHarness):
    traits = CodexRuntime.traits
    hint = "/runtime native"
    login_hint = "login"
    limits: Mapping[str, str] = CODEX_LIMITS

    def settings(self) -> dict[str, str]:
        home = codex_home(self._folder, self._server.url, more=codex_mcp_server())
        return {**_model(self._server), **codex_settings(home)}

    def broken(self) -> dict[str, str]:
        return {**self.settings(), "codex.command": str(self._folder / "nowhere")}


class Acp:
    ends_at_denial = False
    unreliable = frozenset[str]()
    mode = ""
    traits = AcpRuntime.traits
    hint = "/runtime native"
    login_hint = "login"

    def __init__(self, folder: Path, server: ScriptedServer, *agent: str) -> None:
        self._world = World(folder)
        self._server = server
        self._agent = agent
        self.limits: Mapping[str, str] = {"steer": NO_STEERING, "resume": "it depends on the agent"}

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
            LOCKED: [("error", -32000, "Authentication required", None)],
            WORK: [("say", BEGIN), *run, ("say", DONE)],
            # Some agents replay a call that waited for an answer as failed.
            ASK: [
                ("say", BEGIN),
                ("past", tool("c1", "failed")[1]),
                ("ask", request),
                tool("c1", "completed"),
                ("say", DONE),
            ],
            HANG: [("say", BEGIN), *run, ("hang",)],
        }
        return do(*plans.get(plan, [("say", "ok")]), before=f"{plan} ")

    def effects(self) -> int:
        return sum(effect == "x" or _allows(effect) for effect in self._world.effects())

    def written(self) -> str:
        raise FileNotFoundError("the scripted agent writes no files")

    def knows(self, words: str) -> int:
        newest = max(self._world.agents.glob("*.past"))
        updates = [json.loads(line) for line in newest.read_text().splitlines()]
        return json.dumps([update for update in updates if update["sessionUpdate"] == "user_message_chunk"]).count(
            words
        )

    def is_steered(self, words: str) -> bool:
        return len([prompt for prompt in self._world.prompts() if ASK in prompt or words in prompt]) == 1

    def has_image(self) -> bool:
        return "image/png" in json.dumps(self._world.received("session/prompt"))

    def age(self) -> None:
        """Nothing here depends on the time."""


def _allows(effect: Any) -> bool:
    """Whether this is an answer to a question, and a yes."""
    chosen = effect.get("outcome", {}).get("optionId") if isinstance(effect, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return chosen in ("1", "2")


class Program(_ScriptedModelHarness):
    """A real program, installed by `./dev runtimes`."""

    hint = "/runtime native"
    login_hint = "login"

    def __init__(self, folder: Path, server: ScriptedServer, program: RuntimeProgram) -> None:
        super().__init__(folder, server)
        self._program = program
        self.traits = CodexRuntime.traits if program.runtime == "codex" else AcpRuntime.traits
        self.limits = program.limits
        self.ends_at_denial = program.ends_at_denial
        self.mode = program.mode
        self.unreliable = program.unreliable

    def settings(self) -> dict[str, str]:
        program = self._program
        return {**_model(self._server), **program.settings(self._folder, self._server, program.executable())}

    def broken(self) -> dict[str, str]:
        return {**self.settings(), f"{self._program.runtime}.command": str(self._folder / "nowhere")}

    def age(self) -> None:
        if self._program.age:
            # A program that outlives Outrider would go on writing.
            end_all(self._folder)
            self._program.age(self._folder)


@contextmanager
def _native(folder: Path) -> Generator[Harness]:
    with ScriptedServer(_script(NATIVE_CALLS)) as server:
        yield Native(folder, server)


def _program_calls(folder: Path, calls: ToolCalls) -> PlanCalls:
    return PlanCalls(
        run=calls.run(COMMAND),
        ask=calls.ask(COMMAND),
        write=calls.write(str(folder / "work" / NEW_FILE), NEW_TEXT),
        poke=calls.poke,
        tasks=calls.tasks,
    )


@contextmanager
def _codex(folder: Path) -> Generator[Harness]:
    with ScriptedServer(_script(_program_calls(folder, CODEX_CALLS))) as server:
        yield Codex(folder, server)


@contextmanager
def _acp(folder: Path, *agent: str) -> Generator[Harness]:
    # This model answers only while a session is switched to the native runtime.
    with ScriptedServer(_script(_program_calls(folder, CODEX_CALLS))) as server:
        yield Acp(folder, server, *agent)


@contextmanager
def open_program(folder: Path, program: RuntimeProgram) -> Generator[Harness]:
    with ScriptedServer(_script(_program_calls(folder, program.calls))) as server:
        yield Program(folder, server, program)


class Remote(_ScriptedModelHarness):
    """Another Outrider runs the turns, natively."""

    traits = RemoteRuntime.traits
    hint = "remote.url"
    login_hint = "key"
    limits: Mapping[str, str] = {
        "mcp": "the other side runs natively, without MCP servers",
        "modes": "it has none",
        "switch": "while remote.url is set, nothing runs here",
    }

    def __init__(self, folder: Path, server: ScriptedServer, far: FarOutriderHome) -> None:
        super().__init__(folder, server)
        self._far = far

    def settings(self) -> dict[str, str]:
        return self._far.settings()

    def broken(self) -> dict[str, str]:
        return {"runtime.name": "remote"}

    def effects(self) -> int:
        return self._far.effects()

    def written(self) -> str:
        [folder] = self._far.workspaces()
        return (folder / NEW_FILE).read_text()


@contextmanager
def _remote(folder: Path) -> Generator[Harness]:
    with (
        ScriptedServer(_script(NATIVE_CALLS)) as server,
        far_outrider(folder / "far", _model(server)) as far,
    ):
        yield Remote(folder, server, far)


Opens = Callable[[Path], AbstractContextManager[Harness]]
RUNTIMES: Mapping[str, Opens] = {
    "native": _native,
    "codex": _codex,
    "acp": _acp,
    "acp that forgets": lambda folder: _acp(folder, "forgets"),
    "remote": _remote,
}
UNSCRIPTED: Mapping[str, frozenset[str]] = {
    "acp": frozenset({"edits", "mcp", "modes", "tools"}),
    "acp that forgets": frozenset({"edits", "images", "login", "mcp", "modes", "tools"}),
}
"""The abilities that have no test here: the scripted agent calls no real tools, and both are the same otherwise."""


def harness_of(name: str) -> Opens:
    """The runtime of this name, or the installed program."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    return lambda folder: open_program(folder, PROGRAMS[name])
