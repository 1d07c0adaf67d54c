"""kill -9 of the real program at every fail point of a terminal turn: the next start finishes what was begun.

What happened is counted outside: by the tool's own ledger, by the model server's list of requests, by stdout.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.prompt import UNKNOWN
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran
from tests.support.in_process import InProcessPerson
from tests.support.pay import bills_paid, install_pay

ASKED = "pay the bills"
SCRIPT = script(
    says("I look first, then pay", call("list"), call("pay", bill="rent")),
    says("one more", call("pay", bill="power")),
    says("All bills are paid."),
)
POINTS = [
    "input_received",
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
    "reply_recorded",
]
pytestmark = [pytest.mark.promise("L1"), pytest.mark.promise("L3"), pytest.mark.promise("L4")]


class Payer(InProcessPerson):
    """Someone at a terminal with a model server and a tool that pays."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        super().__init__(folder)
        self.uses(server.url)
        self._plugins = install_pay(folder / "plugins")

    def runs(self, *words: str, fail: str = "") -> Ran:
        """Run a command with the tool, in a process that is killed at this point."""
        return self.types(*words, environ={"PYTHONPATH": self._plugins, "OUTRIDER_FAIL": fail})

    def asks(self, fail: str = "") -> Ran:
        return self.runs("run", "--session", "bills", "--key", "monday", ASKED, fail=fail)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT) as server:
        yield server


@pytest.fixture
def person(tmp_path: Path, server: ScriptedServer) -> Payer:
    return Payer(tmp_path, server)


def assert_all_is_well(person: Payer, server: ScriptedServer) -> None:
    """No bill was paid twice, and one that may not have been paid was told to the model as such."""
    paid = bills_paid(person.project)
    assert len(paid) == len(set(paid))
    told = str([request.body for request in server.requests])
    assert sorted(paid) == ["power", "rent"] or UNKNOWN in told


def test_an_undisturbed_turn_pays_each_bill_once(person: Payer, server: ScriptedServer) -> None:
    done = person.asks()
    assert (done.code, done.out) == (0, "All bills are paid.\n"), done.err
    assert bills_paid(person.project) == ["rent", "power"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_turn_is_finished_when_the_person_asks_again(
    person: Payer, server: ScriptedServer, point: str
) -> None:
    killed = person.asks(fail=point)
    assert killed.code == -9, killed.err
    again = person.asks()
    assert (again.code, again.out) == (0, "All bills are paid.\n"), again.err
    assert_all_is_well(person, server)
    inputs = [m for m in server.requests[-1].body["messages"] if m["role"] == "user"]
    assert [m["content"] for m in inputs] == [ASKED]


# `run` and `resume` recover the same journal in the same way, and `run` is killed at every point above. Here each point
# once: the second time in a turn adds nothing. Without an input, which is not there before it is committed, see below.
@pytest.mark.promise("L12")
@pytest.mark.parametrize("point", [point for point in POINTS if ":" not in point and point != "input_received"])
def test_a_killed_turn_is_finished_by_resume_and_reported(person: Payer, server: ScriptedServer, point: str) -> None:
    assert person.asks(fail=point).code == -9
    resumed = person.runs("resume")
    assert resumed.code == 0, resumed.err
    assert "All bills are paid." in resumed.out
    assert_all_is_well(person, server)
    assert "All bills are paid." not in person.types("resume").out


def test_an_input_that_was_not_acknowledged_leaves_no_trace(person: Payer, server: ScriptedServer) -> None:
    assert person.asks(fail="input_received").code == -9
    assert "no unfinished turns" in person.types("resume").out.lower()
    assert (server.requests, bills_paid(person.project)) == ([], [])


TWICE = list(
    itertools.pairwise(
        [
            "turn_started",
            "result_not_recorded",
            "mid_reply",
            "call_intent_recorded",
            "calls_not_recorded:2",
            "result_not_recorded:2",
            "result_recorded",
            "reply_not_recorded",
            "input_committed",
            "reply_recorded",
        ]
    )
)


@pytest.mark.parametrize(("first", "second"), TWICE)
def test_a_turn_killed_twice_is_still_finished_once(
    person: Payer, server: ScriptedServer, first: str, second: str
) -> None:
    assert person.asks(fail=first).code == -9
    person.asks(fail=second)
    again = person.asks()
    assert (again.code, again.out) == (0, "All bills are paid.\n"), again.err
    assert_all_is_well(person, server)


def test_a_turn_that_kills_the_process_every_time_is_given_up_and_says_so(
    person: Payer, server: ScriptedServer
) -> None:
    for _ in range(4):
        assert person.asks(fail="mid_reply").code == -9
    given_up = person.asks()
    assert given_up.code == 1
    assert "stopped: Outrider crashed" in given_up.err
