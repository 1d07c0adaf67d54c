"""The chat as somebody at a terminal meets it: the real program in a real terminal."""

import os
import re
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.app import RecordedRequest
from outrider.testing.scripted_server.script import ErrorStatus, Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person, Ran
from tests.journey.tmux import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def said(heard: RecordedRequest) -> list[Any]:
    """What the person said in a request."""
    return [message["content"] for message in heard.body["messages"] if message["role"] == "user"]


def in_order(screen: str, *texts: str) -> bool:
    """Whether these stand on the screen one below the other, each once."""
    places = [screen.find(text) for text in texts]
    return -1 not in places and places == sorted(places) and all(screen.count(text) == 1 for text in texts)


def test_a_newcomer_is_told_the_model_the_folder_and_where_help_is(person: Person) -> None:
    with Terminal(person) as terminal:
        screen = terminal.rests()
        terminal.says("hello")
        terminal.sees("practice model", times=2)
        terminal.rests()
    assert in_order(screen, "built-in practice model", "OPENAI_API_KEY", "It works in", "/help", "new session · idle")


def test_a_job_with_files_shows_its_calls_and_its_answer(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    with Terminal(person, "chat") as terminal:
        terminal.rests()
        terminal.says("list the files")
        terminal.sees("• a.txt")
        screen = terminal.rests()
    assert in_order(screen, "› list the files", "⚙ list", "• a.txt")


def test_what_is_typed_while_the_agent_works_is_kept_and_answered_in_order(person: Person) -> None:
    words = [f"message {n}" for n in range(1, 6)]
    with ScriptedServer(script([Stall(), says("The first is done.")], says("All five are read."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("begin")
            server.wait(1)
            for text in words:
                terminal.says(text)
            terminal.sees("queued 5")
            server.release()
            terminal.sees("All five are read.")
            screen = terminal.rests()
    assert said(server.requests[1]) == ["begin", "\n\n".join(words)]
    assert in_order(screen, "› begin", "The first is done.", *(f"› {text}" for text in words), "All five are read.")


def test_ctrl_c_stops_the_turn_and_not_the_chat_and_keeps_what_is_being_typed(person: Person) -> None:
    with ScriptedServer(script([Stall(), says("never seen")], says("Here again."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("begin")
            server.wait(1)
            terminal.types("go on")
            terminal.presses("C-c")
            terminal.sees("■ stopped")
            terminal.presses("Enter")
            terminal.sees("Here again.")
            screen = terminal.rests()
    assert in_order(screen, "› begin", "■ stopped", "› go on", "Here again.")
    assert "never seen" not in screen


def test_ctrl_c_at_rest_clears_the_line_and_then_says_how_to_leave(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.types("not meant")
        terminal.sees("› not meant")
        terminal.presses("C-c")
        terminal.waits(lambda screen: "not meant" not in screen, "an empty line")
        terminal.presses("C-c")
        terminal.sees("Ctrl-D leaves")
        terminal.presses("C-d")
        assert terminal.ends() == 0
    assert person.types("sessions", "list", "--json").out.strip() == "[]"


def test_several_lines_typed_or_pasted_are_one_message(person: Person) -> None:
    with ScriptedServer(script(says("One."), says("Two."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.types("first")
            terminal.presses("M-Enter")
            terminal.types("second")
            terminal.presses("C-j")
            terminal.says("third")
            terminal.sees("One.")
            terminal.pastes("pasted\nas one\n日本語")
            terminal.sees("日本語")
            terminal.presses("Enter")
            terminal.sees("Two.")
            terminal.rests()
    assert said(server.requests[-1]) == ["first\nsecond\nthird", "pasted\nas one\n日本語"]


def test_commands_are_obeyed_and_mistakes_are_told_in_a_line(person: Person) -> None:
    with ScriptedServer(script(says("The *only* reply."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            for typed, seen in (
                ("/stats", "did you mean /status?"),
                ("/model anthropix:x", "did you mean anthropic:x?"),
                ("/help", "Alt-Enter, Ctrl-J"),
                ("/compact", "nothing to summarise"),
                ("//words", "The only reply."),
                ("/model", "openai-chat:scripted ·"),
                ("/search only", "The *only* reply."),
                ("/compact", "will be summarised"),
                ("/export page.md", "written to"),
                ("/export page.md", "/export FILE"),
                ("/new other", "a new session"),
                ("/switch session-1", "session session-1, in"),
                ("/sessions", "› session-1"),
                ("/status", "tokens  "),
            ):
                terminal.says(typed)
                terminal.sees(seen)
            terminal.says("/quit")
            assert terminal.ends() == 0
    assert [said(heard) for heard in server.requests] == [["/words"]]
    page = person.project / "page.md"
    assert ("The *only* reply." in page.read_text(), stat.S_IMODE(page.stat().st_mode)) == (True, 0o600)


def test_another_model_is_used_from_the_next_turn_on(person: Person) -> None:
    with ScriptedServer(script(says("One."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("/model openai-chat:other")
            terminal.sees("this session uses openai-chat:other")
            terminal.says("hello")
            terminal.sees("One.")
            terminal.rests()
    assert [heard.body["model"] for heard in server.requests] == ["other"]


@pytest.mark.parametrize("options", [("-c",), ("-s", "session-1"), ()])
def test_a_chat_killed_in_the_middle_of_a_turn_finishes_it_when_it_comes_back(
    person: Person, options: tuple[str, ...]
) -> None:
    with ScriptedServer(script([Stall("stream"), says("A long story.\n\nIts end.")])) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("tell me")
            terminal.sees("story")
            os.kill(terminal.pid, signal.SIGKILL)
            assert terminal.ends() == 128 + signal.SIGKILL
        with Terminal(person, "chat", *options) as terminal:
            screen = terminal.sees("Its end.")
            terminal.rests()
    if options:
        assert in_order(screen, "› tell me", "taken up again after a crash", "A long story.", "Its end.")
    else:
        assert in_order(
            screen, "taking up the unfinished turn of session session-1", "session-1 is done: A long story."
        )


def test_who_leaves_during_a_turn_is_told_how_it_goes_on(person: Person) -> None:
    with ScriptedServer(script([Stall(), says("It was finished later.")])) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "notes") as terminal:
            terminal.rests()
            terminal.says("begin")
            server.wait(1)
            terminal.presses("C-d")
            assert terminal.ends() == 0
            screen = terminal.screen
        resumed = person.types("resume")
    assert "outrider resume" in screen
    assert (resumed.code, "It was finished later." in resumed.out) == (0, True)


def test_a_turn_left_behind_is_told_of_without_disturbing_the_line(person: Person) -> None:
    with ScriptedServer(script([Stall(), says("The build is green.")])) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("build it")
            server.wait(1)
            terminal.says("/new")
            terminal.sees("+1 elsewhere")
            terminal.types("half a thou")
            terminal.sees("› half a thou")
            server.release()
            terminal.sees("session-1 is done: The build is green.")
            terminal.types("ght")
            screen = terminal.sees("› half a thought")
    assert in_order(screen, "session-1 is done", "› half a thought")


def test_a_refused_key_ends_the_turn_in_one_line_and_the_chat_goes_on(person: Person) -> None:
    with ScriptedServer(script([ErrorStatus(401), says("Now it works.")])) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("hello")
            terminal.sees("did not accept the key (401)")
            terminal.rests()
            terminal.says("again")
            screen = terminal.sees("Now it works.")
    assert len(re.findall(r"\(401\)", screen)) == 1


def test_a_message_that_cannot_be_taken_is_given_back(person: Person) -> None:
    with Terminal(person, OUTRIDER_LIMITS_INPUT="10") as terminal:
        terminal.rests()
        terminal.says("far too long a message")
        terminal.sees("at most 10 are taken")
        terminal.waits(lambda screen: screen.splitlines()[-2].rstrip() == "› far too long a message", "the line again")


def test_no_words_of_a_model_or_a_file_steer_the_terminal(person: Person) -> None:
    evil = "\x1b]0;taken over\x07\x1b[2J\x1b[Hsafe \x1b[31mwords\x1b[0m\r and \u202emore"
    (person.project / "\x1b[2Jodd.txt").write_text("x")
    rules = (ScriptRule("look", ((says(evil, call("list", path=".")),), (says("`\x1b[2J`the end"),))),)
    with ScriptedServer(Script(rules=rules)) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("look")
            terminal.sees("the end")
            screen = terminal.rests()
            title = terminal.ask("#{pane_title}")
    assert ("taken over" in title, "taken over" in screen) == (False, False)
    assert in_order(screen, "It works in", "› look", "safe words", "the end")


def test_a_change_of_size_keeps_the_line_and_what_was_said(person: Person) -> None:
    with Terminal(person, columns=100) as terminal:
        terminal.rests()
        terminal.says("hello")
        terminal.sees("practice model", times=2)
        terminal.types("会話 half typed")
        terminal.resizes(40, 20)
        terminal.sees("› 会話 half typed")
        terminal.resizes(120, 40)
        terminal.types(" and whole")
        screen = terminal.sees("› 会話 half typed and whole")
    assert screen.count("› hello") == 1


def test_what_was_typed_is_remembered_for_its_owner_alone(person: Person) -> None:
    history = person.home / "chat_history"
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.says("/sessions")
        terminal.sees("no sessions yet")
        terminal.presses("C-d")
        terminal.ends()
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.presses("Up")
        terminal.sees("› /sessions")
    assert (history.read_text(), stat.S_IMODE(history.stat().st_mode)) == ('"/sessions"\n', 0o600)


def test_nothing_typed_is_remembered_where_that_is_switched_off(person: Person) -> None:
    with Terminal(person, OUTRIDER_CHAT_HISTORY="false") as terminal:
        terminal.rests()
        terminal.says("/sessions")
        terminal.sees("no sessions yet")
    assert not (person.home / "chat_history").exists()


def test_a_command_is_completed_by_tab(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.types("/sta")
        terminal.sees("show the session, its model")
        terminal.presses("Tab", "Enter")
        terminal.sees("it is made with your first message")


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(person: Person) -> None:
    with ScriptedServer(script(says("Plain **words**."))) as server:
        person.uses(server.url)
        with Terminal(person, TERM="dumb") as terminal:
            terminal.sees("/help")
            terminal.says("hello")
            terminal.sees("Plain **words**.")
            terminal.presses("C-d")
            assert terminal.ends() == 0


def test_without_a_terminal_it_says_what_to_use_instead(person: Person) -> None:
    assert person.types() == Ran(2, "", 'outrider: the chat needs a terminal; without one: outrider run "…"\n')


def test_a_chat_at_rest_takes_less_than_sixty_megabytes(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.says("hello")
        terminal.sees("practice model", times=2)
        terminal.rests()
        status = Path(f"/proc/{terminal.pid}/status")
        if not status.exists():
            pytest.skip("this system has no /proc")
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    assert found is not None
    assert int(found[1]) < 60_000
