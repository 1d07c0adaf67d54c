"""One suite for every runtime: a person and the journal see the same, whichever runs the turn.

Where one cannot do something it says so by its traits or its limits, and the tests hold it to just that. `./dev
runtimes` runs the suite over real programs; the marks `ability` name the columns of the table in docs/runtimes.md.

| runtime          | steers | resumes | bounded | lends |
|------------------|--------|---------|---------|-------|
| native           | yes    | yes     | yes     | yes   |
| codex            | yes    | yes     | no      | no    |
| acp              | no     | no      | no      | no    |
| acp that forgets | no     | no      | no      | no    |
| remote           | yes    | yes     | no      | no    |
"""

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.errors import Refused
from outrider.core.events import Answered, Asked, Delta, Ended, Entry, Event, Input, Reply, Result, Started
from outrider.core.prompt import Prompt, transcript
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult
from outrider.core.types import REMOTE, Call
from outrider.models.http_model import ReasoningReplay
from tests.contract.programs import PROGRAMS
from tests.contract.runtimes import (
    ASK,
    BEGIN,
    COMMAND,
    DONE,
    GREET,
    HANG,
    HELLO,
    LOCKED,
    MEANWHILE,
    NEW_FILE,
    NEW_TEXT,
    POKE,
    POKED,
    REMEMBER,
    RUNTIMES,
    TASKS,
    UNSCRIPTED,
    WORK,
    WRITE,
    Harness,
    harness_of,
)
from tests.support.life import killed_at
from tests.support.machine import missing
from tests.support.requests import CHECKS, TOOLS, render
from tests.support.survivors import end_all, until_none_survives

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
TERMINAL = "terminal:test"
IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mM4YSNCEmIY1TCqYfhqAACQMxgQNRMkWQAAAABJRU5ErkJggg=="
)
"""A PNG image of 16 by 16 pixels."""


class Tried:
    """A runtime in a folder."""

    def __init__(self, folder: Path, harness: Harness) -> None:
        self.folder = folder
        self.harness = harness
        for name in ("home", "work"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)

    @asynccontextmanager
    async def open_agent(self, settings: Mapping[str, str] | None = None) -> AsyncGenerator[Agent]:
        """Opening it again is a restart."""
        config = load(self.folder / "home", {}, settings or self.harness.settings())
        with anyio.fail_after(90):
            async with outrider.open(config=config, workspace=self.folder / "work") as agent:
                yield agent

    def allow_commands(self) -> None:
        """Some programs ask before every command; others run them in their sandbox."""
        rule = '[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n'
        (self.folder / "home" / "config.toml").write_text(rule)

    async def say(self, agent: Agent, plan: str) -> TurnResult:
        session = await agent.session("s")
        return await agent.say(self.harness.words(plan), session=session.id, address=TERMINAL)

    async def begin(self, agent: Agent, plan: str, address: str = TERMINAL) -> Session:
        session = await agent.session("s")
        await agent.post(self.harness.words(plan), session=session, address=address)
        return await agent.find("s")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every runtime, or the program that `--program` names."""
    if "tried" not in metafunc.fixturenames:
        return
    program = metafunc.config.getoption("program")
    names = (
        [program]
        if program
        else [name for name in RUNTIMES if _ability(metafunc.definition) not in UNSCRIPTED.get(name, ())]
    )
    metafunc.parametrize("tried", names, indirect=True)


def _ability(test: pytest.Item) -> str:
    mark = test.get_closest_marker("ability")
    return str(mark.args[0]) if mark else ""


@pytest.fixture
def tried(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tried]:
    name: str = request.param
    is_codex = name == "codex" or (name in PROGRAMS and PROGRAMS[name].runtime == "codex")
    runs_commands = request.node.get_closest_marker("needs") is not None
    if is_codex and runs_commands and (reason := missing("bubblewrap")):
        pytest.skip(f"Codex has a sandbox of its own, which {reason}")
    # Login shells read the dotfiles in the home folder.
    monkeypatch.setenv("HOME", str(tmp_path))
    with harness_of(name)(tmp_path) as harness:
        ability = _ability(request.node)
        mark = request.node.get_closest_marker("ability")
        if ability in harness.limits and not mark.kwargs.get("checks_lack"):
            is_strict = ability not in harness.unreliable
            request.applymarker(pytest.mark.xfail(reason=harness.limits[ability], strict=is_strict))
        yield Tried(tmp_path, harness)
    end_all(tmp_path)


async def wait_for_entry(agent: Agent, session: Session, kind: type[object]) -> Entry:
    """The first entry of this kind, once it is there."""
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, kind):
            return event
    raise AssertionError("a follower never ends by itself")


async def allow_all(agent: Agent, session: Session) -> tuple[str, str]:
    """Answer every question of the turn with yes; its outcome and its last text, or its error."""
    answered: set[str] = set()
    text = ""
    async for event in agent.follow(session):
        match event.body if isinstance(event, Entry) else None:
            case Asked(ask=ask) as asked if ask not in answered:
                answered.add(ask)
                await agent.answer(session, asked, "once")
            case Answered(ask=ask):
                answered.add(ask)
            case Reply(text=words) if words:
                text = words
            case Ended(outcome=outcome, reason=reason):
                return outcome, reason or text
            case _:
                pass
    raise AssertionError("a follower never ends by itself")


def calls_of(entries: list[Entry]) -> list[Call]:
    return [call for entry in entries if isinstance(entry.body, Reply) for call in entry.body.calls]


async def journal(agent: Agent) -> list[Entry]:
    return list(await agent.journal(await agent.find("s")))


def count(entries: list[Entry], kind: type[object]) -> int:
    return sum(isinstance(entry.body, kind) for entry in entries)


def assert_sound(entries: list[Entry], turns: int, *, cut: int = 0) -> None:
    """Each turn ended once, each call has one result save what a stop cut, and every provider can read all of it."""
    assert (count(entries, Started), count(entries, Ended)) == (turns, turns)
    calls = [call.id for entry in entries if isinstance(entry.body, Reply) for call in entry.body.calls]
    results = [entry.body.call for entry in entries if isinstance(entry.body, Result)]
    assert (len(calls), len(results)) == (len(set(calls)), len(set(results)))
    assert (set(results) - set(calls), len(calls) - len(results)) == (set(), cut)
    for name, check in CHECKS.items():
        for past in ReasoningReplay:
            check(render(name, Prompt("You are Outrider.", transcript(entries), TOOLS, 7), past))


@pytest.mark.ability("text")
async def test_a_turn_ends_with_one_outcome_and_its_text(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        turn = await tried.say(agent, GREET)
        assert (turn.outcome, turn.text, turn.error) == ("done", HELLO, "")
        entries = await journal(agent)
        assert [entry.body.runtime for entry in entries if isinstance(entry.body, Started)] == [
            tried.harness.traits.name
        ]
        assert_sound(entries, 1)
    await until_none_survives(tried.folder)


@pytest.mark.ability("usage")
async def test_the_usage_of_each_turn_is_its_own(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        first, second = [(await tried.say(agent, GREET)).usage for _ in range(2)]
    assert (first.input > 0, first.output > 0) == (True, True)
    assert (second.input < 2 * first.input, second.output == first.output) == (True, True)


@pytest.mark.needs("sandbox")
async def test_an_input_that_comes_twice_is_run_once(tried: Tried) -> None:
    tried.allow_commands()
    async with tried.open_agent() as agent:
        words = tried.harness.words(WORK)
        first = await agent.say(words, session="s", key="monday", address=TERMINAL)
        again = await agent.say(words, session="s", key="monday", address=TERMINAL)
        assert (first, first.text) == (again, DONE)
        entries = await journal(agent)
        assert (count(entries, Input), tried.harness.effects()) == (1, 1)
        assert_sound(entries, 1)


@pytest.mark.needs("sandbox")
@pytest.mark.ability("commands")
async def test_calls_are_in_the_journal_with_their_arguments_and_results(tried: Tried) -> None:
    tried.allow_commands()
    async with tried.open_agent() as agent:
        turn = await tried.say(agent, WORK)
        assert (turn.outcome, turn.text, tried.harness.effects()) == ("done", DONE, 1)
        entries = await journal(agent)
        texts = [entry.body.text for entry in entries if isinstance(entry.body, Reply) and entry.body.text]
        results = [entry.body for entry in entries if isinstance(entry.body, Result)]
        assert (texts, [result.failed for result in results]) == ([BEGIN, DONE], [False])
        [made] = calls_of(entries)
        # Some programs report the command as an argument, others as a title.
        assert (made.tool, COMMAND in " ".join(map(str, made.args.values()))) == ("shell", True), made
        assert_sound(entries, 1)


@pytest.mark.ability("edits")
@pytest.mark.needs("sandbox")
async def test_an_edit_is_in_the_journal_with_what_it_writes(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        assert await allow_all(agent, await tried.begin(agent, WRITE)) == ("done", DONE)
        assert tried.harness.written().strip() == NEW_TEXT
        entries = await journal(agent)
        [made] = calls_of(entries)
        [result] = [entry.body for entry in entries if isinstance(entry.body, Result)]
        # Some programs report the text as an argument, others as a diff.
        known = json.dumps(made.args) + result.text
        assert (NEW_FILE in known, NEW_TEXT in known, result.failed) == (True, True, False)
        assert_sound(entries, 1)


@pytest.mark.ability("mcp")
@pytest.mark.needs("sandbox")
async def test_an_mcp_tool_of_its_own_settings_is_called(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        assert await allow_all(agent, await tried.begin(agent, POKE)) == ("done", DONE)
        entries = await journal(agent)
        results = [entry.body for entry in entries if isinstance(entry.body, Result)]
        assert [result.failed for result in results] == [False]
        assert POKED in results[0].text
        assert_sound(entries, 1)


@pytest.mark.ability("tools")
@pytest.mark.needs("sandbox")
async def test_a_tool_of_outrider_is_called(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        assert await allow_all(agent, await tried.begin(agent, TASKS)) == ("done", DONE)
        entries = await journal(agent)
        results = [entry.body for entry in entries if isinstance(entry.body, Result)]
        assert [result.failed for result in results] == [False]
        assert [call.tool for call in calls_of(entries)] == ["tasks"]
        assert_sound(entries, 1)


@pytest.mark.ability("images")
async def test_an_image_reaches_the_model(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        session = await agent.session("s")
        await agent.post(tried.harness.words(GREET), session=session, images=[IMAGE], address=TERMINAL)
        assert await allow_all(agent, session) == ("done", HELLO)
    assert tried.harness.has_image()


@pytest.mark.ability("modes")
async def test_a_mode_is_set_and_one_that_it_does_not_have_is_refused_with_the_list(tried: Tried) -> None:
    mode = tried.harness.mode
    assert mode
    async with tried.open_agent({**tried.harness.settings(), "acp.mode": "no-such-mode"}) as agent:
        turn = await tried.say(agent, GREET)
        assert (turn.outcome, mode in turn.error) == ("failed", True), turn.error
    async with tried.open_agent({**tried.harness.settings(), "acp.mode": mode}) as agent:
        turn = await tried.say(agent, GREET)
        assert (turn.outcome, turn.text) == ("done", HELLO), turn.error


@pytest.mark.ability("login")
async def test_a_key_that_the_model_refuses_ends_the_turn_as_a_problem_of_the_login(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        turn = await tried.say(agent, LOCKED)
        assert (turn.outcome, tried.harness.login_hint in turn.error) == ("failed", True), turn.error
        assert_sound(await journal(agent), 1)
        assert (await tried.say(agent, GREET)).text == HELLO


@pytest.mark.ability("text")
async def test_text_is_streamed_while_it_is_written(tried: Tried) -> None:
    parts: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Delta) and event.kind == "text":
            parts.append(event.text)

    async with tried.open_agent() as agent:
        await agent.say(tried.harness.words(GREET), session="s", address=TERMINAL, on_event=watch)
    assert "".join(parts) == HELLO


@pytest.mark.ability("stop")
@pytest.mark.needs("sandbox")
async def test_a_stop_ends_the_turn_and_keeps_what_was_done(tried: Tried) -> None:
    tried.allow_commands()
    async with tried.open_agent() as agent:
        session = await tried.begin(agent, HANG)
        await wait_for_entry(agent, session, Result)
        assert await agent.stop(session)
        ended = (await wait_for_entry(agent, session, Ended)).body
        assert isinstance(ended, Ended)
        assert (ended.outcome, tried.harness.effects()) == ("interrupted", 1)
        assert_sound(await journal(agent), 1)
        assert (await tried.say(agent, GREET)).text == HELLO
        assert_sound(await journal(agent), 2)
    await until_none_survives(tried.folder)


@pytest.mark.ability("memory")
@pytest.mark.needs("sandbox")
async def test_the_next_turn_knows_of_the_one_before_also_after_a_restart(tried: Tried) -> None:
    tried.allow_commands()
    async with tried.open_agent() as agent:
        await tried.say(agent, GREET)
        assert (await tried.say(agent, WORK)).text == DONE
        assert tried.harness.knows(GREET) >= 1
    async with tried.open_agent() as agent:
        assert (await tried.say(agent, REMEMBER)).outcome == "done"
        assert tried.harness.knows(GREET) >= 1
        assert_sound(await journal(agent), 3)


@pytest.mark.ability("approvals")
@pytest.mark.needs("sandbox")
@pytest.mark.parametrize(("answer", "runs"), [("once", 1), ("no", 0)])
async def test_a_call_that_needs_an_approval_follows_the_answer(tried: Tried, answer: str, runs: int) -> None:
    async with tried.open_agent() as agent:
        session = await tried.begin(agent, ASK)
        asked = (await wait_for_entry(agent, session, Asked)).body
        assert isinstance(asked, Asked)
        assert (COMMAND in asked.question, tried.harness.effects()) == (True, 0)
        assert await agent.answer(session, asked, answer)
        turn = await agent.wait(await agent.find("s"))
        assert turn
        last = BEGIN if tried.harness.ends_at_denial and not runs else DONE
        assert (turn.outcome, turn.text, tried.harness.effects()) == ("done", last, runs)
        assert_sound(await journal(agent), 1)


@pytest.mark.ability("approvals")
async def test_a_call_whose_question_nobody_can_answer_does_not_run(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        session = await tried.begin(agent, ASK, "pipe:test")
        ended = (await wait_for_entry(agent, session, Ended)).body
        assert isinstance(ended, Ended)
        assert (ended.outcome, tried.harness.effects()) == ("done", 0)
        assert_sound(await journal(agent), 1)


@pytest.mark.ability("question")
@pytest.mark.needs("sandbox")
@pytest.mark.promise("L3")
async def test_a_question_is_still_pending_after_a_kill_and_its_answer_counts(tried: Tried) -> None:
    killed_at("approval_pending", tried.folder, tried.harness.settings(), tried.harness.words(ASK))
    tried.harness.age()
    async with tried.open_agent() as agent:
        session = await agent.find("s")
        [pending] = [entry.body for entry in await journal(agent) if isinstance(entry.body, Asked)]
        assert (COMMAND in pending.question, tried.harness.effects()) == (True, 0)
        assert await agent.answer(session, pending, "once")
        outcome, text = await allow_all(agent, session)
        assert (outcome, text) == ("done", DONE)
        entries = await journal(agent)
        assert (count(entries, Asked), tried.harness.effects()) == (1, 1)
        assert_sound(entries, 1)


@pytest.mark.ability("steer")
@pytest.mark.needs("sandbox")
async def test_a_message_during_a_turn_reaches_that_turn(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        session = await tried.begin(agent, ASK)
        asked = (await wait_for_entry(agent, session, Asked)).body
        assert isinstance(asked, Asked)
        await agent.post(tried.harness.words(MEANWHILE), session=session, address=TERMINAL)
        assert await agent.answer(session, asked, "once")
        while (now := await agent.find("s")).has_work:
            await agent.wait(now)
    assert tried.harness.is_steered(MEANWHILE)


@pytest.mark.needs("sandbox")
async def test_a_message_during_a_turn_is_answered(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        session = await tried.begin(agent, ASK)
        asked = (await wait_for_entry(agent, session, Asked)).body
        assert isinstance(asked, Asked)
        await agent.post(tried.harness.words(MEANWHILE), session=session, address=TERMINAL)
        assert await agent.answer(session, asked, "once")
        await wait_for_entry(agent, session, Ended)
        while (now := await agent.find("s")).has_work:
            await agent.wait(now)
        assert (tried.harness.effects(), tried.harness.knows(MEANWHILE)) == (1, 1)
        entries = await journal(agent)
        assert_sound(entries, count(entries, Ended))


@pytest.mark.ability("resume", checks_lack=True)
@pytest.mark.needs("sandbox")
@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
async def test_an_interrupted_turn_resumes_or_fails_with_a_reason_as_its_limits_say(tried: Tried) -> None:
    tried.allow_commands()
    killed_at("result_not_recorded", tried.folder, tried.harness.settings(), tried.harness.words(WORK))
    tried.harness.age()
    async with tried.open_agent() as agent:
        await agent.resume_all()
        turn = await agent.wait(await agent.find("s"))
        assert turn
        # A prompt that repeats the request says that it was cut off; an agent that ignores this runs the command again.
        assert 1 <= tried.harness.effects() <= 1 + tried.harness.knows("was cut off")
        assert (
            turn.error or turn.text if "resume" in tried.harness.limits else (turn.outcome, turn.error) == ("done", "")
        )
        assert_sound(await journal(agent), 1)
        assert (await tried.say(agent, GREET)).text == HELLO
        assert_sound(await journal(agent), 2)
    await until_none_survives(tried.folder)


async def test_a_runtime_that_is_not_installed_fails_with_what_to_do(tried: Tried) -> None:
    async with tried.open_agent(tried.harness.broken()) as agent:
        turn = await tried.say(agent, GREET)
        assert (turn.outcome, tried.harness.hint in turn.error) == ("failed", True), turn.error
        assert_sound(await journal(agent), 1)


@pytest.mark.ability("switch")
async def test_a_session_that_switches_the_runtime_and_back_keeps_its_history(tried: Tried) -> None:
    async with tried.open_agent() as agent:
        await tried.say(agent, GREET)
        session = await agent.find("s")
        await agent.change(session, {"runtime": "native"})
        assert (await agent.say("an aside", session="s", address=TERMINAL)).outcome == "done"
        await agent.change(session, {"runtime": tried.harness.traits.name})
        assert (await tried.say(agent, REMEMBER)).outcome == "done"
        assert (tried.harness.knows(GREET) >= 1, tried.harness.knows("an aside")) == (True, 1)
        assert_sound(await journal(agent), 3)


async def test_a_session_of_the_remote_runtime_cannot_leave_it(tmp_path: Path) -> None:
    with RUNTIMES[REMOTE](tmp_path) as harness:
        tried = Tried(tmp_path, harness)
        async with tried.open_agent() as agent:
            await tried.say(agent, GREET)
            with pytest.raises(Refused, match=r"remote\.url"):
                await agent.change(await agent.find("s"), {"runtime": "native"})
            assert (await tried.say(agent, REMEMBER)).outcome == "done"
            assert_sound(await journal(agent), 2)


def test_the_table_above_shows_the_traits_of_the_runtimes(tmp_path: Path) -> None:
    rows: list[list[str]] = []
    for name, opens in RUNTIMES.items():
        with opens(tmp_path) as harness:
            traits = harness.traits
        can = (traits.steers, traits.resumes, traits.bounded, traits.takes_client_tools)
        rows.append([name, *("yes" if each else "no" for each in can)])
    lines = [line for line in (__doc__ or "").splitlines() if line.startswith("|")][2:]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == rows
