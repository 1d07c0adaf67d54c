"""kill -9 of Outrider and of Codex at every point of a turn that the real Codex runs: it ends once, and correctly.

What happened is counted outside: by the file that commands wrote to, by the model server's requests, in /proc.
"""

import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked, Begun, Bound, Delta, Ended, Entry, Event, Reply, Result, Started
from outrider.core.turn_result import TurnResult
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Script, ScriptRule, ScriptStep, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.codex import codex_home, codex_settings, open_codex, processes, shell, texts
from tests.support.life import killed_at, start_life
from tests.support.survivors import end_all, living, until_none_survives

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.promise("L3"),
    pytest.mark.promise("L4"),
    pytest.mark.promise("L12"),
]
ASKED = "pay the bills"
DONE = "All bills are paid."
PAY_RENT = shell("echo rent >> paid")
RENT = says("I pay the rent first", PAY_RENT)
POWER = says("one more", shell("echo power >> paid"))
SCRIPT = script(RENT, POWER, *[says(DONE)] * 4)
POINTS = [
    "input_committed",
    "session_unclaimed",
    "turn_started",
    "mid_reply",
    "mid_reply:4",
    "calls_not_recorded",
    "calls_not_recorded:2",
    "call_intent_recorded",
    "call_intent_recorded:2",
    "result_not_recorded",
    "result_not_recorded:2",
    "result_recorded",
    "result_recorded:2",
    "reply_not_recorded",
    "reply_not_recorded:3",
    "reply_recorded",
]
UNSURE = ("not known", "may or may not", "aborted")
_PATIENCE = 90.0


class World:
    """A folder with a home of ours, one of Codex's, and a model; what its commands did."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.server = server
        self._home = codex_home(folder, server.url)

    def settings(self, **more: str) -> dict[str, str]:
        return codex_settings(self._home, **more)

    @asynccontextmanager
    async def again(self, **settings: str) -> AsyncGenerator[Agent]:
        """The next life, in this process."""
        with anyio.fail_after(_PATIENCE):
            async with open_codex(self.folder, self.server.url, None, None, **settings) as agent:
                yield agent

    @property
    def paid(self) -> list[str]:
        book = self.folder / "work" / "paid"
        return book.read_text().split() if book.exists() else []

    def assert_paid_once(self, *bills: str) -> None:
        """No bill was paid twice, and if one was not paid, the model was told that this is uncertain."""
        assert len(self.paid) == len(set(self.paid))
        prompts = " ".join(texts(request) for request in self.server.requests)
        assert sorted(self.paid) == sorted(bills) or any(word in prompts for word in UNSURE), self.paid


@contextmanager
def open_world(folder: Path, script: Script) -> Generator[World]:
    """A world whose model follows this script; no process of it is left."""
    try:
        with ScriptedServer(script) as server:
            yield World(folder, server)
    finally:
        end_all(folder)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, SCRIPT) as world:
        yield world


async def resumed(agent: Agent) -> TurnResult:
    """The turn that was left open, once it has ended."""
    await agent.resume_all()
    ended = await agent.wait(await agent.find("s"))
    assert ended
    return ended


async def assert_in_order(agent: Agent, turns: int, threads: int = 1) -> None:
    """So many threads; each turn ended once; nothing was recorded twice, and nothing is left open."""
    journal = await agent.journal(await agent.find("s"))
    assert len({entry.body.thread for entry in journal if isinstance(entry.body, Bound)}) <= threads
    assert sum(isinstance(entry.body, Ended) for entry in journal) == turns
    calls = [call.id for entry in journal if isinstance(entry.body, Reply) for call in entry.body.calls]
    results = [entry.body.call for entry in journal if isinstance(entry.body, Result)]
    assert (len(set(calls)), sorted(results)) == (len(calls), sorted(calls))
    replies = [entry.body.text for entry in journal if isinstance(entry.body, Reply) and entry.body.text]
    # Codex may repeat the last message before it was cut off: to it, and to the journal, these are two messages.
    assert len(replies) - len(set(replies)) <= 1


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("point", POINTS)
async def test_a_turn_continues_in_its_thread_after_outrider_was_killed(world: World, point: str) -> None:
    killed_at(point, world.folder, world.settings(), ASKED)
    async with world.again() as agent:
        turn = await resumed(agent)
        assert (turn.outcome, turn.text) == ("done", DONE)
        await assert_in_order(agent, 1)
        assert texts(world.server.requests[-1]).count(ASKED) == 1
        world.assert_paid_once("rent", "power")
    await until_none_survives(world.folder)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("result_not_recorded", "turn_started"),
        ("call_intent_recorded", "result_not_recorded"),
        ("calls_not_recorded", "reply_not_recorded"),
        ("result_recorded", "reply_recorded"),
    ],
)
async def test_a_turn_whose_owner_was_killed_twice_still_ends_once(world: World, first: str, second: str) -> None:
    killed_at(first, world.folder, world.settings(), ASKED)
    with start_life(world.folder, world.settings(), ASKED, second) as life:
        life.communicate(timeout=_PATIENCE)
    async with world.again() as agent:
        if (await agent.find("s")).has_work:
            await resumed(agent)
        await assert_in_order(agent, 1)
        world.assert_paid_once("rent", "power")
    await until_none_survives(world.folder)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A15")
@pytest.mark.parametrize("answer", ["once", "no"])
async def test_a_question_survives_a_kill_of_outrider_and_its_answer_applies(tmp_path: Path, answer: str) -> None:
    wants = shell("echo rent >> paid")
    with ScriptedServer(script(says("may I", wants), says("again", wants), says(DONE))) as server:
        world = World(tmp_path, server)
        killed_at("approval_pending", world.folder, world.settings(codex_approval="untrusted"), ASKED)
        async with world.again(codex_approval="untrusted") as agent:
            await agent.resume_all()
            session = await agent.find("s")
            (question,) = await agent.questions(session)
            assert (world.paid, "echo rent >> paid" in question.question) == ([], True)
            assert await agent.answer(session, question, answer)
            turn = await agent.wait(await agent.find("s"))
            assert turn
            assert (turn.outcome, turn.text) == ("done", DONE)
            assert world.paid == (["rent"] if answer == "once" else [])
            await assert_in_order(agent, 1)
        await until_none_survives(world.folder)


def is_body(kind: type[object]) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Entry) and isinstance(event.body, kind)


def makes_call(event: Event) -> bool:
    return isinstance(event, Entry) and isinstance(event.body, Reply) and bool(event.body.calls)


def says_it_all(event: Event) -> bool:
    return isinstance(event, Entry) and isinstance(event.body, Reply) and event.body.text == DONE


def streams_text(event: Event) -> bool:
    return isinstance(event, Delta) and event.kind == "text"


class Moment(NamedTuple):
    """When Codex is killed, and what must be true of it."""

    is_reached: Callable[[Event], bool]
    replies: tuple[ScriptStep, ...]
    """To the first message. The model holds the last one back, so that Codex is killed no later than there."""
    paid: tuple[list[str], ...] = (["rent", "power"],)
    """What may be paid in the end; empty if a command was running, so that this is uncertain."""
    may_lose_thread: bool = False
    """Codex stores nothing of a thread without a message, and it may not have got one."""


HELD = (Stall(),)
# Half of its events are the whole text and nothing of the call.
SHORT_RENT = says("First.", PAY_RENT)
MOMENTS = {
    "turn_started": Moment(is_body(Started), (HELD,), may_lose_thread=True),
    "thread_bound": Moment(is_body(Bound), (HELD,), may_lose_thread=True),
    # Codex does not store a message before its end.
    "within_text": Moment(streams_text, ((Stall("stream"), RENT),)),
    # A reply that is cut off between its text and its call is, to the model, one without a call.
    "between_text_and_call": Moment(
        streams_text, ((Stall("stream"), SHORT_RENT),), paid=(["power"], ["rent", "power"])
    ),
    "call_recorded": Moment(makes_call, ((RENT,), HELD), paid=()),
    "call_begun": Moment(is_body(Begun), ((RENT,), HELD), paid=()),
    "result_recorded": Moment(is_body(Result), ((RENT,), HELD)),
    "last_reply_recorded": Moment(says_it_all, ((RENT,), (POWER,), (says(DONE),))),
}


async def say(agent: Agent, text: str, on_event: Callable[[Event], None] | None = None) -> TurnResult:
    session = await agent.session("s")
    return await agent.say(text, session=session.id, address="terminal:test", on_event=on_event)


def kill_all(folder: Path) -> int:
    pids = processes(folder)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A8")
@pytest.mark.parametrize("name", MOMENTS)
async def test_a_turn_whose_codex_was_killed_fails_and_the_next_one_continues_in_its_thread(
    tmp_path: Path, name: str
) -> None:
    moment = MOMENTS[name]
    reached = anyio.Event()

    def watch(event: Event) -> None:
        if moment.is_reached(event):
            reached.set()

    async def kill() -> None:
        await reached.wait()
        while not kill_all(tmp_path):
            await anyio.sleep(0.01)

    script = Script(SCRIPT.replies, (ScriptRule(f"^{ASKED}$", moment.replies),))
    with open_world(tmp_path, script) as world:
        async with world.again() as agent:
            outcomes: list[TurnResult] = []
            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                outcomes.append(await say(agent, ASKED, watch))
            (turn,) = outcomes
            is_done = name == "last_reply_recorded" and turn.outcome == "done"
            assert is_done or (turn.outcome, "/runtime native" in turn.error) == ("failed", True)
            again = await say(agent, "go on")
            assert (again.outcome, again.text) == ("done", DONE)
            await assert_in_order(agent, 2, threads=2 if moment.may_lose_thread else 1)
            if moment.paid:
                assert world.paid in moment.paid
            else:
                world.assert_paid_once("rent", "power")
                assert "power" in world.paid
            assert len(processes(tmp_path)) == 1
        await until_none_survives(tmp_path)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A8")
async def test_a_question_of_a_killed_codex_is_asked_again_by_the_next_process(tmp_path: Path) -> None:
    def kill_when_asked(event: Event) -> None:
        if is_body(Asked)(event):
            kill_all(tmp_path)

    wants = shell("echo rent >> paid")
    with ScriptedServer(script(says("may I", wants), says("again", wants), *[says(DONE)] * 2)) as server:
        world = World(tmp_path, server)
        async with world.again(codex_approval="untrusted") as agent:
            turn = await say(agent, ASKED, kill_when_asked)
            assert (turn.outcome, "/runtime native" in turn.error) == ("failed", True)
            session = await agent.find("s")
            assert (await agent.questions(session), world.paid) == ((), [])
            await agent.post("go on", session=session, address="terminal:test")
            while not (asks := await agent.questions(session)):
                await anyio.sleep(0.02)
            assert await agent.answer(session, asks[0], "once")
            ended = await agent.wait(await agent.find("s"))
            assert ended
            assert (ended.outcome, ended.text, world.paid) == ("done", DONE, ["rent"])
            await assert_in_order(agent, 2)
        await until_none_survives(tmp_path)


LEFT = "setsid sleep 1000 > /dev/null 2>&1 & echo $! > left; echo x >> paid; exec sleep 1000"


@pytest.mark.promise("L7")
@pytest.mark.parametrize("who", ["outrider", "codex"])
async def test_commands_that_outlive_a_kill_are_found_and_ended(tmp_path: Path, who: str) -> None:
    free = {"codex_sandbox": "danger-full-access", "codex_approval": "never"}
    with ScriptedServer(script(says("I start it", shell(LEFT)), *[says("It was cut off.")] * 3)) as server:
        world = World(tmp_path, server)
        with start_life(tmp_path, world.settings(**free), ASKED) as life:
            with anyio.fail_after(_PATIENCE):
                while not world.paid:
                    await anyio.sleep(0.02)
            if who == "outrider":
                life.kill()
            else:
                kill_all(tmp_path)
            life.communicate(timeout=_PATIENCE)
        left = int((tmp_path / "work" / "left").read_text())
        assert (left in living(tmp_path)) == (who == "outrider")
        async with world.again(**free) as agent:
            turn = await resumed(agent) if who == "outrider" else await say(agent, "go on")
            assert (turn.outcome, turn.text) == ("done", "It was cut off.")
            assert not any(b"sleep" in words for words in living(tmp_path).values())
            await assert_in_order(agent, 1 if who == "outrider" else 2)
        assert world.paid == ["x"]
        await until_none_survives(tmp_path)
