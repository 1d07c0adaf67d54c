"""Questions outside the chat: asked at a terminal, denied in a pipe, and pending after their terminal has closed."""

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
from tests.journey.support import OUTRIDER, PATIENCE, Ran, ended, interrupt
from tests.support.in_process import InProcessPerson as Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def needs_approval() -> ScriptedReply:
    """A command that needs approval, with a sandbox and without one; every run of it appends a line."""
    return says("", call("shell", command="echo once >> ran", needs=["network"], why="to fetch it"))


def asks_once() -> Script:
    return script(needs_approval(), says("all done"), says("all done"))


class TerminalProcess:
    """A command at a terminal, and the person who reads its screen and types."""

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
        self._screen = b""

    def sees(self, text: str) -> None:
        """Wait until this appears after everything seen before."""
        until = time.monotonic() + PATIENCE
        while text.encode() not in self._screen:
            assert self._reads(until), f"{text!r} did not appear: {self._screen.decode()}"
        self._screen = self._screen.partition(text.encode())[2]

    def types(self, text: str) -> None:
        os.write(self._main, text.encode())

    def exits(self) -> int:
        """Wait for the end of the command and return its exit code."""
        until = time.monotonic() + PATIENCE
        while self._reads(until):
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        os.close(self._main)

    def _reads(self, until: float) -> bool:
        if not select.select([self._main], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        try:
            piece = os.read(self._main, 65_536)
        except OSError:  # Linux reports a closed terminal like this.
            return False
        self._screen += piece
        return bool(piece)


@contextmanager
def at_a_terminal(person: Person, *words: str) -> Generator[TerminalProcess]:
    terminal = TerminalProcess(person, *words)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def server(person: Person) -> Iterator[ScriptedServer]:
    with ScriptedServer(asks_once()) as server:
        person.uses(server.url)
        yield server


def runs(person: Person) -> int:
    """How often the command ran, by its own count."""
    file = person.project / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def pending(person: Person) -> list[dict[str, Any]]:
    return json.loads(person.types("questions", "list", "--json").out)


def leave_pending(person: Person) -> None:
    """Ask a question at a terminal that closes before anyone answers."""
    with at_a_terminal(person, "run", "-s", "s", "go") as terminal:
        terminal.sees("[o]nce")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.exits() == 143


def test_in_a_pipe_the_answer_is_no_and_stderr_says_so(person: Person, server: ScriptedServer) -> None:
    ran = person.types("run", "--json", "-s", "s", "go")
    assert (ran.code, ran.lines[-1]["text"], runs(person)) == (0, "all done", 0)
    assert [line["answer"] for line in ran.lines if line["type"] == "answered"] == ["no"]
    assert ran.err.startswith("outrider: ✗ Allow this command with network access")
    assert ran.err.endswith("— no (nobody answered)\n")
    reason = "not run: it needs approval, and nobody was there to give it. Do not work around this"
    assert reason in json.dumps(server.requests[-1].body)
    assert "answered: no (nobody answered)" in person.types("sessions", "show", "s").out
    assert person.types("questions").out == "no pending questions\n"


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_at_a_terminal_the_question_is_repeated_until_it_is_answered(person: Person, server: ScriptedServer) -> None:
    with at_a_terminal(person, "run", "-s", "s", "go") as terminal:
        terminal.sees("| echo once >> ran")
        terminal.sees("to fetch it")
        terminal.sees("[o]nce")
        terminal.types("perhaps\n")
        terminal.sees("[o]nce")
        assert runs(person) == 0
        terminal.types("o\n")
        terminal.sees("— once")
        terminal.sees("all done")
        assert terminal.exits() == 0
    assert runs(person) == 1
    assert person.types("permissions", "list").out == "no permissions\n"


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
@pytest.mark.parametrize("typed", ["n\n", "no\n", "\x04"], ids=["letter", "word", "end of input"])
def test_a_no_at_the_terminal_runs_nothing_and_the_turn_continues(
    person: Person, server: ScriptedServer, typed: str
) -> None:
    with at_a_terminal(person, "run", "go") as terminal:
        terminal.sees("[o]nce")
        terminal.types(typed)
        terminal.sees("— no")
        terminal.sees("all done")
        assert terminal.exits() == 0
    assert runs(person) == 0


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_text_typed_before_the_question_is_no_answer_to_it(person: Person) -> None:
    slow = says("wait", call("shell", command="read x < fifo"))
    os.mkfifo(person.project / "fifo")
    with ScriptedServer(script(slow, needs_approval(), says("all done"))) as server:
        person.uses(server.url)
        with at_a_terminal(person, "run", "go") as terminal:
            terminal.sees("wait")
            terminal.types("o\n")
            if has_question_first(terminal):
                terminal.types("o\n")
            (person.project / "fifo").write_text("go on\n")
            terminal.sees("| echo once >> ran")
            terminal.sees("[o]nce")
            terminal.types("n\n")
            terminal.sees("all done")
            assert terminal.exits() == 0
    assert runs(person) == 0


def has_question_first(terminal: TerminalProcess) -> bool:
    """Without a sandbox even the first command needs approval."""
    from outrider.workspaces.sandbox import detect
    from outrider.workspaces.sandbox.types import NoSandbox

    if not isinstance(detect(), NoSandbox):
        return False
    terminal.sees("[o]nce")
    return True


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_ctrl_c_at_a_question_stops_the_turn(person: Person, server: ScriptedServer) -> None:
    with at_a_terminal(person, "run", "-s", "s", "go") as terminal:
        terminal.sees("[o]nce")
        terminal.process.send_signal(signal.SIGINT)
        terminal.sees("stopped")
        assert terminal.exits() == 130
    assert (runs(person), pending(person)) == (0, [])
    assert person.types("resume").out == "no unfinished turns\n"


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
@pytest.mark.command("questions")
@pytest.mark.command("resume")
def test_a_pending_question_is_printed_by_resume_and_answered_later(person: Person, server: ScriptedServer) -> None:
    leave_pending(person)
    resumed = person.types("resume")
    assert (resumed.code, resumed.out) == (1, "")
    (question,) = pending(person)
    assert "| echo once >> ran" in resumed.err
    assert (
        f"session s is waiting for an answer: outrider questions answer {question['id']} once|session|workspace|no"
        in resumed.err
    )
    assert {name: question[name] for name in ("name", "choices", "needs")} == {
        "name": "s",
        "choices": ["once", "session", "workspace", "no"],
        "needs": question["needs"],
    }
    assert "network" in question["needs"]
    page = person.types("questions").out
    assert page.startswith(f"{question['id']}  session s\n  Allow this command")
    assert person.types("questions", "answer", "nonsense", "once").code == 2
    assert person.types("questions", "answer", question["id"], "perhaps").code == 2
    assert runs(person) == 0
    assert person.types("questions", "answer", question["id"][:6], "once") == Ran(0, "all done\n", "")
    assert (runs(person), pending(person)) == (1, [])
    assert person.types("questions", "answer", question["id"], "once").code == 2


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_an_answer_can_be_recorded_without_running_the_turn(person: Person, server: ScriptedServer) -> None:
    leave_pending(person)
    (question,) = pending(person)
    names = {"id", "session", "name", "person", "ask", "question", "whole", "digest", "call", "choices", "needs"}
    assert set(question) == names
    assert question["id"].startswith(question["session"][:8])
    ran = person.types("questions", "answer", "--no-wait", question["ask"], "no")
    assert ran == Ran(0, "", "outrider: answered no; to continue: outrider resume s\n")
    assert (pending(person), len(server.requests)) == ([], 1)
    assert person.types("resume") == Ran(0, "[s]\nall done\n\n", "")
    assert runs(person) == 0


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_the_next_question_of_the_same_turn_is_pending_after_the_first_answer(person: Person) -> None:
    with ScriptedServer(script(needs_approval(), needs_approval(), says("all done"))) as server:
        person.uses(server.url)
        leave_pending(person)
        (first,) = pending(person)
        ran = person.types("questions", "answer", first["id"], "once")
        (second,) = pending(person)
        assert (ran.code, ran.out, f"outrider questions answer {second['id']}" in ran.err) == (1, "", True)
        assert person.types("questions", "answer", second["id"], "once", "--json").lines[-1]["text"] == "all done"
    assert runs(person) == 2


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_a_pending_question_is_asked_again_when_the_session_is_continued_at_a_terminal(
    person: Person, server: ScriptedServer
) -> None:
    leave_pending(person)
    with at_a_terminal(person, "run", "-s", "s", "well?") as terminal:
        terminal.sees("[o]nce")
        terminal.types("once\n")
        terminal.sees("all done")
        assert terminal.exits() == 0
    assert runs(person) == 1


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_a_pending_question_stays_pending_when_the_session_is_continued_in_a_pipe(
    person: Person, server: ScriptedServer
) -> None:
    leave_pending(person)
    ran = person.types("run", "-s", "s", "and say hello")
    (question,) = pending(person)
    assert (ran.code, ran.out, runs(person)) == (1, "", 0)
    assert ran.err.startswith("Allow this command with network access")
    command = f"outrider questions answer {question['id']} once|session|workspace|no"
    assert ran.err.endswith(
        f"outrider: session s is waiting for an answer: {command}\n"
        "outrider: your message is saved; the model reads it after the answer\n"
    )
    assert person.types("questions", "answer", question["id"], "once") == Ran(0, "all done\n", "")
    assert (runs(person), pending(person)) == (1, [])
    assert "and say hello" in json.dumps(server.requests[-1].body)


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_a_pending_question_stays_pending_when_a_pipe_joins_through_another_process(
    person: Person, server: ScriptedServer
) -> None:
    leave_pending(person)
    with ScriptedServer(script(Stall("headers"))) as busy:
        person.uses(busy.url)
        owner = person.begins("run", "-s", "other", "take your time")
        busy.wait(1)
        ran = person.types("run", "-s", "s", "and say hello")
        (question,) = pending(person)
        interrupt(owner)
    person.uses(server.url)
    assert (ran.code, ran.out, question["id"] in ran.err) == (1, "", True)
    assert person.types("questions", "answer", question["id"], "no") == Ran(0, "all done\n", "")
    assert "and say hello" in json.dumps(server.requests[-1].body)


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
@pytest.mark.command("permissions")
def test_a_permission_for_the_workspace_is_valid_until_it_is_revoked(person: Person) -> None:
    with ScriptedServer(asks_once()) as server:
        person.uses(server.url)
        leave_pending(person)
        (question,) = pending(person)
        assert person.types("questions", "answer", question["id"], "workspace").code == 0
        assert person.types("run", "-s", "other", "go") == Ran(0, "all done\n", "")
        assert runs(person) == 2
        permissions = json.loads(person.types("permissions", "list", "--json").out)
        assert {(permission["scope"], permission["applies_to"]) for permission in permissions} == {
            ("workspace", str(person.project))
        }
        assert f"network  {person.project}" in person.types("permissions", "list").out
        assert person.types("permissions", "forget", "g-none").code == 2
        for permission in permissions:
            ran = person.types("permissions", "forget", permission["id"])
            assert ran == Ran(0, f"revoked; Outrider will ask again for {permission['need']} in {person.project}\n", "")
        assert "no (nobody answered)" in person.types("run", "-s", "third", "go").err
    assert runs(person) == 2


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_questions_are_answered_through_the_process_that_owns_the_home(person: Person, server: ScriptedServer) -> None:
    leave_pending(person)
    with ScriptedServer(script(Stall("headers"))) as busy:
        person.uses(busy.url)
        owner = person.begins("run", "-s", "other", "take your time")
        busy.wait(1)
        (question,) = pending(person)
        person.uses(server.url)
        recorded = person.types("questions", "answer", "--no-wait", question["id"], "once")
        assert recorded == Ran(0, "", "outrider: answered once; the turn continues\n")
        assert person.types("permissions", "list").code == 0
        interrupt(owner)
    person.types("resume")
    assert runs(person) == 1


def test_a_killed_turn_does_not_ask_the_same_question_again(person: Person, server: ScriptedServer) -> None:
    killed = person.begins("run", "-s", "s", "go", environ={"OUTRIDER_FAIL": "approval_pending"})
    assert ended(killed).code == -9
    resumed = person.types("resume")  # The turn came from a pipe, where nobody can answer.
    assert (resumed.code, resumed.out) == (0, "[s]\nall done\n\n")
    lines = person.types("sessions", "show", "s", "--json").lines
    assert [line["type"] for line in lines if line["type"] in ("asked", "answered")] == ["asked", "answered"]
    assert (runs(person), Path(person.project / "ran").exists()) == (0, False)


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_all_of_a_long_question_is_one_key_or_one_command_away(person: Person) -> None:
    command = "\n".join(f"echo {number} >> ran" for number in range(300))
    long = says("", call("shell", command=command, needs=["network"], why="because\n" * 300))
    with ScriptedServer(script(long, says("all done"))) as server:
        person.uses(server.url)
        with at_a_terminal(person, "run", "-s", "s", "go") as terminal:
            terminal.sees("| echo 0 >> ran")
            terminal.sees("cut; sha256")
            terminal.sees("The model's reason:")
            terminal.sees("cut; sha256")
            terminal.sees("[v]iew all")
            terminal.types("v\n")
            terminal.sees("| echo 150 >> ran")
            terminal.sees("[v]iew all")
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.exits() == 143
        (question,) = pending(person)
        listed = person.types("questions").out
        whole = person.types("questions", "show", question["id"]).out
        assert person.types("questions", "answer", question["id"], "once").out == "all done\n"
    assert f"→ outrider questions show {question['id']} shows all of it\n" in listed
    assert "| echo 150 >> ran" not in listed
    assert [line[2:] for line in whole.split("\n") if line.startswith("| echo")] == command.split("\n")
    assert whole.split("\n")[1:-2] == question["whole"].split("\n")
    assert runs(person) == 300
