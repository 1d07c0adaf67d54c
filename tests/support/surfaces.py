"""Turns on every surface of one home, and notices that arrive at a given step of them.

    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        task = await scene.start_task(SURFACES["terminal chat"])
        turn = await scene.begin_turn(SURFACES["completion"], "while the model replies", says("", *probe_calls("s")))
        await task.report()
        outcome = await turn.finish()

A terminal, a pipe and Python post as their programs do; HTTP requests go through the real application, in this process.
Nothing sleeps: the model and a tool wait at gates, and commands wait at named pipes.
"""

import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from anyio.abc import TaskGroup
from msgspec import Struct

import outrider
from outrider.app.agent import Agent
from outrider.channels.http.app import ENDPOINTS, build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.config.load import load
from outrider.core.events import Answered, Asked, Ended, Entry, Input, Reply, Result
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt, UserMessage
from outrider.core.store_port import Session
from outrider.core.tasks import Task
from outrider.core.types import ModelTraits
from outrider.testing.scripted_model import ReplySource, ScriptedCall, ScriptedModel, ScriptedStall, call, says, stalls
from tests.support.http import any_key, key_of

PATIENCE = 60
"""Seconds after which a wait fails."""
Cause = Literal["child", "end", "match", "stall"]
"""What a task reports: the end of a child session, or of a command; a line that matches; a prompt that waits."""
Step = Literal[
    "while the model replies",
    "while a call runs",
    "between two calls",
    "while a question is pending",
    "while the last reply is written",
    "after its end",
]
STEPS: tuple[Step, ...] = Step.__args__  # pyright: ignore[reportAttributeAccessIssue]
RULES = """\
[[rules]]
verdict = "ask"
tool = "careful"

[[rules]]
verdict = "allow"
tool = "shell"
needs = ["host"]
"""


class Surface(Struct, frozen=True):
    """A way to reach a session, and what docs/tasks.md promises there."""

    name: str
    address: str
    """For HTTP, what it begins with."""
    is_notified: bool
    can_answer: bool
    path: str = ""
    """Of the request, for HTTP."""
    options: tuple[tuple[str, object], ...] = ()
    """More of the request's body."""


_RESPONSES = "/v1/responses"
SURFACES = {
    surface.name: surface
    for surface in (
        Surface("terminal chat", "terminal:chat", is_notified=True, can_answer=True),
        Surface("run at a terminal", "prompt:run", is_notified=False, can_answer=True),
        Surface("pipe", "pipe:run", is_notified=False, can_answer=False),
        Surface("Python", "python:api", is_notified=True, can_answer=False),
        Surface("completion", "chat:", is_notified=False, can_answer=False, path="/v1/chat/completions"),
        Surface("plain response", "chat:", False, False, _RESPONSES, (("store", False),)),
        Surface("stored response", "responses:", True, True, _RESPONSES),
        Surface("background response", "responses:", True, True, _RESPONSES, (("background", True),)),
        Surface("sessions API", "sessions:", True, True, "/v1/sessions/{session}/inputs"),
    )
}
NOTIFIED = [surface for surface in SURFACES.values() if surface.is_notified]


class Outcome(Struct, frozen=True):
    """What the calls of `probe_calls` led to: where the turn answered to, seen from outside."""

    delegated: str
    """The status of the delegated work: `background_started`, or `done` where it ran in the foreground."""
    question: str
    """`asked` or `denied`."""
    notify: bool | None = None
    """Whether the command's result promises a notice; None without a command."""


def expected_outcome(surface: Surface, *, has_command: bool = False) -> Outcome:
    return Outcome(
        "background_started" if surface.is_notified else "done",
        "asked" if surface.can_answer else "denied",
        surface.is_notified if has_command else None,
    )


def probe_calls(scene: str, *, has_command: bool = False) -> Sequence[ScriptedCall]:
    """Calls whose outcome depends on where their turn answers to."""
    calls = [call("delegate", work=f"{scene}: a colour", background=True), call("careful")]
    return [call("shell", command="true", background=True), *calls] if has_command else calls


class SessionScripts:
    """A model with a script for each session, found by the session's first message."""

    traits = ModelTraits(name="scripted", wire="scripted")

    def __init__(self) -> None:
        self._lines: dict[str, list[ReplySource | ScriptedStall]] = {}

    def add(self, first_message: str, *lines: ReplySource | ScriptedStall) -> None:
        self._lines.setdefault(first_message, []).extend(lines)

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        first = prompt.messages[0]
        assert isinstance(first, UserMessage)
        return await ScriptedModel(*self._lines.get(first.text, ())).reply(prompt, emit)


class BackgroundTask:
    """A task in the background of a session, which reports when the test says so."""

    def __init__(self, scene: "Scene", surface: Surface, report: Callable[[], Any], task: Task) -> None:
        self.surface = surface
        self.task = task
        self._scene = scene
        self._report = report

    def trigger(self) -> None:
        """Let it come to what it reports, without waiting for the notice."""
        self._scene.home.group.start_soon(self._report)

    async def report(self) -> None:
        """Let it come to what it reports, and wait for the notice; without one, for its end."""
        count = len(await self._scene.notices())
        self.trigger()
        if self.surface.is_notified:
            await self._scene.until_notices(count + 1)
        else:
            with anyio.fail_after(PATIENCE):
                await self._scene.home.agent.wait_task(self.task)


class SceneTurn:
    """A turn on a surface, held at a step until `finish`."""

    def __init__(self, scene: "Scene", surface: Surface, entry: Entry, release: Callable[[], Any]) -> None:
        self.entry = entry
        """Its message."""
        self._scene = scene
        self._surface = surface
        self.release = release
        """Continues it."""

    async def finish(self, surface: Surface | None = None) -> Outcome:
        """Continue, answer the question of `probe_calls` where `surface` can, and return what became of its calls.

        Without a surface, the turn's own.
        """
        self.release()
        return await self._scene.outcome(self.entry.seq, surface or self._surface)


class Scene:
    """One session."""

    def __init__(self, home: "SurfaceHome", name: str) -> None:
        self.home = home
        self.name = name
        self._begun = False

    async def session(self) -> Session:
        return await self.home.agent.session(self.name)

    def add_replies(self, *lines: ReplySource | ScriptedStall) -> None:
        self.home.model.add(self.name, *lines)

    async def send(self, surface: Surface, text: str = "") -> Entry:
        """Send a message from this surface, and return its entry. The first message is the session's name."""
        text = text or (f"{self.name}, from {surface.name}" if self._begun else self.name)
        after = (await self.session()).head
        self._begun = True
        self.home.group.start_soon(self.home.send, surface, self.name, text)
        return await self.until(lambda body: isinstance(body, Input) and body.text == text, after)

    async def start_task(self, surface: Surface, cause: Cause = "child", output: str = "Done.") -> BackgroundTask:
        """Run a turn on this surface that starts a task in the background. A child session ends with `output`."""
        await self.session()
        starting, report = self._task_call(cause, output)
        self.add_replies(says("", starting), says("It is running."))
        entry = await self.send(surface)
        await self.until(lambda body: isinstance(body, Ended), entry.seq)
        (task,) = await self.home.agent.tasks(await self.session())
        if cause == "child":
            await self.home.model_waits(_child_work(self.name))
        return BackgroundTask(self, surface, report, task)

    def _task_call(self, cause: Cause, output: str) -> tuple[ScriptedCall, Callable[[], Any]]:
        if cause == "child":
            work = _child_work(self.name)
            gate = self.home.gates[work] = stalls()
            self.home.model.add(work, gate, says(output))
            return call("delegate", work=work, background=True), _async(gate.release)
        pipe = self.home.work / f"{self.name.replace(' ', '-')}-pipe"
        os.mkfifo(pipe)
        commands: dict[Cause, tuple[str, dict[str, object], str]] = {
            "end": ("cat PIPE", {}, "over\n"),
            "match": ("cat PIPE; cat PIPE", {"watch": "^READY"}, "READY\n"),
            "stall": ("cat PIPE; read answer", {"interactive": True}, "Continue? [y/n] "),
        }
        command, options, text = commands[cause]

        async def write() -> None:
            with anyio.fail_after(PATIENCE):
                await anyio.to_thread.run_sync(pipe.write_text, text, abandon_on_cancel=True)

        return call("shell", command=command.replace("PIPE", pipe.name), background=True, **options), write

    async def begin_turn(self, surface: Surface, step: Step, *then: ReplySource) -> SceneTurn:
        """Start a turn on this surface and hold it at this step; the model then makes these replies."""
        gate, gate_name = stalls("Wait"), f"{self.name} {step}"
        self.home.gates[gate_name] = gate
        hold = call("hold", gate=gate_name)
        lines: dict[Step, list[ReplySource | ScriptedStall]] = {
            "while the model replies": [gate, *then],
            "while a call runs": [says("", hold), *then],
            "between two calls": [says("", call("hold", gate=""), hold, call("hold", gate="")), *then],
            "while a question is pending": [says("", call("careful")), *then],
            "while the last reply is written": [gate, says("That is all."), *then],
            "after its end": [says("That is all."), *then],
        }
        self.add_replies(*lines[step])
        entry = await self.send(surface)
        if step == "after its end":
            await self.until(lambda body: isinstance(body, Ended), entry.seq)
            return SceneTurn(self, surface, entry, lambda: None)
        if step == "while a question is pending":
            asked = await self.until(lambda body: isinstance(body, Asked), entry.seq)
            return SceneTurn(self, surface, asked, lambda: self.home.group.start_soon(self.answer, asked))
        with anyio.fail_after(PATIENCE):
            await gate.reached.wait()
        return SceneTurn(self, surface, entry, gate.release)

    async def answer(self, entry: Entry) -> None:
        """Answer this question with yes."""
        assert isinstance(entry.body, Asked)
        await self.home.agent.answer(await self.session(), entry.body, "once")

    async def outcome(self, after: int, surface: Surface) -> Outcome:
        """What became of the calls of `probe_calls`, the first after this entry."""
        delegate = await self._first_call(after, "delegate")
        if surface.can_answer:
            careful = await self._first_call(delegate.seq - 1, "careful")
            await self.until(lambda body: isinstance(body, Asked | Answered), careful.seq)
            for asked in await self.home.agent.questions(await self.session()):
                await self.home.agent.answer(await self.session(), asked, "once")
        await self.until(lambda body: isinstance(body, Ended), delegate.seq)
        journal = await self.home.agent.journal(await self.session(), delegate.seq - 1)
        assert isinstance(delegate.body, Reply)
        results = {one.body.call: one.body for one in journal if isinstance(one.body, Result)}
        texts = {one.tool: results[one.id].text for one in delegate.body.calls}
        (answered, *_) = [one.body for one in journal if isinstance(one.body, Answered)]
        return Outcome(
            json.loads(texts["delegate"])["status"],
            "asked" if answered.person else "denied",
            json.loads(texts["shell"])["notify"] if "shell" in texts else None,
        )

    async def _first_call(self, after: int, tool: str) -> Entry:
        """The first reply that calls this tool."""
        return await self.until(
            lambda body: isinstance(body, Reply) and any(one.tool == tool for one in body.calls), after
        )

    async def notices(self) -> list[Input]:
        journal = await self.home.agent.journal(await self.session())
        return [entry.body for entry in journal if isinstance(entry.body, Input) and entry.body.source == "task"]

    async def until_notices(self, count: int) -> None:
        seen: list[Input] = []

        def is_last(body: object) -> bool:
            seen.extend([body] if isinstance(body, Input) and body.source == "task" else [])
            return len(seen) == count

        await self.until(is_last)

    async def until_idle(self) -> None:
        """Wait until the session has no work."""
        with anyio.fail_after(PATIENCE):
            await self.home.agent.wait(await self.session())

    async def until(self, is_awaited: Callable[[object], bool], after: int = 0) -> Entry:
        """The first entry after this one with such a body."""
        with anyio.fail_after(PATIENCE):
            async with aclosing(self.home.agent.follow(await self.session(), after)) as events:
                async for event in events:
                    if isinstance(event, Entry) and is_awaited(event.body):
                        return event
        raise AssertionError("a stream of events has no end")


class SurfaceHome:
    """An open home, a client of its HTTP application, and the scripts of its sessions."""

    def __init__(
        self,
        agent: Agent,
        client: httpx2.AsyncClient,
        model: SessionScripts,
        gates: dict[str, ScriptedStall],
        work: Path,
        group: TaskGroup,
    ) -> None:
        self.agent = agent
        self.model = model
        self.gates = gates
        self.work = work
        self.group = group
        self.client = client

    def scene(self, name: str) -> Scene:
        """A session of this name. Work that it delegates with `probe_calls` ends at once."""
        self.model.add(f"{name}: a colour", says("Blue."))
        return Scene(self, name)

    async def model_waits(self, gate: str) -> None:
        """Wait until a model or a tool waits at this gate."""
        with anyio.fail_after(PATIENCE):
            await self.gates[gate].reached.wait()

    async def send(self, surface: Surface, session: str, text: str) -> None:
        """Send a message; over HTTP, until its response is there. A test may stop the turn."""
        if surface.address == "python:api":
            await self.agent.say(text, session=session)
        elif not surface.path:
            await self.agent.post(text, session=await self.agent.find(session), address=surface.address)
        else:
            bodies: dict[str, dict[str, object]] = {
                "/v1/chat/completions": {"model": "outrider", "messages": [{"role": "user", "content": text}]},
                _RESPONSES: {"model": "outrider", "input": text, "conversation": session},
            }
            body = bodies.get(surface.path, {"text": text}) | dict(surface.options)
            headers = {"x-session-id": session} if surface.address == "chat:" and surface.path != _RESPONSES else {}
            path = surface.path.replace("{session}", session)
            answer = await self.client.post(path, json=body, headers=headers)
            is_stopped = answer.status_code == 422 and answer.json()["error"]["code"] == "turn_stopped"
            assert answer.status_code in (200, 202) or is_stopped, answer.text


def _child_work(scene: str) -> str:
    return f"{scene}: a task"


def _async(function: Callable[[], None]) -> Callable[[], Any]:
    async def run() -> None:
        function()

    return run


@asynccontextmanager
async def open_surfaces(folder: Path, rules: str = RULES, **settings: str) -> AsyncGenerator[SurfaceHome]:
    """A home with a session for each `scene`. Commands that still run at the end are killed."""
    home, work = folder / "home", folder / "work"
    home.mkdir(mode=0o700, exist_ok=True)
    work.mkdir(exist_ok=True)
    (home / "config.toml").write_text(rules)
    gates: dict[str, ScriptedStall] = {}

    async def hold(gate: str) -> str:
        """Wait at a gate."""
        if gate:
            await gates[gate].hold(lambda delta: None)
        return "held"

    async def careful() -> str:
        """Do something that a rule asks about."""
        return "done"

    model = SessionScripts()
    defaults = {"limits.turns": "1000"}
    config = load(home, {}, defaults | {name.replace("_", ".", 1): value for name, value in settings.items()})
    async with outrider.open(config=config, model=model, tools=[hold, careful], workspace=work) as agent:
        transport = httpx2.ASGITransport(build_app(HttpContext(agent, "test"), ENDPOINTS, (any_key,)))  # pyright: ignore[reportArgumentType]
        headers = {"authorization": f"Bearer {key_of()}"}
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
            anyio.create_task_group() as group,
        ):
            yield SurfaceHome(agent, client, model, gates, work, group)
            group.cancel_scope.cancel()
        for task in await agent.tasks(open_only=True):
            await agent.kill_task(task)
