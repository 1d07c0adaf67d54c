"""`outrider doctor`: finds problems, also where nothing else works."""

import json
import signal
from pathlib import Path

import pytest

from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import ErrorStatus, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran, ended, owned_home
from tests.support.in_process import InProcessPerson as Person
from tests.support.outer import require_landlock


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def marks(ran: Ran) -> list[tuple[str, str]]:
    """The mark and the name of each finding that is not fine."""
    lines = [line.split() for line in ran.out.splitlines() if line]
    return [(words[0], words[1]) for words in lines if words[0] in "!✗"]


@pytest.mark.needs("sandbox")
def test_a_fresh_installation_has_no_problem_but_no_real_model(person: Person) -> None:
    ran = person.types("doctor")
    assert (ran.code, ran.err, marks(ran)) == (0, "", [("!", "model")])
    assert not person.home.exists()


@pytest.mark.needs("sandbox")
def test_a_local_model_server_is_checked_and_prompted_only_with_online(person: Person) -> None:
    with ScriptedServer(script(says("ready"))) as server:
        person.uses(server.url)
        assert marks(person.types("doctor")) == []
        assert len(server.requests) == 0
        ran = person.types("doctor", "--online")
        assert "openai-chat:scripted answers: ready" in ran.out
    ran = person.types("doctor")
    assert (ran.code, marks(ran)) == (1, [("✗", "reach")])
    assert "1234567890" not in ran.out


@pytest.mark.needs("sandbox")
def test_online_finds_a_key_that_is_not_accepted(person: Person) -> None:
    with ScriptedServer(script(ErrorStatus(401, "bad key"))) as server:
        person.uses(server.url)
        ran = person.types("doctor", "--online")
    assert (ran.code, marks(ran)) == (1, [("✗", "reach")])
    assert "did not accept the key" in ran.out


def test_the_sandbox_is_named_with_what_it_does_not_hold(person: Person) -> None:
    require_landlock()
    ran = person.types("doctor", environ={"OUTRIDER_SANDBOX_MODE": "landlock"})
    assert "commands run in a sandbox without network access: Landlock, version " in ran.out
    assert "Landlock protects less than bubblewrap: a command can find out the attributes of files outside" in ran.out
    assert ("!", "sandbox") not in marks(ran)


def test_commands_without_a_sandbox_are_a_warning(person: Person) -> None:
    ran = person.types("doctor", environ={"OUTRIDER_SANDBOX_MODE": "off"})
    assert [mark for mark in marks(ran) if mark[1] == "sandbox"] == [("!", "sandbox")]
    assert "off: commands run without a sandbox" in ran.out


@pytest.mark.command("doctor")
def test_findings_are_available_as_json(person: Person) -> None:
    report = json.loads(person.types("doctor", "--json").out)
    assert report["ok"] is True
    assert {check["name"] for check in report["checks"]} >= {"outrider", "home", "disk", "settings", "store", "model"}


def test_a_key_in_the_environment_is_mentioned_and_never_printed(person: Person) -> None:
    ran = person.types("doctor", environ={"ANTHROPIC_API_KEY": "sk-ant-very-secret"})
    assert "ANTHROPIC_API_KEY is set" in ran.out
    assert "very-secret" not in ran.out


def test_bad_settings_are_a_finding(person: Person) -> None:
    person.home.mkdir(mode=0o700)
    (person.home / "config.toml").write_text("[model\n")
    ran = person.types("doctor")
    assert (ran.code, ran.err, marks(ran)) == (1, "", [("✗", "settings")])
    assert "config.toml: line 1" in ran.out


def test_a_home_that_is_a_file_is_a_finding(person: Person) -> None:
    person.home.write_text("")
    ran = person.types("doctor")
    assert (ran.code, ran.err, marks(ran)[0]) == (1, "", ("✗", "home"))


@pytest.mark.needs("sandbox")
def test_a_home_others_can_read_is_a_finding(person: Person) -> None:
    person.home.mkdir()
    person.home.chmod(0o755)
    ran = person.types("doctor")
    assert (ran.code, marks(ran)) == (0, [("!", "home"), ("!", "model")])
    assert f"chmod 700 {person.home}" in ran.out


def test_a_damaged_store_is_reported_and_its_readable_content_is_kept(person: Person) -> None:
    person.types("run", "-s", "s", "hello")
    store = person.home / "store.db"
    content = bytearray(store.read_bytes())
    content[:100] = bytes(100)
    store.write_bytes(content)
    ran = person.types("doctor")
    assert (ran.err, ("!", "store") in marks(ran)) == ("", True)
    assert "The store was damaged" in ran.out
    assert "hello" in person.types("sessions", "show", "s").out


@pytest.mark.needs("sandbox")
def test_a_home_in_use_is_reported_with_the_process_that_uses_it(person: Person) -> None:
    with ScriptedServer(script(Stall("headers"))) as server:
        person.uses(server.url)
        process = person.begins("run", "take your time")
        server.wait(1)
        ran = person.types("doctor")
        process.send_signal(signal.SIGTERM)
        ended(process)
        assert (ran.code, marks(ran)) == (0, [])
        assert f"✓ store     outrider run (process {process.pid}) uses it and can read it" in ran.out
        assert marks(person.types("doctor")) == [("!", "turns")]
        with owned_home(person.home):
            assert marks(person.types("doctor")) == [("!", "store")]
