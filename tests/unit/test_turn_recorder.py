"""The recorder of external turns: each item once, in an order that every prompt can show."""

import pytest

from outrider.core.events import Begun, Body, Reply, Result
from outrider.core.prompt import AssistantMessage, transcript
from outrider.core.types import Usage
from outrider.runtimes.external.recorder import CONTINUES_IN_BACKGROUND, CallOutcome, ExternalCall, TurnRecorder
from tests.support.turns import MemoryTurn

pytestmark = pytest.mark.anyio


def _summary(body: Body) -> str:
    match body:
        case Reply(text=text, calls=calls):
            return " ".join(["reply", *([text] if text else []), *(str(each.args["n"]) for each in calls)])
        case Result(text=text):
            return f"result {text.splitlines()[-1]}"
        case Begun():
            return "begun"
        case _:
            return type(body).__name__


def summary(turn: MemoryTurn) -> list[str]:
    """What was recorded, in a few words for each entry."""
    return [_summary(entry.body) for entry in turn.entries[2:]]


def new_recorder() -> tuple[MemoryTurn, TurnRecorder]:
    turn = MemoryTurn("x")
    recorder = TurnRecorder(turn, "x", lambda text: text)
    recorder.input_seen(1)
    return turn, recorder


def call(name: str) -> ExternalCall:
    return ExternalCall(name, "shell", {"n": name})


async def test_each_call_is_followed_by_its_result_when_calls_overlap() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(call("a"))
    await recorder.call_announced(call("b"))
    await recorder.call_finished(call("b"), CallOutcome("B"))
    await recorder.call_finished(call("a"), CallOutcome("A"))
    await recorder.message_finished("m", "done")
    await recorder.close()
    assert summary(turn) == [
        "reply a",
        "begun",
        "result A",
        "reply b",
        "begun",
        "result B",
        "reply done",
    ]


async def test_a_call_that_is_still_running_when_the_open_one_ends_is_recorded_as_begun() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(call("a"))
    await recorder.call_announced(call("b"))
    await recorder.call_finished(call("a"), CallOutcome("A"))
    assert summary(turn) == ["reply a", "begun", "result A", "reply b", "begun"]


async def test_a_held_call_begins_when_it_is_allowed_and_others_are_recorded_after_it() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(call("a"), is_held=True)
    await recorder.call_finished(call("b"), CallOutcome("B"))
    assert summary(turn) == ["reply a"]
    await recorder.call_started("a")
    await recorder.call_finished(call("a"), CallOutcome("A"))
    assert summary(turn) == ["reply a", "begun", "result A", "reply b", "begun", "result B"]


async def test_a_call_that_was_moved_to_the_background_is_recorded_again_when_it_ends() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(call("a"))
    await recorder.call_announced(call("b"), is_held=True)
    await recorder.call_started("b")
    await recorder.call_finished(call("b"), CallOutcome("B"))
    await recorder.call_finished(call("a"), CallOutcome("A"))
    await recorder.call_finished(call("a"), CallOutcome("A"))
    assert summary(turn) == [
        "reply a",
        "begun",
        f"result {CONTINUES_IN_BACKGROUND}",
        "reply b",
        "begun",
        "result B",
        "reply a",
        "begun",
        "result A",
    ]


async def test_an_item_that_is_reported_twice_is_recorded_once() -> None:
    turn, recorder = new_recorder()
    await recorder.call_finished(call("a"), CallOutcome("A"))
    await recorder.message_finished("m", "done")
    await recorder.close()
    again = TurnRecorder(turn, "x", lambda text: text)
    await again.call_finished(call("a"), CallOutcome("A"))
    await again.message_finished("m", "done")
    await again.close()
    assert summary(turn) == ["reply a", "begun", "result A", "reply done"]


async def test_a_turn_without_a_message_has_still_seen_its_input() -> None:
    turn, recorder = new_recorder()
    await recorder.close()
    assert (summary(turn), turn.state().has_unseen) == (["reply"], False)


async def test_a_call_is_assumed_to_run_unless_it_is_held_by_then() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(call("a"), has_begun=False)
    await recorder.call_announced(call("a"), is_held=True)
    await recorder.call_assumed_started("a")
    assert summary(turn) == ["reply a"]
    await recorder.call_finished(call("a"), CallOutcome("A"), starts_now=True)
    assert summary(turn) == ["reply a", "begun", "result A"]


async def test_arguments_that_come_with_the_end_of_a_call_are_recorded_with_its_result() -> None:
    turn, recorder = new_recorder()
    await recorder.call_announced(ExternalCall("a", "shell", {"cwd": "/w"}))
    await recorder.call_finished(ExternalCall("a", "shell", {"cwd": "/w", "command": "ls"}), CallOutcome("A"))
    await recorder.call_announced(ExternalCall("b", "shell", {"command": "pwd"}))
    await recorder.call_finished(ExternalCall("b", "shell", {"command": "pwd"}), CallOutcome("B"))
    await recorder.call_announced(ExternalCall("c", "shell", {"command": "id"}))
    await recorder.call_finished(ExternalCall("c", "shell", {"command": ""}), CallOutcome("C"))
    results = [entry.body for entry in turn.entries if isinstance(entry.body, Result)]
    assert [result.args for result in results] == [{"cwd": "/w", "command": "ls"}, None, None]
    calls = [call for m in transcript(turn.entries) if isinstance(m, AssistantMessage) for call in m.calls]
    assert [call.args.get("command") for call in calls] == ["ls", "pwd", "id"]


async def test_so_are_those_of_a_call_that_was_left_open() -> None:
    turn, recorder = new_recorder()
    opened = await recorder.call_announced(ExternalCall("a", "shell", {"cwd": "/w"}))
    again = TurnRecorder(turn, "x", lambda text: text)
    await again.finish_inherited_call(opened, CallOutcome("A"), ExternalCall("a", "shell", {"command": "ls"}))
    (result,) = [entry.body for entry in turn.entries if isinstance(entry.body, Result)]
    assert result == Result(opened.id, "A", args={"command": "ls"})


async def test_tokens_that_no_reply_carries_are_recorded_at_the_end() -> None:
    turn, recorder = new_recorder()
    await recorder.message_finished("m", "done")
    await recorder.flush()
    recorder.add_usage(Usage(10, 5))
    await recorder.close()
    assert turn.state().usage == Usage(10, 5)
