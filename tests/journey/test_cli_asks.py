"""Questions outside the chat: put at a terminal, denied in a pipe, left for later where whoever asked is gone."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import ScriptedReply, call, says
from outrider.testing.scripted_server.script import Script, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import OUTRIDER, Person, Ran, ended, interrupt

WITHIN = 30.0


def wants(file: str = "ran") -> ScriptedReply:
    """A command that is asked for, with a sandbox and without one; every run of it leaves a line."""
    return says("", call("shell", command=f"echo once >> {file}", needs=["network"], why="to fetch it"))


def asks_once() -> Script:
    return script(wants(), says("all done"), says("all done"))


class Seated:
    """Somebody at a terminal, who sees what is shown and types when it is time to."""

    def __init__(self, person: Person, *words: str) -> None:
        self._main, side = pty.openpty()
        try:
            self.process = subprocess.Popen(
                [OUTRIDER, *words],
                cwd=person.project,
                env=person.environ,
                stdin=side,
                stdout=side,
                stderr=side,
                start_new_session=True,
            )
        finally:
            os.close(side)
        self._shown = b""

    def sees(self, text: str) -> None:
        """Read on until this was shown, after all that was seen before."""
        until = time.monotonic() + WITHIN
        while text.encode() not in self._shown:
            assert self._reads(until), f"{text!r} was not shown: {self._shown.decode()}"
        self._shown = self._shown.partition(text.encode())[2]

    def types(self, text: str) -> None:
        os.write(self._main, text.encode())

    def leaves(self) -> int:
        """Wait for the end; the exit code."""
        until = time.monotonic() + WITHIN
        while self._reads(until):
            pass
        return self.process.wait(WITHIN)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WITHIN)
        os.close(self._main)

    def _reads(self, until: float) -> bool:
        if not select.select([self._main], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        try:
            piece = os.read(self._main, 65_536)
        except OSError:  # how Linux says that nobody holds the other side any more
            return False
        self._shown += piece
        return bool(piece)


@contextmanager
def seated(person: Person, *words: str) -> Generator[Seated]:
    someone = Seated(person, *words)
    try:
        yield someone
    finally:
        someone.close()


@pytest.fixture
def server(person: Person) -> Iterator[ScriptedServer]:
    with ScriptedServer(asks_once()) as server:
        person.uses(server.url)
        yield server


def runs(person: Person) -> int:
    """How often the command was run, by its own count."""
    file = person.project / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def waiting(person: Person) -> list[dict[str, Any]]:
    return json.loads(person.types("questions", "list", "--json").out)


def left_waiting(person: Person) -> None:
    """A question put at a terminal that was closed before anyone answered."""
    with seated(person, "run", "-s", "s", "go") as someone:
        someone.sees("[o]nce")
        someone.process.send_signal(signal.SIGTERM)
        assert someone.leaves() == 143


def test_in_a_pipe_nobody_is_asked_the_answer_is_no_and_that_is_told(person: Person, server: ScriptedServer) -> None:
    ran = person.types("run", "--json", "-s", "s", "go")
    assert (ran.code, ran.lines[-1]["text"], runs(person)) == (0, "all done", 0)
    assert [line["answer"] for line in ran.lines if line["type"] == "answered"] == ["no"]
    assert ran.err.startswith("outrider: ✗ May shell run this with access to the network")
    assert ran.err.endswith("— no, since nobody answered\n")
    assert "did not allow it" in json.dumps(server.requests[-1].body)
    assert "answered: no, since nobody answered" in person.types("sessions", "show", "s").out
    assert person.types("questions").out == "nothing waits for an answer\n"


def test_at_a_terminal_the_person_is_asked_until_they_have_answered(person: Person, server: ScriptedServer) -> None:
    with seated(person, "run", "-s", "s", "go") as someone:
        someone.sees("| echo once >> ran")
        someone.sees("to fetch it")
        someone.sees("[o]nce")
        someone.types("perhaps\n")
        someone.sees("[o]nce")
        assert runs(person) == 0
        someone.types("o\n")
        someone.sees("— once")
        someone.sees("all done")
        assert someone.leaves() == 0
    assert runs(person) == 1
    assert person.types("permissions", "list").out == "nothing was allowed for longer than one call\n"


@pytest.mark.parametrize("typed", ["n\n", "no\n", "\x04"], ids=["letter", "word", "end of input"])
def test_a_no_at_the_terminal_runs_nothing_and_the_turn_goes_on(
    person: Person, server: ScriptedServer, typed: str
) -> None:
    with seated(person, "run", "go") as someone:
        someone.sees("[o]nce")
        someone.types(typed)
        someone.sees("— no")
        someone.sees("all done")
        assert someone.leaves() == 0
    assert runs(person) == 0


def test_what_was_typed_before_the_question_is_no_answer_to_it(person: Person) -> None:
    slow = says("wait", call("shell", command="read x < fifo"))
    os.mkfifo(person.project / "fifo")
    with ScriptedServer(script(slow, wants(), says("all done"))) as server:
        person.uses(server.url)
        with seated(person, "run", "go") as someone:
            someone.sees("wait")
            someone.types("o\n")
            if has_question_first(someone):
                someone.types("o\n")
            (person.project / "fifo").write_text("go on\n")
            someone.sees("| echo once >> ran")
            someone.sees("[o]nce")
            someone.types("n\n")
            someone.sees("all done")
            assert someone.leaves() == 0
    assert runs(person) == 0


def has_question_first(someone: Seated) -> bool:
    """Without a sandbox even the first command is asked for."""
    from outrider.workspaces.sandbox import detect
    from outrider.workspaces.sandbox.types import NoSandbox

    if not isinstance(detect(), NoSandbox):
        return False
    someone.sees("[o]nce")
    return True


def test_ctrl_c_at_a_question_stops_the_turn(person: Person, server: ScriptedServer) -> None:
    with seated(person, "run", "-s", "s", "go") as someone:
        someone.sees("[o]nce")
        someone.process.send_signal(signal.SIGINT)
        someone.sees("stopped")
        assert someone.leaves() == 130
    assert (runs(person), waiting(person)) == (0, [])
    assert person.types("resume").out == "nothing is unfinished\n"


def test_a_question_left_behind_is_told_by_resume_and_answered_later(person: Person, server: ScriptedServer) -> None:
    left_waiting(person)
    resumed = person.types("resume")
    assert (resumed.code, resumed.out) == (1, "")
    (ask,) = waiting(person)
    assert "| echo once >> ran" in resumed.err
    assert (
        f"session s waits for an answer: outrider questions answer {ask['id']} once|session|workspace|no" in resumed.err
    )
    assert {name: ask[name] for name in ("name", "choices", "needs")} == {
        "name": "s",
        "choices": ["once", "session", "workspace", "no"],
        "needs": ask["needs"],
    }
    assert "network" in ask["needs"]
    shown = person.types("questions").out
    assert shown.startswith(f"{ask['id']}  session s\n  May shell run this")
    assert person.types("questions", "answer", "nonsense", "once").code == 2
    assert person.types("questions", "answer", ask["id"], "perhaps").code == 2
    assert runs(person) == 0
    assert person.types("questions", "answer", ask["id"][:6], "once") == Ran(0, "all done\n", "")
    assert (runs(person), waiting(person)) == (1, [])
    assert person.types("questions", "answer", ask["id"], "once").code == 2


def test_an_answer_can_be_written_down_without_going_on(person: Person, server: ScriptedServer) -> None:
    left_waiting(person)
    (ask,) = waiting(person)
    ran = person.types("questions", "answer", "--no-wait", ask["id"], "no")
    assert ran == Ran(0, "", "outrider: answered no: outrider resume s goes on\n")
    assert (waiting(person), len(server.requests)) == ([], 1)
    assert person.types("resume") == Ran(0, "[s]\nall done\n\n", "")
    assert runs(person) == 0


def test_the_next_question_of_the_same_turn_waits_in_its_turn(person: Person) -> None:
    with ScriptedServer(script(wants(), wants(), says("all done"))) as server:
        person.uses(server.url)
        left_waiting(person)
        (first,) = waiting(person)
        ran = person.types("questions", "answer", first["id"], "once")
        (second,) = waiting(person)
        assert (ran.code, ran.out, f"outrider questions answer {second['id']}" in ran.err) == (1, "", True)
        assert person.types("questions", "answer", second["id"], "once", "--json").lines[-1]["text"] == "all done"
    assert runs(person) == 2


def test_a_question_that_waits_is_put_again_when_the_session_is_continued(
    person: Person, server: ScriptedServer
) -> None:
    left_waiting(person)
    with seated(person, "run", "-s", "s", "well?") as someone:
        someone.sees("[o]nce")
        someone.types("once\n")
        someone.sees("all done")
        assert someone.leaves() == 0
    assert runs(person) == 1


def test_a_question_that_waits_is_a_no_when_the_session_is_continued_by_a_pipe(
    person: Person, server: ScriptedServer
) -> None:
    left_waiting(person)
    ran = person.types("run", "-s", "s", "go on without")
    assert (ran.code, ran.out, runs(person), waiting(person)) == (0, "all done\n", 0, [])
    assert "is now a no: nobody can be asked here" in ran.err


def test_a_yes_for_the_workspace_holds_until_it_is_taken_back(person: Person) -> None:
    with ScriptedServer(asks_once()) as server:
        person.uses(server.url)
        left_waiting(person)
        (ask,) = waiting(person)
        assert person.types("questions", "answer", ask["id"], "workspace").code == 0
        assert person.types("run", "-s", "other", "go") == Ran(0, "all done\n", "")
        assert runs(person) == 2
        grants = json.loads(person.types("permissions", "list", "--json").out)
        assert {(grant["scope"], grant["applies_to"]) for grant in grants} == {("workspace", str(person.project))}
        assert f"network  {person.project}" in person.types("permissions", "list").out
        assert person.types("permissions", "forget", "g-none").code == 2
        for grant in grants:
            ran = person.types("permissions", "forget", grant["id"])
            assert ran == Ran(0, f"{grant['need']} is asked for again in {person.project}\n", "")
        assert "no, since nobody answered" in person.types("run", "-s", "third", "go").err
    assert runs(person) == 2


def test_questions_are_answered_through_whoever_owns_the_home(person: Person, server: ScriptedServer) -> None:
    left_waiting(person)
    with ScriptedServer(script(Stall("headers"))) as busy:
        person.uses(busy.url)
        owner = person.begins("run", "-s", "other", "take your time")
        busy.wait(1)
        (ask,) = waiting(person)
        person.uses(server.url)
        noted = person.types("questions", "answer", "--no-wait", ask["id"], "once")
        assert noted == Ran(0, "", "outrider: answered once: the turn goes on\n")
        assert person.types("permissions", "list").code == 0
        interrupt(owner)
    person.types("resume")
    assert runs(person) == 1


def test_a_killed_turn_asks_no_second_time_for_what_it_asked(person: Person, server: ScriptedServer) -> None:
    killed = person.begins("run", "-s", "s", "go", environ={"OUTRIDER_FAIL": "approval_pending"})
    assert ended(killed).code == -9
    resumed = person.types("resume")  # a pipe asked, so nobody can be asked
    assert (resumed.code, resumed.out) == (0, "[s]\nall done\n\n")
    lines = person.types("sessions", "show", "s", "--json").lines
    assert [line["type"] for line in lines if line["type"] in ("asked", "answered")] == ["asked", "answered"]
    assert (runs(person), Path(person.project / "ran").exists()) == (0, False)
