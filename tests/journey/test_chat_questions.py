"""Questions in the chat: commands that need more access than their sandbox gives."""

import os
import re
import signal
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.testing.scripted_model import ScriptedModel, call, says
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.at_work import at_work, shell
from tests.journey.support import Person
from tests.journey.tmux import Terminal
from tests.support.questions import asked

pytestmark = pytest.mark.needs("tmux")

NETWORK = {"needs": ["network"], "why": "to fetch the list"}
CHOICES = "[o]nce · every later command of this [s]ession · every later command in this [w]orkspace · [n]o · [v]iew all"


def results(server: ScriptedServer) -> list[str]:
    """The results of calls in the last request to the model."""
    return [str(message["content"]) for message in server.requests[-1].body["messages"] if message["role"] == "tool"]


def test_a_permission_for_the_session_is_not_asked_for_again_and_can_be_revoked(person: Person) -> None:
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
        question = terminal.sees("waiting for your answer")
        terminal.says("S")
        terminal.sees("Both ran.")
        screen = terminal.rests()
        terminal.says("/permissions")
        match = re.search(r"^(\S+)  network, in session session-1", terminal.sees("network, in session"), re.M)
        assert match
        terminal.says(f"/permissions forget {match[1]}")
        terminal.sees("Revoked ")
        terminal.says("again")
        terminal.sees("? Allow this command", times=2)
        terminal.says("/no")
        terminal.sees("Not that one.")
        terminal.rests()
    assert "? Allow this command with network access" in question
    assert "\n  │ echo one >> ran\n  The model's reason:\n  │ to fetch the list\n" in question
    assert " ".join(question.splitlines()[-5:-3]).split() == f"? your answer: {CHOICES}".split()
    assert (screen.count("? Allow this command"), screen.count("✓ Allowed for this session")) == (1, 1)
    assert (person.project / "ran").read_text() == "one\ntwo\n"


def test_a_denial_reaches_the_model_and_other_messages_wait_for_the_answer(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("Then not.")) as server, Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waiting for your answer")
        terminal.says("use less of it")
        terminal.sees("This message waits until the question is answered")
        terminal.sees("› use less of it  (queued)")
        terminal.says("n")
        terminal.sees("Then not.")
        screen = terminal.rests()
    assert "✗ Denied" in screen
    (denied,) = results(server)
    assert "not" in denied
    assert [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"] == [
        "go",
        "use less of it",
    ]
    assert not (person.project / "ran").exists()


def test_an_answer_that_a_question_does_not_offer_is_refused_and_not_sent(person: Person) -> None:
    with at_work(person, shell("touch ran"), says("It ran.")) as server:
        (person.home / "config.toml").write_text('[[rules]]\nverdict = "ask"\ntool = "shell"\n')
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            terminal.sees("? your answer: [o]nce · [n]o")
            terminal.says("s")
            terminal.sees("This question does not offer 's'. Answer [o]nce · [n]o")
            terminal.says("o")
            terminal.sees("It ran.")
            terminal.rests()
    assert [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"] == ["go"]


def test_several_questions_are_shown_one_by_one(person: Person) -> None:
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


def test_a_dumb_terminal_shows_questions_as_plain_lines(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("It ran.")), Terminal(person, TERM="dumb") as terminal:
        terminal.sees("/help")
        terminal.says("go")
        screen = terminal.sees("[v]iew all")
        assert f" {CHOICES} " in " ".join(f"{screen} ".split()) + " "
        terminal.says("once")
        terminal.sees("It ran.")
    assert (person.project / "ran").exists()


def test_an_open_question_waits_in_its_session_while_another_one_is_open(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("It ran.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waiting for your answer")
        terminal.says("/new")
        terminal.sees("the open question waits in the last one (/switch session-1)")
        terminal.sees("idle · +1 session")
        terminal.says("/yes")
        terminal.sees("There is no open question")
        terminal.says("/switch session-1")
        terminal.sees("? Allow this command", times=2)
        terminal.says("/yes workspace")
        terminal.sees("It ran.")
        terminal.rests()
    assert (person.project / "ran").exists()


def test_ctrl_c_at_a_question_stops_the_turn(person: Person) -> None:
    with at_work(person, shell("touch ran", **NETWORK), says("never")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("waiting for your answer")
        terminal.presses("C-c")
        terminal.sees("■ Stopped")
        terminal.rests()
        terminal.says("/yes")
        terminal.sees("There is no open question")
    assert not (person.project / "ran").exists()


def test_a_question_survives_a_killed_chat_and_its_command_runs_once(person: Person) -> None:
    with at_work(person, shell("echo once >> ran", **NETWORK), says("It ran.")) as server:
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            terminal.sees("waiting for your answer")
            os.kill(terminal.pid, signal.SIGKILL)
            assert terminal.ends() == 128 + signal.SIGKILL
        with Terminal(person) as terminal:  # Another session: it says where the question is.
            terminal.sees("Session session-1 is waiting for your answer")
            terminal.presses("C-d")
            terminal.ends()
        with Terminal(person, "chat", "-c") as terminal:
            question = terminal.sees("waiting for your answer")
            terminal.says("o")
            terminal.sees("It ran.")
            screen = terminal.rests()
    assert (question.count("│ echo once >> ran"), screen.count("✓ Allowed once")) == (1, 1)
    assert (person.project / "ran").read_text() == "once\n"
    assert len(server.requests) == 2


def test_no_text_in_a_question_controls_the_terminal_or_fakes_a_choice(person: Person) -> None:
    evil = "true \x1b[2J\x1b[H\x1b]0;taken over\x07\n" + "[o]nce \u202eyes"
    asking = shell(evil, needs=["network"], why="\r\x1b[1Agood\nMay it?")
    with at_work(person, asking, says("No.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        screen = terminal.sees("waiting for your answer")
        title = terminal.ask("#{pane_title}")
        terminal.says("no")
        terminal.sees("No.")
    lines = screen.splitlines()
    assert ("taken over" in title, "Workspace:" in screen) == (False, True)
    assert next(line for line in lines if "[o]nce" in line and "yes" in line).startswith("  │ ")
    assert next(line for line in lines if "May it?" in line).startswith("  │ ")


def test_v_shows_all_of_a_question(person: Person) -> None:
    command = "\n".join(f"echo {number} >> ran" for number in range(80))
    with at_work(person, shell(command, **NETWORK), says("Then not.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        cut = terminal.sees("[v]iew all")
        terminal.says("v")
        whole = terminal.sees("│ echo 40 >> ran")
        terminal.says("n")
        terminal.sees("Then not.")
    assert "cut; sha256" in cut
    assert "│ echo 40 >> ran" not in cut
    assert "│ echo 79 >> ran" in whole
    assert not (person.project / "ran").exists()


async def _ask_as(name: str, home: Path) -> str:
    """Leave a question of another person's session in this home; returns its id."""
    needing = call("shell", command="touch asked-for", needs=["network"], why="please")
    async with outrider.open(home, model=ScriptedModel(says("", needing), says("ok"))) as agent:
        other = agent.for_person(name)
        session = await other.session("work")
        await other.post("go", session=session, address="sessions:test")
        with anyio.fail_after(60):
            await asked(agent, session)
        (question,) = await agent.pending_questions()
    return question.id


def test_a_question_of_another_person_is_shown_to_the_owner_who_answers_it(person: Person) -> None:
    id = anyio.run(_ask_as, "anna", Path(person.environ["OUTRIDER_HOME"]))
    with at_work(person, says("Noted."), says("Noted.")), Terminal(person) as terminal:
        terminal.sees(f"? Session work of anna is waiting for your answer  (/questions {id})")
        terminal.says("/questions")
        terminal.sees(f"{id}  session work of anna: Allow this command with network access")
        terminal.says(f"/questions {id}")
        terminal.sees("│ touch asked-for")
        terminal.says(f"/questions {id} no")
        terminal.sees("Answered no")
        terminal.says("/questions")
        terminal.sees("There are no pending questions")
