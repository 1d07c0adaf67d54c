"""The chat at a terminal: the real program in a real terminal."""

import os
import re
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

pytestmark = pytest.mark.needs("tmux")


def user_messages(request: RecordedRequest) -> list[Any]:
    return [message["content"] for message in request.body["messages"] if message["role"] == "user"]


def in_order(screen: str, *texts: str) -> bool:
    """Whether these texts are on the screen in this order, each once."""
    positions = [screen.find(text) for text in texts]
    return -1 not in positions and positions == sorted(positions) and all(screen.count(text) == 1 for text in texts)


def test_the_greeting_names_the_model_the_workspace_and_help(person: Person) -> None:
    with Terminal(person) as terminal:
        screen = terminal.rests()
        terminal.says("hello")
        terminal.sees("practice model", times=2)
        terminal.rests()
    assert in_order(screen, "built-in practice model", "OPENAI_API_KEY", "Workspace:", "/help", "new session · idle")


@pytest.mark.command("chat")
def test_calls_and_the_reply_are_printed_in_order(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    with Terminal(person, "chat") as terminal:
        terminal.rests()
        terminal.says("list the files")
        terminal.sees("• a.txt")
        screen = terminal.rests()
    assert in_order(screen, "› list the files", "⚙ list", "• a.txt")


def test_messages_typed_during_a_turn_are_queued_and_answered_in_order(person: Person) -> None:
    words = [f"message {n}" for n in range(1, 6)]
    with ScriptedServer(script([Stall(), says("The first is done.")], says("All five are read."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("begin")
            server.wait(1)
            for text in words:
                terminal.says(text)
            terminal.sees("5 queued")
            server.release()
            terminal.sees("All five are read.")
            screen = terminal.rests()
    assert user_messages(server.requests[1]) == ["begin", "\n\n".join(words)]
    assert in_order(screen, "› begin", "The first is done.", *(f"› {text}" for text in words), "All five are read.")


def test_ctrl_c_stops_the_turn_but_not_the_chat_and_keeps_the_input_line(person: Person) -> None:
    with ScriptedServer(script([Stall(), says("never seen")], says("Here again."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("begin")
            server.wait(1)
            terminal.types("go on")
            terminal.presses("C-c")
            terminal.sees("■ Stopped")
            terminal.presses("Enter")
            terminal.sees("Here again.")
            screen = terminal.rests()
    assert in_order(screen, "› begin", "■ Stopped", "› go on", "Here again.")
    assert "never seen" not in screen


def test_ctrl_c_without_a_turn_clears_the_line_and_then_says_how_to_leave(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.types("not meant")
        terminal.sees("› not meant")
        terminal.presses("C-c")
        terminal.waits(lambda screen: "not meant" not in screen, "an empty line")
        terminal.presses("C-c")
        terminal.sees("Press Ctrl-D to leave")
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
    assert user_messages(server.requests[-1]) == ["first\nsecond\nthird", "pasted\nas one\n日本語"]


def test_slash_commands_run_and_errors_take_one_line(person: Person) -> None:
    with ScriptedServer(script(says("The *only* reply."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            for typed, expected in (
                ("/stats", "did you mean /status?"),
                ("/model anthropix:x", "did you mean anthropic:x?"),
                ("/switch nowhere", "there is no session 'nowhere'; /sessions shows all sessions"),
                ("/tail t-none", "there is no task 't-none'; /tasks shows all tasks"),
                ("/help", "Alt-Enter, Ctrl-J"),
                ("/compact", "nothing to summarise"),
                ("//words", "The only reply."),
                ("/model", "openai-chat:scripted ·"),
                ("/search only", "The *only* reply."),
                ("/compact", "will be summarised"),
                ("/export page.md", "Exported to"),
                ("/export page.md", "/export FILE"),
                ("/new other", "New session"),
                ("/switch session-1", "Session session-1 in"),
                ("/sessions", "› session-1"),
                ("/status", "tokens  "),
            ):
                terminal.says(typed)
                terminal.sees(expected)
            terminal.says("/quit")
            assert terminal.ends() == 0
    assert [user_messages(request) for request in server.requests] == [["/words"]]
    page = person.project / "page.md"
    assert ("The *only* reply." in page.read_text(), stat.S_IMODE(page.stat().st_mode)) == (True, 0o600)


def test_another_model_is_used_from_the_next_turn_on(person: Person) -> None:
    with ScriptedServer(script(says("One."))) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("/model openai-chat:other")
            terminal.sees("This session uses openai-chat:other")
            terminal.says("hello")
            terminal.sees("One.")
            terminal.rests()
    assert [request.body["model"] for request in server.requests] == ["other"]


@pytest.mark.parametrize("options", [("-c",), ("-s", "session-1"), ()])
def test_a_turn_interrupted_by_a_kill_is_finished_when_the_chat_starts_again(
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
        assert in_order(screen, "› tell me", "Resumed after a crash", "A long story.", "Its end.")
    else:
        assert in_order(screen, "Resuming the unfinished turn of session session-1", "session-1 is done: A long story.")


def test_leaving_during_a_turn_says_how_to_finish_it(person: Person) -> None:
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


@pytest.mark.parametrize("name", ["moved", "other"])
def test_a_chat_continues_a_session_without_its_folder_in_the_one_that_is_named(person: Person, name: str) -> None:
    first, there = person.project / "first", person.project / name
    first.mkdir()
    person.types("run", "-s", "s", "-w", "first", "hello")
    first.rename(person.project / "moved")
    there.mkdir(exist_ok=True)
    (there / "a.txt").write_text("what is in the file\n")
    with Terminal(person, "chat", "-s", "s", "-w", name) as terminal:
        terminal.rests()
        terminal.says("read a.txt")
        terminal.sees("what is in the file")
        terminal.presses("C-d")
        assert terminal.ends() == 0
        screen = terminal.screen
    assert "works in" in screen
    assert "from now on" in screen
    refused = person.types("run", "-s", "s", "-w", ".", "hi")
    assert (refused.code, str(there) in refused.err) == (2, True)


def test_the_end_of_a_background_turn_is_printed_without_disturbing_the_input_line(person: Person) -> None:
    with ScriptedServer(script([Stall(), says("The build is green.")])) as server:
        person.uses(server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("build it")
            server.wait(1)
            terminal.says("/new")
            terminal.sees("+1 session")
            terminal.types("half a thou")
            terminal.sees("› half a thou")
            server.release()
            terminal.sees("session-1 is done: The build is green.")
            terminal.types("ght")
            screen = terminal.sees("› half a thought")
    assert in_order(screen, "session-1 is done", "› half a thought")


def test_a_rejected_key_ends_the_turn_with_one_line_and_the_chat_continues(person: Person) -> None:
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


def test_a_message_that_is_not_accepted_is_put_back_into_the_input_line(person: Person) -> None:
    with Terminal(person, OUTRIDER_LIMITS_INPUT="10") as terminal:
        terminal.rests()
        terminal.says("far too long a message")
        terminal.sees("the limit is 10 (limits.input)")
        terminal.waits(lambda screen: screen.splitlines()[-2].rstrip() == "› far too long a message", "the line again")


def test_no_text_of_a_model_or_a_file_controls_the_terminal(person: Person) -> None:
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
    assert in_order(screen, "Workspace:", "› look", "safe words", "the end")


def test_a_resize_keeps_the_input_line_and_the_messages(person: Person) -> None:
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


def test_the_input_history_is_kept_and_only_its_owner_can_read_it(person: Person) -> None:
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


def test_no_history_is_kept_when_it_is_switched_off(person: Person) -> None:
    with Terminal(person, OUTRIDER_CHAT_HISTORY="false") as terminal:
        terminal.rests()
        terminal.says("/sessions")
        terminal.sees("no sessions yet")
    assert not (person.home / "chat_history").exists()


def test_tab_completes_a_command(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.types("/sta")
        terminal.sees("show the session, its model")
        terminal.presses("Tab", "Enter")
        terminal.sees("created with your first message")


def test_a_dumb_terminal_gets_plain_lines(person: Person) -> None:
    with ScriptedServer(script(says("Plain **words**."))) as server:
        person.uses(server.url)
        with Terminal(person, TERM="dumb") as terminal:
            terminal.sees("/help")
            terminal.says("hello")
            terminal.sees("Plain **words**.")
            terminal.presses("C-d")
            assert terminal.ends() == 0


def test_without_a_terminal_the_error_names_the_alternative(person: Person) -> None:
    assert person.types() == Ran(2, "", 'outrider: the chat needs a terminal; without one, use: outrider run "…"\n')


def test_an_idle_chat_uses_less_than_60_mb_of_memory(person: Person) -> None:
    with Terminal(person) as terminal:
        terminal.rests()
        terminal.says("hello")
        terminal.sees("practice model", times=2)
        terminal.rests()
        status = Path(f"/proc/{terminal.pid}/status")
        if not status.exists():
            pytest.skip("this system has no /proc")
        match = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    assert match is not None
    assert int(match[1]) < 60_000
