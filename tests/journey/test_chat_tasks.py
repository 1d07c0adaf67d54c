"""Tasks in the chat: the real program in a real terminal, with real commands."""

import os
import re
import signal

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Stall
from tests.journey.at_work import at_work, gate, opens, shell
from tests.journey.support import Person
from tests.journey.tmux import Terminal

pytestmark = pytest.mark.needs("tmux")


def prompt_line(screen: str) -> str:
    """The input line."""
    return screen.splitlines()[-2].rstrip()


@pytest.mark.behaviour("B5")
@pytest.mark.behaviour("D1")
def test_the_end_of_a_background_command_is_printed_and_the_input_line_stays(person: Person) -> None:
    with at_work(
        person,
        shell("echo compiled; cat gate", description="the build", background=True),
        says("It builds."),
        says("The build is green."),
    ) as server:
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("build it")
            terminal.sees("It builds.")
            terminal.sees("idle · 1 task")
            terminal.types("half a thou")
            terminal.sees("› half a thou")
            opens(fifo, "linked\n")
            terminal.sees("The build is green.")
            terminal.types("ght")
            screen = terminal.sees("› half a thought")
    assert re.search(r"\$ echo compiled; cat gate  started as task (t-\w+)", screen)
    assert re.search(r"✓ t-\w+ succeeded · the build · exit 0, [\d.]+ s\n    │ compiled\n    │ linked\n", screen)
    assert screen.index("│ linked") < screen.index("The build is green.") < screen.index("› half a thought")
    assert (screen.count("│ linked"), " task" in screen.splitlines()[-1]) == (1, False)
    assert len(server.requests) == 3


@pytest.mark.behaviour("B5")
def test_a_task_notice_is_printed_while_the_model_is_writing(person: Person) -> None:
    with at_work(
        person, shell("cat gate; echo broken; exit 3", background=True), [Stall(), says("Heard.")], says("I see.")
    ) as server:
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("build it")
            server.wait(2)
            opens(fifo)
            screen = terminal.sees("│ broken")
            server.release()
            terminal.sees("I see.")
    assert "Heard." not in screen
    assert re.search(r"✗ t-\w+ failed · cat gate; echo broken; exit 3 · exit 3, ", screen)


@pytest.mark.behaviour("B5")
def test_the_notice_of_a_task_in_another_session_is_one_line_that_names_it(person: Person) -> None:
    with at_work(person, shell("cat gate", description="the build", background=True), says("On it."), says("Green.")):
        fifo = gate(person)
        with Terminal(person, "chat", "-s", "site") as terminal:
            terminal.rests()
            terminal.says("build it")
            terminal.sees("On it.")
            terminal.sees("1 task")
            terminal.says("/new")
            terminal.sees("New session")
            terminal.types("half a thou")
            terminal.sees("› half a thou")
            opens(fifo, "linked\n")
            terminal.sees("Session site is done: Green.")
            terminal.types("ght")
            screen = terminal.sees("› half a thought")
    assert re.search(r"✓ t-\w+ succeeded · the build · exit 0, [\d.]+ s  \(session site; /switch site\)\n", screen)
    assert "│ linked" not in screen


@pytest.mark.behaviour("D3")
def test_a_slow_command_continues_in_the_background_and_reports_its_end(person: Person) -> None:
    with at_work(person, shell("echo begun; cat gate; echo over", timeout=1), says("It takes long."), says("Over.")):
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            terminal.sees("It takes long.")
            terminal.sees("1 task")
            opens(fifo)
            terminal.sees("Over.")
            screen = terminal.rests()
    assert re.search(r"\$ echo begun; cat gate; echo over  continues as task t-\w+\n", screen)
    assert re.search(r"✓ t-\w+ succeeded · .*\n    │ begun\n    │ over\n", screen)


def test_the_output_of_a_command_is_shown_while_it_runs(person: Person) -> None:
    with at_work(person, shell("seq 5; cat gate", timeout=300), says("Over.")):
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            running = terminal.sees("  │ 5")
            opens(fifo)
            terminal.sees("Over.")
            screen = terminal.rests()
    assert re.search(r"\$ seq 5; cat gate … *\n  │ 3 *\n  │ 4 *\n  │ 5 *\n\n› ", running)
    assert re.search(r"\$ seq 5; cat gate  exit 0, [\d.]+ s\n\nOver.", screen)


def test_a_command_that_fails_shows_its_exit_code_and_its_last_lines(person: Person) -> None:
    lines = "for n in 1 2 3 4 5; do printf 'line %s\\033[2J\\n' $n; done; exit 2"
    with at_work(person, shell(lines), says("It failed.")), Terminal(person) as terminal:
        terminal.rests()
        terminal.says("go")
        terminal.sees("It failed.")
        screen = terminal.rests()
    assert re.search(r"  exit 2, [\d.]+ s\n    │ line 3\n    │ line 4\n    │ line 5\n", screen)
    assert "line 2" not in screen


@pytest.mark.behaviour("D6")
def test_tasks_can_be_listed_shown_followed_written_to_and_killed(person: Person) -> None:
    command = "echo ready; while read word; do echo got $word; done"
    with (
        at_work(
            person,
            shell(command, background=True, interactive=True, notify="never"),
            says("It listens."),
        ),
        Terminal(person) as terminal,
    ):
        terminal.rests()
        terminal.says("go")
        terminal.sees("It listens.")
        match = re.search(r"started as task (t-\w+)", terminal.sees("1 task"))
        assert match
        task = match[1]
        terminal.says("/tasks")
        terminal.sees(f"{task}  running")
        terminal.says(f"/tail {task}")
        terminal.sees(f"following {task}")
        terminal.says(f"/write {task} one two")
        terminal.sees("│ got one two")
        terminal.types("half a thou")
        terminal.presses("C-c")
        terminal.waits(lambda screen: f"following {task}" not in screen, "the end of following")
        terminal.types("ght")
        terminal.waits(lambda screen: prompt_line(screen) == "› half a thought", "the line")
        terminal.presses("C-u")
        terminal.says(f"/tasks {task}")
        terminal.sees("command  echo ready")
        terminal.says(f"/kill {task}")
        terminal.sees(f"Killed {task} and all its processes: killed")
        terminal.says(f"/write {task} more")
        terminal.sees(f"{task} takes no input: it has ended (killed")
        terminal.says("/stop all")
        terminal.sees("Nothing is running in this session")
        screen = terminal.rests()
    assert screen.count("│ got one two") == 2


def test_stop_kills_the_command_of_the_turn_and_stop_all_also_background_tasks(person: Person) -> None:
    calls = (
        call("shell", command="cat gate", background=True),
        call("shell", command="cat other", timeout=300),
    )
    with at_work(person, says("", *calls), [Stall(), says("never")]), Terminal(person) as terminal:
        gate(person)
        gate(person, "other")
        terminal.rests()
        terminal.says("go")
        terminal.sees("$ cat other …")
        terminal.sees("1 task")
        terminal.says("/stop")
        terminal.sees("■ Stopped")
        terminal.sees("idle · 1 task")
        terminal.says("/stop all")
        terminal.waits(lambda screen: screen.splitlines()[-1].endswith("idle"), "rest")
        terminal.says("/tasks")
        terminal.sees("killed", times=2)


@pytest.mark.behaviour("B4")
@pytest.mark.behaviour("D9")
def test_a_task_that_ended_while_the_chat_was_closed_is_reported_once_when_its_session_is_opened(
    person: Person,
) -> None:
    with at_work(person, shell("cat gate; touch over", background=True), says("On it."), says("It is green.")):
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("build it")
            terminal.sees("On it.")
            terminal.sees("1 task")
            terminal.rests()
            terminal.presses("C-d")
            assert terminal.ends() == 0
            farewell = terminal.screen
        opens(fifo, "linked\n")
        with Terminal(person, "chat", "-c") as terminal:
            terminal.sees("It is green.")
            screen = terminal.rests()
        with Terminal(person, "chat", "-c") as terminal:
            again = terminal.rests()
    assert "1 task still running" in farewell
    assert (screen.count("succeeded"), screen.count("│ linked"), screen.count("It is green.")) == (1, 1, 1)
    assert (again.count("│ linked"), again.count("It is green.")) == (1, 1)  # as what was said before


@pytest.mark.behaviour("B4")
def test_a_task_that_ended_while_the_chat_was_closed_is_reported_in_a_new_session_with_one_line(person: Person) -> None:
    with at_work(person, shell("cat gate", background=True), says("On it."), says("It is green.")):
        fifo = gate(person)
        with Terminal(person, "chat", "-s", "site") as terminal:
            terminal.rests()
            terminal.says("build it")
            terminal.sees("On it.")
            terminal.sees("1 task")
            terminal.rests()
            os.kill(terminal.pid, signal.SIGKILL)
            terminal.ends()
        opens(fifo)
        with Terminal(person) as terminal:
            terminal.sees("Session site is done: It is green.")
            screen = terminal.rests()
    assert len(re.findall(r"✓ t-\w+ succeeded · cat gate · exit 0, .*\(session site", screen)) == 1


@pytest.mark.behaviour("B7")
def test_watched_output_is_reported_while_the_command_runs(person: Person) -> None:
    command = "echo fine; echo ERROR one; cat gate"
    with at_work(
        person, shell(command, background=True, watch="^ERROR"), says("I watch."), says("One error."), says("Ended.")
    ):
        fifo = gate(person)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("go")
            screen = terminal.sees("One error.")
            opens(fifo)
            terminal.sees("Ended.")
    assert re.search(r"● t-\w+ matched its watch pattern \(\^ERROR\) · .*\n    │ ERROR one\n", screen)
    assert "│ fine" not in screen
