"""Questions in the chat: a command that needs more than its sandbox gives, and a person who answers or does not."""

import os
import re
import shutil
import signal

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.at_work import at_work, shell
from tests.journey.support import Person
from tests.journey.tmux import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

NETWORK = {"needs": ["network"], "why": "to fetch the list"}
CHOICES = "[o]nce · this [s]ession · this [w]orkspace · [n]o"


def results(server: ScriptedServer) -> list[str]:
    """What the model was told of its calls, up to its last request."""
    return [str(message["content"]) for message in server.requests[-1].body["messages"] if message["role"] == "tool"]


def test_a_yes_for_the_session_is_not_asked_for_again_in_it_and_can_be_taken_back(person: Person) -> None:
    with (
        at_work(
            person,
            shell("echo one >> ran", **NETWORK),
            shell("echo two >> ran", **NETWORK),
            says("Both ran."),
            shell("echo three >> ran", **NETWORK),
            says("Not that one."),
        ),
        Terminal(person) as terminal,
    ):
        terminal.rests()
        terminal.says("go")
        asked = terminal.sees("waits for you")
        terminal.says("S")
        terminal.sees("Both ran.")
        screen = terminal.rests()
        terminal.says("/permissions")
        found = re.search(r"^(\S+)  network, in session session-1", terminal.sees("network, in session"), re.M)
        assert found
        terminal.says(f"/permissions forget {found[1]}")
        terminal.sees("is taken back")
        terminal.says("again")
        terminal.sees("? May shell", times=2)
        terminal.says("/no")
        terminal.sees("Not that one.")
        terminal.rests()
    assert "? May shell run this with access to the network" in asked
    assert "\n  │ echo one >> ran\n  The model's reason:\n  │ to fetch the list\n" in asked
    assert asked.splitlines()[-4].strip() == f"? your answer: {CHOICES}"
    assert (screen.count("? May shell"), screen.count("✓ allowed in this session")) == (1, 1)
    assert (person.project / "ran").read_text() == "one\ntwo\n"


def test_a_no_is_told_to_the_model_and_other_words_wait_behind_the_question(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("Then not.")) as server, Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waits for you")
        terminal.says("use less of it")
        terminal.sees("this waits behind the question")
        terminal.sees("› use less of it  (queued)")
        terminal.says("n")
        terminal.sees("Then not.")
        screen = terminal.rests()
    assert "✗ not allowed" in screen
    (denied,) = results(server)
    assert "not" in denied
    assert [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"] == [
        "go",
        "use less of it",
    ]
    assert not (person.project / "ran").exists()


def test_several_questions_are_shown_one_after_the_other(person: Person) -> None:
    calls = [call("shell", command=f"echo {n} >> ran", needs=["network"]) for n in ("one", "two")]
    with at_work(person, says("", *calls), says("Done.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        first = terminal.sees("│ echo one >> ran")
        terminal.says("/yes")
        terminal.sees("│ echo two >> ran")
        terminal.says("no")
        terminal.sees("Done.")
        terminal.rests()
    assert "│ echo two" not in first
    assert (person.project / "ran").read_text() == "one\n"


def test_a_terminal_that_cannot_move_its_cursor_asks_in_plain_lines(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("It ran.")), Terminal(person, TERM="dumb") as terminal:
        terminal.sees("/help")
        terminal.says("go")
        terminal.sees(f"  │ to fetch the list\n  {CHOICES}")
        terminal.says("once")
        terminal.sees("It ran.")
    assert (person.project / "ran").exists()


def test_a_question_is_left_to_wait_in_its_session_and_found_there_again(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("It ran.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waits for you")
        terminal.says("/new")
        terminal.sees("the question before waits in its own (/switch session-1)")
        terminal.sees("idle · +1 elsewhere")
        terminal.says("/yes")
        terminal.sees("no question waits")
        terminal.says("/switch session-1")
        terminal.sees("? May shell", times=2)
        terminal.says("/yes workspace")
        terminal.sees("It ran.")
        terminal.rests()
    assert (person.project / "ran").exists()


def test_ctrl_c_at_a_question_stops_the_turn(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("never")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waits for you")
        terminal.presses("C-c")
        terminal.sees("■ stopped")
        terminal.rests()
        terminal.says("/yes")
        terminal.sees("no question waits")
    assert not (person.project / "ran").exists()


def test_a_question_outlives_a_killed_chat_and_its_command_runs_once(person: Person) -> None:
    with at_work(person, shell("echo once >> ran", **NETWORK), says("It ran.")) as server:
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            terminal.sees("waits for you")
            os.kill(terminal.pid, signal.SIGKILL)
            assert terminal.ends() == 128 + signal.SIGKILL
        with Terminal(person) as terminal:  # Another session: it says where the question is.
            terminal.sees("session session-1 waits for your answer")
            terminal.presses("C-d")
            terminal.ends()
        with Terminal(person, "chat", "-c") as terminal:
            asked = terminal.sees("waits for you")
            terminal.says("o")
            terminal.sees("It ran.")
            screen = terminal.rests()
    assert (asked.count("│ echo once >> ran"), screen.count("✓ allowed, this once")) == (1, 1)
    assert (person.project / "ran").read_text() == "once\n"
    assert len(server.requests) == 2


def test_no_words_in_a_question_steer_the_terminal_or_pass_for_ours(person: Person) -> None:
    evil = "true \x1b[2J\x1b[H\x1b]0;taken over\x07\n" + "[o]nce \u202eyes"
    asking = shell(evil, needs=["network"], why="\r\x1b[1Agood\nMay it?")
    with at_work(person, asking, says("No.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        screen = terminal.sees("waits for you")
        title = terminal.ask("#{pane_title}")
        terminal.says("no")
        terminal.sees("No.")
    lines = screen.splitlines()
    assert ("taken over" in title, "It works in" in screen) == (False, True)
    assert next(line for line in lines if "[o]nce" in line and "yes" in line).startswith("  │ ")
    assert next(line for line in lines if "May it?" in line).startswith("  │ ")
