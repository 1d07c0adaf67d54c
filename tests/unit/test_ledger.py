"""How what another program does is written down: once, in an order that every prompt can show."""

import pytest

from outrider.core.events import Begun, Body, Delta, Entry, Input, Reply, Result, Started
from outrider.core.plan import State, fold
from outrider.core.prompt import Transcript
from outrider.core.store_port import Session
from outrider.runtimes.external.recorder import CONTINUES_IN_BACKGROUND, CallOutcome, ExternalCall, TurnRecorder

pytestmark = pytest.mark.anyio


class Journal:
    """A turn that remembers what was recorded, each key once."""

    session = Session("s", "p", "s", "/w", "", 0, 0, 0, True, True)

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._keys: set[str] = set()
        self._add(Input("go"))
        self._add(Started("x"))

    def _add(self, body: Body) -> Entry:
        self.entries.append(Entry(len(self.entries) + 1, 0, body))
        return self.entries[-1]

    def state(self) -> State:
        return fold(self.entries)

    def transcript(self) -> Transcript:
        transcript = Transcript()
        transcript.add(self.entries)
        return transcript

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        if key in self._keys:
            return None
        self._keys |= {key} if key else set()
        return self._add(body)

    def emit(self, delta: Delta) -> None: ...
    async def refresh(self) -> None: ...
    async def wait_for_entries(self) -> None: ...

    def shown(self) -> list[str]:
        return [_shown(entry.body) for entry in self.entries[2:]]


def _shown(body: Body) -> str:
    match body:
        case Reply(text=text, calls=calls):
            return " ".join(["reply", *([text] if text else []), *(str(call.args["n"]) for call in calls)])
        case Result(text=text):
            return f"result {text.splitlines()[-1]}"
        case Begun():
            return "begun"
        case _:
            return type(body).__name__


def opened() -> tuple[Journal, TurnRecorder]:
    journal = Journal()
    ledger = TurnRecorder(journal, "x", lambda text: text)
    ledger.saw = 1
    return journal, ledger


def deed(name: str) -> ExternalCall:
    return ExternalCall(name, "shell", {"n": name})


async def test_each_call_stands_before_its_result_also_when_they_run_at_once() -> None:
    journal, ledger = opened()
    await ledger.call_announced(deed("a"))
    await ledger.call_announced(deed("b"))
    await ledger.call_finished(deed("b"), CallOutcome("B"))
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    await ledger.message_finished("m", "done")
    await ledger.close()
    assert journal.shown() == [
        "reply a",
        "begun",
        "result A",
        "reply b",
        "begun",
        "result B",
        "reply done",
    ]


async def test_what_still_runs_when_there_is_room_is_written_down_as_begun() -> None:
    journal, ledger = opened()
    await ledger.call_announced(deed("a"))
    await ledger.call_announced(deed("b"))
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    assert journal.shown() == ["reply a", "begun", "result A", "reply b", "begun"]


async def test_a_held_call_begins_only_when_it_is_allowed_and_keeps_the_others_waiting() -> None:
    journal, ledger = opened()
    await ledger.call_announced(deed("a"), is_held=True)
    await ledger.call_finished(deed("b"), CallOutcome("B"))
    assert journal.shown() == ["reply a"]
    await ledger.call_started("a")
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    assert journal.shown() == ["reply a", "begun", "result A", "reply b", "begun", "result B"]


async def test_what_had_to_make_room_is_told_again_when_it_ends() -> None:
    journal, ledger = opened()
    await ledger.call_announced(deed("a"))
    await ledger.call_announced(deed("b"), is_held=True)
    await ledger.call_started("b")
    await ledger.call_finished(deed("b"), CallOutcome("B"))
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    assert journal.shown() == [
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


async def test_what_is_told_again_is_written_down_once() -> None:
    journal, ledger = opened()
    await ledger.call_finished(deed("a"), CallOutcome("A"))
    await ledger.message_finished("m", "done")
    await ledger.close()
    again = TurnRecorder(journal, "x", lambda text: text)
    await again.call_finished(deed("a"), CallOutcome("A"))
    await again.message_finished("m", "done")
    await again.close()
    assert journal.shown() == ["reply a", "begun", "result A", "reply done"]


async def test_a_turn_that_said_nothing_still_has_seen_its_input() -> None:
    journal, ledger = opened()
    await ledger.close()
    assert (journal.shown(), journal.state().has_unseen) == (["reply"], False)
