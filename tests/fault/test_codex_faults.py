"""Faults of Codex in the middle of turns: each turn ends once, in time and with a reason, and the next turn works.

The app-server is scripted and a process of its own; a file counts what its commands did.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Begun, Ended, Entry, Reply, Result
from outrider.core.turn_result import TurnResult
from tests.support.scripted_codex import ScriptedCodex, Step, at
from tests.support.survivors import end_all, living
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L3"), pytest.mark.promise("L12")]
RUN: Step = {"run": "echo x >> did"}
TURN: Sequence[Step] = (
    {"think": "hm"},
    {"say": "I look"},
    RUN,
    {"patch": {"made.txt": "made\n"}},
    {"tool": "tasks", "args": {"do": "list"}},
    {"say": "all done"},
)
TYPES = ("userMessage", "reasoning", "agentMessage", "commandExecution", "fileChange", "dynamicToolCall")
LOSABLE = (
    "thread/started",
    "thread/status/changed",
    "turn/started",
    "thread/tokenUsage/updated",
    "error",
    "item/started",
)
STEPS = (
    "got initialize",
    "answered initialize",
    "got account/read",
    "got thread/start",
    "answered thread/start",
    "got turn/start",
    "answered turn/start",
    "turn/started",
    "item/started userMessage",
    "item/completed userMessage",
    "item/completed reasoning",
    "item/agentMessage/delta",
    "item/completed agentMessage",
    "item/started commandExecution",
    "before item/completed commandExecution",
    "item/completed commandExecution",
    "item/completed fileChange",
    "item/tool/call",
    "answered item/tool/call",
    "item/completed dynamicToolCall",
    "before turn/completed",
)
LIMITS = {"codex_seconds": "60", "codex_quiet": "1"}
"""A deadline that no turn of these tests reaches, also on a busy machine."""
_PATIENCE = 60.0


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[ScriptedCodex]:
    codex = ScriptedCodex(tmp_path)
    codex.will(TURN)
    yield codex
    end_all(tmp_path)


async def say(agent: Agent, text: str = "go") -> TurnResult:
    with anyio.fail_after(_PATIENCE):
        return await agent.say(text, session="s")


def did(codex: ScriptedCodex) -> int:
    book = codex.work / "did"
    return len(book.read_text().splitlines()) if book.exists() else 0


async def assert_in_order(agent: Agent, turns: int, *, cut: int = 0) -> None:
    """Each turn ended once, nothing was recorded twice, and no call but those a stop cut is left without a result."""
    journal = await agent.journal(await agent.find("s"))
    assert sum(isinstance(entry.body, Ended) for entry in journal) == turns
    calls = [call.id for entry in journal if isinstance(entry.body, Reply) for call in entry.body.calls]
    results = [entry.body.call for entry in journal if isinstance(entry.body, Result)]
    assert (len(calls), len(results)) == (len(set(calls)), len(set(results)))
    assert (set(results) - set(calls), len(calls) - len(results)) == (set(), cut)
    texts = [entry.body.text for entry in journal if isinstance(entry.body, Reply) and entry.body.text]
    assert all(before != after for before, after in pairwise(texts))


async def assert_continues(agent: Agent, codex: ScriptedCodex, *, lives: int | None = None, cut: int = 0) -> None:
    """The next turn works, in the same thread, and no other process is left than the one that ran it."""
    again = await say(agent, "go on")
    assert (again.outcome, again.error) == ("done", "")
    threads = {params["threadId"] for params in codex.requests("turn/start")}
    assert threads == {again.thread}
    await assert_in_order(agent, 2, cut=cut)
    assert len(codex.alive()) == 1
    if lives is not None:
        assert len(codex.lives) == lives


async def test_a_turn_without_faults_needs_one_process(codex: ScriptedCodex) -> None:
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert (turn.outcome, turn.text, turn.error) == ("done", "all done", "")
        await assert_continues(agent, codex, lives=1)
    assert (did(codex), (codex.work / "made.txt").read_text()) == (1, "made\n")
    assert living(codex.folder) == {}


@pytest.mark.parametrize("lost", [*LOSABLE, "item/agentMessage/delta", *(f"item/started {kind}" for kind in TYPES)])
async def test_a_lost_notification_other_than_the_last_changes_nothing(codex: ScriptedCodex, lost: str) -> None:
    codex.will(TURN, faults={"drops": [lost]})
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert (turn.outcome, turn.text) == ("done", "all done")
        await assert_continues(agent, codex, lives=1)
    assert did(codex) == 1


@pytest.mark.parametrize("lost", [f"item/completed {kind}" for kind in TYPES])
async def test_an_item_whose_end_is_lost_is_closed_with_the_turn(codex: ScriptedCodex, lost: str) -> None:
    codex.will(TURN, faults={"drops": [lost]})
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert turn.outcome == "done"
        await assert_continues(agent, codex)
    assert did(codex) == 1


@pytest.mark.promise("L7")
@pytest.mark.behaviour("A10")
async def test_a_turn_whose_end_is_lost_still_ends(codex: ScriptedCodex) -> None:
    codex.will(TURN, faults={"drops": ["turn/completed"]})
    async with codex.open_agent(codex_seconds="6", codex_quiet="1") as agent:
        turn = await say(agent)
        assert (turn.text, turn.outcome in ("done", "failed")) == ("all done", True)
        await assert_continues(agent, codex)
    assert did(codex) == 1


@pytest.mark.promise("L7")
@pytest.mark.behaviour("A10")
@pytest.mark.parametrize("kind", TYPES)
async def test_silence_after_any_item_ends_at_the_deadline_and_keeps_what_was_done(
    codex: ScriptedCodex, kind: str
) -> None:
    codex.will(TURN, faults=at(f"item/completed {kind}", "silent"))
    async with codex.open_agent(codex_seconds="3", codex_quiet="1") as agent:
        turn = await say(agent)
        assert (turn.outcome, "/runtime native" in turn.error) == ("failed", True)
        await assert_continues(agent, codex, lives=2)


@pytest.mark.promise("L7")
@pytest.mark.behaviour("A11")
@pytest.mark.parametrize("kind", ["commandExecution", "fileChange", "dynamicToolCall"])
async def test_a_process_that_answers_nothing_after_a_tool_is_noticed_long_before_the_deadline(
    codex: ScriptedCodex, kind: str
) -> None:
    codex.will(TURN, faults=at(f"item/completed {kind}", "deaf"))
    async with codex.open_agent(codex_seconds="86400", codex_quiet="1") as agent:
        turn = await say(agent)
        assert (turn.outcome, "/runtime native" in turn.error) == ("failed", True)
        await assert_continues(agent, codex, lives=2)


@pytest.mark.behaviour("A11")
async def test_a_slow_turn_without_a_fault_continues(codex: ScriptedCodex) -> None:
    codex.will(TURN, faults=at("item/completed commandExecution", "late 3.5"))
    async with codex.open_agent(codex_seconds="86400", codex_quiet="1") as agent:
        turn = await say(agent)
        assert (turn.outcome, turn.text) == ("done", "all done")
        await assert_continues(agent, codex, lives=1)


@pytest.mark.behaviour("A11")
async def test_a_long_command_does_not_count_as_silence(codex: ScriptedCodex) -> None:
    codex.will([RUN, {"run": "sleep 3; echo x >> did"}, {"say": "slept"}])
    async with codex.open_agent(codex_seconds="86400", codex_quiet="1") as agent:
        turn = await say(agent)
        assert (turn.outcome, turn.text, did(codex)) == ("done", "slept", 2)
        await assert_continues(agent, codex, lives=1)


@pytest.mark.parametrize("moment", ["got initialize", "got thread/start", "got turn/start", "turn/started"])
async def test_late_responses_are_awaited(codex: ScriptedCodex, moment: str) -> None:
    codex.will(TURN, faults=at(moment, "late 1.5"))
    async with codex.open_agent(codex_seconds="60", codex_quiet="1") as agent:
        assert (await say(agent)).text == "all done"
        await assert_continues(agent, codex, lives=1)


@pytest.mark.promise("L7")
async def test_lines_of_five_megabytes_are_read(codex: ScriptedCodex) -> None:
    long = "x" * 5_000_000
    codex.will([{"say": long, "chunk": 5_000_000}, RUN, {"say": "that was long"}])
    async with codex.open_agent(**LIMITS) as agent:
        assert (await say(agent)).text == "that was long"
        await assert_continues(agent, codex, lives=1)


@pytest.mark.promise("L4")
@pytest.mark.behaviour("A8")
@pytest.mark.parametrize("how", ["exit 3", "kill"])
@pytest.mark.parametrize("moment", STEPS)
async def test_when_codex_dies_the_turn_fails_with_a_reason_and_the_next_one_resumes_the_thread(
    codex: ScriptedCodex, moment: str, how: str
) -> None:
    codex.will(TURN, faults=at(moment, how))
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert (turn.outcome, "/runtime native" in turn.error) == ("failed", True), turn
        again = await say(agent, "go on")
        assert (again.outcome, again.error) == ("done", "")
        await assert_in_order(agent, 2)
        assert (len(codex.lives), len(codex.alive())) == (2, 1)
        if turn.thread and again.thread != turn.thread:
            # It had no message yet, so Codex did not store it.
            assert [params["threadId"] for params in codex.requests("turn/start")][-1] == again.thread
            assert moment in ("answered thread/start", "got turn/start", "got account/read")
    assert did(codex) <= 1 + (moment in STEPS[:8])


@pytest.mark.behaviour("A10")
async def test_a_codex_that_died_between_turns_is_restarted_without_an_error(codex: ScriptedCodex) -> None:
    async with codex.open_agent(**LIMITS) as agent:
        await say(agent)
        os.kill(codex.lives[0], signal.SIGKILL)
        await assert_continues(agent, codex, lives=2)
    assert did(codex) == 1


def messages_and_results(journal: Sequence[Entry]) -> list[str]:
    return [entry.body.text for entry in journal if isinstance(entry.body, Reply | Result) and entry.body.text]


@pytest.mark.promise("L4")
@pytest.mark.behaviour("A8")
async def test_work_before_the_death_of_codex_is_kept(codex: ScriptedCodex) -> None:
    codex.will(TURN, faults=at("item/completed fileChange", "kill"))
    async with codex.open_agent(**LIMITS) as agent:
        await say(agent)
        journal = await agent.journal(await agent.find("s"))
    assert messages_and_results(journal)[0] == "I look"
    results = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert [result.failed for result in results][:2] == [False, False]


@pytest.mark.behaviour("A9")
async def test_a_stop_that_codex_obeys_keeps_the_process(
    codex: ScriptedCodex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_codex(monkeypatch, tmp_path, interrupt_timeout=_PATIENCE)
    codex.will([RUN, {"run": "echo $$ > pid; exec sleep 1000"}, {"say": "never"}])
    async with codex.open_agent() as agent:
        await stop_in_a_command(agent, codex)
        await assert_continues(agent, codex, lives=1, cut=1)
    assert did(codex) == 1


@pytest.mark.promise("L7")
@pytest.mark.behaviour("A9")
@pytest.mark.parametrize("deaf", [{"ignores": ["turn/interrupt"]}, at("got turn/interrupt", "deaf")])
async def test_a_process_that_does_not_obey_a_stop_is_ended(codex: ScriptedCodex, deaf: dict[str, object]) -> None:
    codex.will([RUN, {"run": "echo $$ > pid; exec sleep 1000"}, {"say": "never"}], faults=deaf)
    async with codex.open_agent() as agent:
        await stop_in_a_command(agent, codex)
        await assert_continues(agent, codex, lives=2, cut=1)
    assert did(codex) == 1


async def wait_for_calls(agent: Agent, count: int) -> None:
    """Until so many calls have begun, as the journal says."""
    async with aclosing(agent.follow(await agent.session("s"))) as events:
        async for event in events:
            count -= isinstance(event, Entry) and isinstance(event.body, Begun)
            if not count:
                return


async def stop_in_a_command(agent: Agent, codex: ScriptedCodex) -> None:
    """Send a message, stop the turn while its command runs, and check that the command has ended."""
    outcomes: list[TurnResult] = []

    async def send() -> None:
        outcomes.append(await say(agent))

    pid_file = codex.work / "pid"
    with anyio.fail_after(_PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await wait_for_calls(agent, 2)
            while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
                await anyio.sleep(0.02)
            await agent.stop(await agent.find("s"))
        pid = int(pid_file.read_text())
        while pid in living(codex.work):
            await anyio.sleep(0.02)
    assert [turn.outcome for turn in outcomes] == ["interrupted"]


@pytest.mark.behaviour("A12")
@pytest.mark.parametrize("mark", ["<turn_aborted>", "<turn_aborted/>", "<turn_aborted>\nby the user\n</turn_aborted>"])
async def test_an_aborted_turn_ends_without_another_message(
    codex: ScriptedCodex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    tune_codex(monkeypatch, tmp_path, abort_grace=0.2)
    codex.will([RUN, {"say": mark}])
    async with codex.open_agent(codex_seconds="86400", codex_quiet="86400") as agent:
        turn = await say(agent)
        assert turn.outcome in ("failed", "interrupted")
        await assert_continues(agent, codex)
    assert did(codex) == 1


@pytest.mark.behaviour("A14")
@pytest.mark.parametrize("spelling", ["thread.id", "thread.sessionId", "sessionId", "threadId"])
async def test_the_thread_id_is_found_in_every_spelling(codex: ScriptedCodex, spelling: str) -> None:
    codex.will(TURN, spelling=spelling)
    async with codex.open_agent(**LIMITS) as agent:
        assert (await say(agent)).text == "all done"
        await assert_continues(agent, codex, lives=1)


async def test_unknown_messages_items_and_requests_do_no_harm(codex: ScriptedCodex) -> None:
    hologram = {"type": "hologram", "id": "h-1", "status": {"new": "shape"}, "command": 7}
    codex.will(
        [
            {"send": {"method": "brand/new", "params": {"anything": [1, 2]}}},
            {"send": {"method": "item/started", "params": {"item": hologram}}},
            {"send": {"method": "item/completed", "params": {"item": hologram}}},
            {"send": {"method": "turn/started", "params": {"turn": "not an object"}}},
            {"send": {"method": "item/agentMessage/delta", "params": {"delta": {"not": "text"}}}},
            {"send": {"method": "brand/question", "id": 99}},
            *TURN,
        ]
    )
    async with codex.open_agent(**LIMITS) as agent:
        assert (await say(agent)).text == "all done"
        await assert_continues(agent, codex, lives=1)
    assert '"id":99,"error"' in (codex.folder / "received").read_text().replace(" ", "")


LOGINS = [
    "Your access token could not be refreshed because your refresh token was already used. Please log out and sign in.",
    "unexpected status 401 Unauthorized: bad key, url: http://localhost/v1/responses",
    "invalid_grant",
]


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("text", LOGINS)
@pytest.mark.parametrize("by", ["an answer", "a failed turn", "a dead process"])
async def test_rejected_credentials_are_reported_as_a_login_in_every_wording(
    codex: ScriptedCodex, text: str, by: str
) -> None:
    match by:
        case "an answer":
            codex.will(TURN, faults={"refuses": {"turn/start": text}})
        case "a failed turn":
            codex.will([RUN, {"fail": {"message": text}}])
        case _:
            codex.will(TURN, faults=at("turn/started", f"scold ERROR {text}", "exit 1"))
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert (turn.outcome, "run `codex login`" in turn.error, "/runtime native" in turn.error) == (
            "failed",
            True,
            True,
        )
        await assert_in_order(agent, 1)


@pytest.mark.behaviour("A13")
async def test_any_other_error_is_shown_unchanged_and_the_process_is_kept(codex: ScriptedCodex) -> None:
    codex.will([RUN, {"retry": "no route"}, {"fail": {"message": "the moon is in the wrong place"}}])
    async with codex.open_agent(**LIMITS) as agent:
        turn = await say(agent)
        assert (turn.outcome, "the moon is in the wrong place" in turn.error) == ("failed", True)
        assert "codex login" not in turn.error
        await assert_continues(agent, codex, lives=1)


@pytest.mark.promise("L7")
@pytest.mark.behaviour("A10")
@pytest.mark.parametrize("how", ["kill", "exit 0", "deaf"])
async def test_processes_that_a_dead_codex_left_are_ended(codex: ScriptedCodex, how: str) -> None:
    command = "setsid sleep 1000 > /dev/null 2>&1 & echo x >> did"
    codex.will([{"run": command}, {"say": "never"}], faults=at("item/completed commandExecution", "leave", how))
    async with codex.open_agent(**LIMITS) as agent:
        assert (await say(agent)).outcome == "failed"
        with anyio.fail_after(_PATIENCE):
            while any(b"sleep" in words for words in living(codex.work.parent).values()):
                await anyio.sleep(0.05)
        await assert_continues(agent, codex, lives=2)
    assert did(codex) == 1
