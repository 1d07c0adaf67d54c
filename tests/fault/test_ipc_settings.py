"""An owner is killed and its clients have other settings: no turn fails because of who takes over."""

import os
import signal
from pathlib import Path

import pytest

from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person, ended, kinds
from tests.journey.tmux import Terminal
from tests.support.up import up

pytestmark = [pytest.mark.promise("L1"), pytest.mark.promise("L3")]

SLOW = ScriptRule("^glacial", ((Stall("stream"), says("it has melted")),))
QUICK = ScriptRule("^quick", ((Stall("stream"), says("here it is at long last", delay=0.5)),))
NOTHING_SET = {"OUTRIDER_MODEL": "", "OUTRIDER_MODEL_URL": "", "OUTRIDER_MODEL_KEY": ""}
CANNOT_RUN = "this turn was started with openai-chat:scripted, which cannot be used now"


def without_model(person: Person, tmp_path: Path) -> Person:
    """The same person in a shell where no model is set."""
    other = Person(tmp_path / "another shell")
    other.environ = {name: text for name, text in person.environ.items() if name not in NOTHING_SET}
    other.project = person.project
    return other


def types_of(person: Person, session: str) -> list[str]:
    return kinds(person.types("sessions", "show", session, "--json").lines)


def test_a_run_without_the_model_leaves_its_turn_to_a_process_that_has_it(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (tmp_path / "another shell").mkdir()
    with ScriptedServer(Script(rules=(SLOW,))) as server:
        person.uses(server.url)
        other = without_model(person, tmp_path)
        with up(person) as there:
            waiting = other.begins("run", "-s", "ice", "glacial")
            server.wait(1)
            there.process.kill()
            ran = ended(waiting)
        assert (ran.code, ran.out) == (1, ""), ran
        assert CANNOT_RUN in ran.err
        assert "Your message is saved. To continue: outrider resume ice" in ran.err
        assert types_of(person, "ice") == ["input", "started", "resumed"]
        again = other.types("resume", "ice")
        assert (again.code, CANNOT_RUN in again.err) == (1, True), again
        server.release()
        assert person.types("resume", "ice").out == "[ice]\nit has melted\n\n"


def test_a_run_with_the_settings_of_the_owner_takes_over_and_runs_the_turns_of_others(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (tmp_path / "another shell").mkdir()
    with ScriptedServer(Script(rules=(SLOW, QUICK))) as server:
        person.uses(server.url)
        other = without_model(person, tmp_path)
        with up(person) as there:
            first = other.begins("run", "-s", "ice", "glacial")
            server.wait(1)
            second = person.begins("run", "-s", "fire", "quick")
            server.wait(2)
            there.process.kill()
            server.wait(4)
            server.release()
            assert [ended(process).out for process in (first, second)] == [
                "it has melted\n",
                "here it is at long last\n",
            ]


@pytest.mark.needs("tmux")
def test_an_idle_chat_without_the_model_shows_what_it_leaves_unfinished(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (tmp_path / "another shell").mkdir()
    with ScriptedServer(Script(rules=(SLOW,))) as server:
        person.uses(server.url)
        with up(person) as there, Terminal(without_model(person, tmp_path), "chat") as terminal:
            terminal.rests()
            waiting = person.begins("run", "-s", "ice", "glacial")
            server.wait(1)
            waiting.send_signal(signal.SIGTERM)
            ended(waiting)
            os.kill(there.process.pid, signal.SIGKILL)
            screen = terminal.sees("which cannot be used now")
            assert screen.count("which cannot be used now") == 1
            assert "This chat now runs the turns, with practice" in screen
            assert screen.splitlines()[-1].startswith("practice · ")
            assert types_of(person, "ice") == ["input", "started", "resumed"]
            server.release()
            assert person.types("resume", "ice").out == "[ice]\nit has melted\n\n"
            terminal.rests()
        assert types_of(person, "ice") == ["input", "started", "resumed", "resumed", "reply", "ended"]
