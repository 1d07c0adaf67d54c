"""kill -9 of the real program at every fail point of a terminal turn: the next start finishes what was begun.

What happened is counted outside: by the tool's own ledger, by the model server's list of requests, by stdout.
"""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.prompt import UNKNOWN
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.pay import bills_paid, install_pay

OUTRIDER = Path(sys.executable).with_name("outrider")
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


class Person:
    """Someone at a terminal, with a home, a folder to work in and a model server."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self._plugins = install_pay(folder / "plugins")
        self._home = folder / "home"
        self._server = server

    def types(self, *arguments: str, fail: str = "") -> "subprocess.CompletedProcess[str]":
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.work.parent),
            "OUTRIDER_HOME": str(self._home),
            "OUTRIDER_MODEL": "openai-chat:scripted",
            "OUTRIDER_MODEL_URL": self._server.url,
            "OUTRIDER_MODEL_KEY": "none",
            "OUTRIDER_FAIL": fail,
            "PYTHONPATH": self._plugins,
        }
        return subprocess.run(
            [OUTRIDER, *arguments], cwd=self.work, env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def asks(self, fail: str = "") -> "subprocess.CompletedProcess[str]":
        return self.types("run", "--session", "bills", "--key", "monday", ASKED, fail=fail)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT) as server:
        yield server


@pytest.fixture
def person(tmp_path: Path, server: ScriptedServer) -> Person:
    return Person(tmp_path, server)


def assert_all_is_well(person: Person, server: ScriptedServer) -> None:
    """No bill was paid twice, and one that may not have been paid was told to the model as such."""
    paid = bills_paid(person.work)
    assert len(paid) == len(set(paid))
    told = str([request.body for request in server.requests])
    assert sorted(paid) == ["power", "rent"] or UNKNOWN in told


def test_an_undisturbed_turn_pays_each_bill_once(person: Person, server: ScriptedServer) -> None:
    done = person.asks()
    assert (done.returncode, done.stdout) == (0, "All bills are paid.\n"), done.stderr
    assert bills_paid(person.work) == ["rent", "power"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_turn_is_finished_when_the_person_asks_again(
    person: Person, server: ScriptedServer, point: str
) -> None:
    killed = person.asks(fail=point)
    assert killed.returncode == -9, killed.stderr
    again = person.asks()
    assert (again.returncode, again.stdout) == (0, "All bills are paid.\n"), again.stderr
    assert_all_is_well(person, server)
    inputs = [m for m in server.requests[-1].body["messages"] if m["role"] == "user"]
    assert [m["content"] for m in inputs] == [ASKED]


# `run` and `resume` recover the same journal in the same way, and `run` is killed at every point above. Here each point
# once: the second time in a turn adds nothing. Without an input, which is not there before it is committed, see below.
@pytest.mark.promise("L12")
@pytest.mark.parametrize("point", [point for point in POINTS if ":" not in point and point != "input_received"])
def test_a_killed_turn_is_finished_by_resume_and_reported(person: Person, server: ScriptedServer, point: str) -> None:
    assert person.asks(fail=point).returncode == -9
    resumed = person.types("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "All bills are paid." in resumed.stdout
    assert_all_is_well(person, server)
    assert "All bills are paid." not in person.types("resume").stdout


def test_an_input_that_was_not_acknowledged_leaves_no_trace(person: Person, server: ScriptedServer) -> None:
    assert person.asks(fail="input_received").returncode == -9
    assert "no unfinished turns" in person.types("resume").stdout.lower()
    assert (server.requests, bills_paid(person.work)) == ([], [])


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
    person: Person, server: ScriptedServer, first: str, second: str
) -> None:
    assert person.asks(fail=first).returncode == -9
    person.asks(fail=second)
    again = person.asks()
    assert (again.returncode, again.stdout) == (0, "All bills are paid.\n"), again.stderr
    assert_all_is_well(person, server)


def test_a_turn_that_kills_the_process_every_time_is_given_up_and_says_so(
    person: Person, server: ScriptedServer
) -> None:
    for _ in range(4):
        assert person.asks(fail="mid_reply").returncode == -9
    given_up = person.asks()
    assert given_up.returncode == 1
    assert "given up" in given_up.stderr
