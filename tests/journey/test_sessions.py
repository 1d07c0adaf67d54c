"""`outrider sessions` and `outrider resume`: sessions are listed, shown, searched, exported, renamed and deleted."""

import json
import re
from pathlib import Path

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import ErrorStatus, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran, ended
from tests.support.in_process import InProcessPerson as Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def writer(person: Person) -> Person:
    """A person with two sessions."""
    (person.project / "a.txt").write_text("hello\n")
    with ScriptedServer(script(says("let me look", call("read", path="a.txt")), says("it says hello"))) as server:
        person.uses(server.url, OUTRIDER_MODEL_PRICE_INPUT="1000", OUTRIDER_MODEL_PRICE_OUTPUT="0")
        person.types("run", "-s", "first", "what does a.txt say?")
    with ScriptedServer(script(ErrorStatus(400, "no thanks"))) as server:
        person.uses(server.url)
        person.types("run", "-s", "second", "über\talles")
    return person


def test_sessions_are_listed_latest_first_in_aligned_columns(writer: Person) -> None:
    folder = str(writer.project)
    assert writer.types("sessions", "list").out.splitlines() == [
        "NAME    UPDATED   STATE  TITLE                 WORKSPACE",
        f"second  just now  idle   über alles            {folder}",
        f"first   just now  idle   what does a.txt say?  {folder}",
    ]
    one = json.loads(writer.types("sessions", "list", "--json", "--limit", "1").out)
    assert [(session["name"], session["state"], session["head"]) for session in one] == [("second", "idle", 3)]


@pytest.mark.command("sessions")
def test_a_session_is_shown_as_a_transcript_with_calls_results_and_cost(writer: Person) -> None:
    transcript = writer.types("sessions", "show", "first").out
    plain = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "THEN", transcript)
    plain = re.sub(r"[\d,]+ tokens in, \d+ out, \$\d\.\d{4}", "SPENT", plain)
    assert plain.splitlines()[1:] == [
        "",
        "#1 THEN  you",
        "  what does a.txt say?",
        "#3 THEN  openai-chat:scripted",
        "  let me look",
        "  → read path='a.txt'",
        "#4 THEN  ✓ read path='a.txt' — 1 line",
        "#5 THEN  openai-chat:scripted",
        "  it says hello",
        "#6 THEN  done (2 steps, SPENT)",
        "",
    ]
    assert "failed: " in writer.types("sessions", "show", "second").out


def test_a_session_is_renamed_unless_another_has_that_name(writer: Person) -> None:
    renamed = writer.types("sessions", "rename", "first", "reading")
    assert (renamed.code, renamed.out) == (0, "renamed first to reading\n")
    taken = writer.types("sessions", "rename", "reading", "second")
    assert (taken.code, taken.err) == (2, "outrider: another session is named 'second'; choose another name\n")
    assert writer.types("sessions", "rename", "first", "x").code == 2
    assert [writer.types("sessions", "rename", "second", name).code for name in ("", " x", "a\nb")] == [2, 2, 2]
    sessions = json.loads(writer.types("sessions", "list", "--json").out)
    assert {session["name"] for session in sessions} == {"second", "reading"}


def test_a_part_of_a_session_can_be_shown_as_json_lines(writer: Person) -> None:
    lines = writer.types("sessions", "show", "first", "--json", "--after", "2", "--limit", "2").lines
    assert [(line["seq"], line["type"]) for line in lines] == [(3, "reply"), (4, "result")]
    assert lines[1]["text"].endswith("hello")


def test_messages_are_found_by_their_words(writer: Person) -> None:
    assert "first #5" in writer.types("sessions", "search", "says", "hello").out
    hits = json.loads(writer.types("sessions", "search", "--json", "alles").out)
    assert [(hit["name"], hit["seq"]) for hit in hits] == [("second", 1)]
    assert writer.types("sessions", "search", "nowhere") == Ran(0, "", "outrider: no matches\n")


def test_a_session_is_exported_as_one_document(writer: Person) -> None:
    document = json.loads(writer.types("sessions", "export", "first", "--format", "json").out)
    assert document["session"]["name"] == "first"
    assert [entry["type"] for entry in document["entries"]] == ["input", "started", "reply", "result", "reply", "ended"]
    assert writer.types("sessions", "export", "first", "-o", "first.md") == Ran(0, "", "")
    page = writer.project / "first.md"
    assert page.read_text() == writer.types("sessions", "export", "first").out
    assert page.read_text().startswith("# what does a.txt say?\n")
    assert "```\na.txt: lines 1–1 of 1\nhello\n```" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    page.write_text("mine")
    again = writer.types("sessions", "export", "first", "-o", "first.md")
    assert (again.code, page.read_text(), "add --force" in again.err) == (2, "mine", True)
    assert writer.types("sessions", "export", "first", "-o", "first.md", "--force") == Ran(0, "", "")
    assert page.read_text().startswith("# what does a.txt say?\n")
    assert writer.types("sessions", "export", "first", "-o", "no/such/folder").code == 2


@pytest.mark.needs("terminal")
def test_a_session_is_deleted_only_after_confirmation(writer: Person) -> None:
    assert writer.types("sessions", "delete", "first") == Ran(
        2, "", "outrider: deleting a session is permanent; to confirm, add --yes\n"
    )
    code, screen = writer.types_at_a_terminal("sessions", "delete", "first", answers=b"n\n")
    assert (code, "nothing was deleted" in screen) == (2, True)
    assert writer.types("sessions", "delete", "first", "--yes").code == 0
    assert writer.types("sessions", "show", "first").code == 2
    assert (writer.project / "a.txt").exists()
    code, screen = writer.types_at_a_terminal("sessions", "delete", "second", answers=b"y\n")
    assert (code, "deleted second" in screen) == (0, True)
    assert "no sessions yet" in writer.types("sessions", "list").out


def test_a_missing_session_is_reported(person: Person) -> None:
    for words in (["show", "x"], ["export", "x"], ["delete", "--yes", "x"]):
        assert person.types("sessions", *words) == Ran(
            2, "", "outrider: there is no session 'x'; `outrider sessions list` shows them\n"
        )


def test_resume_finishes_every_session_and_reports_the_one_that_fails(person: Person) -> None:
    with ScriptedServer(script(Stall("headers"))) as server:
        person.uses(server.url)
        for name in ("one", "two"):
            process = person.begins("run", "-s", name, "go")
            server.wait(len(server.requests) + 1 if name == "two" else 1)
            process.kill()
            ended(process)
        assert {line.split()[-3] for line in person.types("sessions", "list").out.splitlines()[1:]} == {"unfinished"}
    with ScriptedServer(script((ErrorStatus(400, "no thanks"), says("done")))) as server:
        person.uses(server.url)
        ran = person.types("resume")
    assert ran.code == 1
    assert sorted(ran.out.split()) == ["[one]", "[two]", "done"]
    assert ran.err.count("no thanks") == 1
    assert person.types("resume") == Ran(0, "no unfinished turns\n", "")


def test_sessions_are_listed_shown_and_exported_while_another_process_owns_the_home(writer: Person) -> None:
    with ScriptedServer(script(Stall("headers"))) as server:
        writer.uses(server.url)
        running = writer.begins("run", "-s", "third", "take your time")
        server.wait(1)
        table = writer.types("sessions", "list")
        transcript = writer.types("sessions", "show", "first")
        exported = writer.types("sessions", "export", "first")
        running.terminate()
        running.communicate(timeout=60)
    assert [line.split()[0] for line in table.out.splitlines()] == ["NAME", "third", "second", "first"]
    assert "it says hello" in transcript.out
    assert "it says hello" in exported.out
