"""`outrider run`, as a person and a script use it, against a scripted model over HTTP."""

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.app import RecordedRequest
from outrider.testing.scripted_server.script import ErrorStatus, Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran, ended, interrupt, kinds
from tests.support.in_process import InProcessPerson as Person

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def user_messages(request: RecordedRequest) -> list[Any]:
    return [message["content"] for message in request.body["messages"] if message["role"] == "user"]


def reads_a_file() -> Script:
    return script(says("let me look", call("read", path="a.txt")), says("it says *hello*"))


@pytest.mark.command("run")
def test_stdout_holds_the_reply_and_nothing_else(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    with ScriptedServer(reads_a_file()) as server:
        person.uses(server.url)
        ran = person.types("run", "what", "does", "a.txt", "say?")
    assert ran == Ran(0, "it says *hello*\n", "")
    assert user_messages(server.requests[0]) == ["what does a.txt say?"]


def test_the_default_model_answers_without_any_setting(person: Person) -> None:
    ran = person.types("run", "hello")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.strip()


def test_stdin_is_the_message_or_is_appended_where_a_dash_asks_for_it(person: Person) -> None:
    with ScriptedServer(script(says("ok"))) as server:
        person.uses(server.url)
        person.types("run", stdin=b"from a pipe\n")
        person.types("run", "-", stdin="\ufefföffne das\n".encode())
        person.types("run", "summarise", "this:", "-", stdin=b"one\ntwo\n")
        person.types("run", "leave stdin alone", stdin=b"one\ntwo\n")
    assert [user_messages(request) for request in server.requests] == [
        ["from a pipe"],
        ["öffne das"],
        ["summarise this:\n\none\ntwo"],
        ["leave stdin alone"],
    ]


def test_json_prints_every_entry_and_delta_and_ends_with_the_result_of_the_turn(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    with ScriptedServer(reads_a_file()) as server:
        person.uses(server.url)
        lines = person.types("run", "--json", "-s", "notes", "look").lines
    assert kinds(lines) == ["input", "started", "reply", "result", "reply", "ended", "finished"]
    assert "".join(line["text"] for line in lines if line.get("kind") == "text") == "let me lookit says *hello*"
    last = lines[-1]
    assert {name: last[name] for name in ("name", "text", "outcome", "steps", "error")} == {
        "name": "notes",
        "text": "it says *hello*",
        "outcome": "done",
        "steps": 2,
        "error": "",
    }
    assert [line["seq"] for line in lines if "seq" in line] == [1, 2, 3, 4, 5, 6, 6]


def test_a_failed_turn_says_why_in_one_line_and_still_prints_its_text(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    with ScriptedServer(
        script(says("let me look", call("read", path="a.txt")), ErrorStatus(400, "no thanks"))
    ) as server:
        person.uses(server.url)
        ran = person.types("run", "look")
    assert (ran.code, ran.out) == (1, "let me look\n")
    assert ran.err.count("\n") == 1
    assert "refused the request (400): no thanks" in ran.err


def test_a_named_session_continues_where_it_ended(person: Person) -> None:
    with ScriptedServer(script(says("hello Ada"), says("you are Ada"))) as server:
        person.uses(server.url)
        person.types("run", "-s", "me", "I am Ada")
        assert person.types("run", "--session", "me", "who am I?").out == "you are Ada\n"
    assert user_messages(server.requests[1]) == ["I am Ada", "who am I?"]


def test_a_repeated_key_returns_the_same_reply_without_asking_the_model(person: Person) -> None:
    with ScriptedServer(script(says("paid"), says("paid twice"))) as server:
        person.uses(server.url)
        first = person.types("run", "--key", "invoice 7", "pay it")
        again = person.types("run", "--key", "invoice 7", "pay it")
        elsewhere = person.types("run", "--key", "invoice 7", "-s", "other", "pay it")
    assert (first, again, elsewhere) == (Ran(0, "paid\n", ""),) * 3
    assert len(server.requests) == 2


def test_ctrl_c_stops_the_turn_and_the_session_continues_from_there(person: Person) -> None:
    rules = (
        ScriptRule("wait", ((Stall("stream"), says("this will never be said whole")),)),
        ScriptRule("now", ((says("yes"),),)),
    )
    with ScriptedServer(Script(rules=rules)) as server:
        person.uses(server.url)
        process = person.begins("run", "--json", "-s", "s", "wait")
        assert process.stdout is not None
        while b'"kind":"text"' not in process.stdout.readline():
            pass
        ran = interrupt(process)
        assert (ran.code, ran.err) == (130, "outrider: stopped\n")
        assert [ran.lines[-1][name] for name in ("type", "outcome", "error")] == [
            "finished",
            "interrupted",
            "stopped by Ctrl-C",
        ]
        assert ran.lines[-1]["text"]
        assert ran.lines[-1]["text"] in person.types("sessions", "show", "s").out
        assert person.types("resume").out == "no unfinished turns\n"
        assert person.types("run", "-s", "s", "now?") == Ran(0, "yes\n", "")


def test_a_shutdown_leaves_the_turn_to_be_resumed(person: Person) -> None:
    with ScriptedServer(script((Stall("headers"), says("finished after all")))) as server:
        person.uses(server.url)
        process = person.begins("run", "-s", "s", "take your time")
        server.wait(1)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == Ran(143, "", "outrider: the turn is not finished; to finish it: outrider resume s\n")
        assert person.types("resume", "s") == Ran(0, "[s]\nfinished after all\n\n", "")
    entries = person.types("sessions", "show", "s", "--json").lines
    assert [line.get("crashed", True) for line in entries if line["type"] == "resumed"] == [False]


def test_a_killed_turn_is_mentioned_and_finished_by_the_model_it_started_with(person: Person) -> None:
    with ScriptedServer(script((Stall("headers"), says("one")), says("two"))) as server:
        person.uses(server.url)
        process = person.begins("run", "-s", "old", "--model", "openai-chat:special", "go")
        server.wait(1)
        process.kill()
        ended(process)
        other = person.types("run", "-s", "new", "hi", environ={"OUTRIDER_MODEL": "practice"})
        hint = "outrider: other sessions have 1 unfinished turn; to finish: outrider resume\n"
        assert (other.code, other.err) == (0, hint)
        line = person.types("resume", "--json").lines[-1]
        assert [line[name] for name in ("type", "name", "text", "outcome")] == ["finished", "old", "one", "done"]
        assert person.types("resume", "old") == Ran(0, "no unfinished turns in old\n", "")
    assert [request.body["model"] for request in server.requests] == ["special", "special"]


def test_a_message_to_a_session_with_an_unfinished_turn_becomes_part_of_it(person: Person) -> None:
    with ScriptedServer(script((Stall("headers"), says("both heard")))) as server:
        person.uses(server.url)
        process = person.begins("run", "-s", "s", "first")
        server.wait(1)
        process.kill()
        ended(process)
        ran = person.types("run", "-s", "s", "second")
    assert ran == Ran(
        0, "both heard\n", "outrider: session 's' has an unfinished turn; this message becomes part of it\n"
    )
    assert user_messages(server.requests[-1]) == ["first\n\nsecond"]


def test_images_reach_the_model(person: Person) -> None:
    (person.project / "dot.png").write_bytes(PIXEL)
    with ScriptedServer(script(says("a dot"))) as server:
        person.uses(server.url)
        assert person.types("run", "--image", "dot.png", "what is it?") == Ran(0, "a dot\n", "")
    assert base64.b64encode(PIXEL).decode() in json.dumps(server.requests[0].body)


def test_a_turn_that_takes_longer_than_its_timeout_fails(person: Person) -> None:
    with ScriptedServer(script(Stall("headers"))) as server:
        person.uses(server.url)
        ran = person.types("run", "--timeout", "1", "hurry")
    assert ran == Ran(1, "", "outrider: stopped after 1 s (--timeout)\n")


def test_quiet_prints_only_errors_on_stderr(person: Person) -> None:
    with ScriptedServer(script(says("ok"), ErrorStatus(400, "no"))) as server:
        person.uses(server.url, OUTRIDER_TYPO="1")
        assert "OUTRIDER_TYPO" in person.types("run", "-s", "s", "hi").err
        ran = person.types("run", "-q", "-s", "s", "hi")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "OUTRIDER_TYPO" not in ran.err


@pytest.mark.needs("terminal")
def test_a_terminal_shows_calls_as_they_run_and_obeys_no_control_character(person: Person) -> None:
    (person.project / "a.txt").write_text("hello\n")
    replies = script(says("let me look", call("read", path="a.txt")), says("red\x1b[31m \x07\u009bbell"))
    with ScriptedServer(replies) as server:
        person.uses(server.url)
        code, screen = person.types_at_a_terminal("run", "look")
        piped = person.types("run", "-s", "piped", "look")
    assert code == 0
    assert "let me look" in screen
    assert "✓ read path='a.txt' — 1 line" in screen
    assert "red[31m bell" in screen
    assert not {"\x1b[31m", "\x07", "\u009b"}.intersection(screen)
    assert piped.out == "red\x1b[31m \x07\u009bbell\n"


def test_the_workspace_is_the_current_folder_but_never_the_home_folder(person: Person) -> None:
    with ScriptedServer(script(says("ok"))) as server:
        person.uses(server.url)
        person.types("run", "-s", "here", "hi")
        person.types("run", "-s", "home", "hi", cwd=person.folder)
        person.types("run", "-s", "above", "hi", cwd=person.folder.parent)
    sessions = json.loads(person.types("sessions", "list", "--json").out)
    folders = {session["name"]: Path(session["workspace"]) for session in sessions}
    assert folders["here"] == person.project
    assert folders["home"].parent == folders["above"].parent == person.home / "workspaces"


def test_a_session_keeps_its_workspace_and_says_so(person: Person) -> None:
    elsewhere = person.project / "elsewhere"
    elsewhere.mkdir()
    with ScriptedServer(script(says("ok"))) as server:
        person.uses(server.url)
        person.types("run", "-s", "s", "hi")
        ran = person.types("run", "-s", "s", "hi", cwd=elsewhere)
        refused = person.types("run", "-s", "s", "-w", str(elsewhere), "hi")
    assert (ran.code, ran.err) == (
        0,
        f"outrider: session 's' works in {person.project}, not in the current folder\n",
    )
    assert (refused.code, refused.out) == (2, "")
