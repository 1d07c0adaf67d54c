"""Chats that share a home with each other and with other commands, in real terminals."""

import os
import signal
import time
from pathlib import Path

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran
from tests.journey.tmux import WITHIN, Terminal
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import up

pytestmark = pytest.mark.needs("tmux")

HI = ScriptRule("^hi", ((says("hello there"),),))
SECOND = ScriptRule("^second", ((says("the second answer"),),))
THIRD = ScriptRule("^third", ((says("the third answer"),),))
SLOW = ScriptRule("^slow", ((Stall("stream"), says("it is done at last")),))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WITHIN
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, "the process does not end"
        time.sleep(0.05)


def test_a_run_shares_the_session_of_a_chat(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, SECOND))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "talk") as terminal:
            terminal.rests()
            assert person.types("run", "hi") == Ran(0, "hello there\n", "")
            terminal.says("second")
            terminal.sees("the second answer")
            assert person.types("run", "-s", "talk", "hi") == Ran(0, "hello there\n", "")
            terminal.sees("hello there")


def test_two_chats_on_one_session_see_the_same_events_and_one_survives_the_other(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, SECOND, THIRD, SLOW))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "talk") as first:
            first.rests()
            first.says("hi")
            first.sees("hello there")
            with Terminal(person, "chat", "-s", "talk") as other:
                other.sees("hello there")
                other.rests()
                other.says("second")
                first.sees("the second answer")
                other.sees("the second answer")
                os.kill(first.pid, signal.SIGKILL)
                wait_until_gone(first.pid)
                other.says("third")
                other.sees("the third answer")
                other.rests()


def test_two_chats_on_a_new_name_share_the_session_from_its_first_message(person: Person) -> None:
    with ScriptedServer(Script(rules=(SLOW, SECOND))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "trio") as first, Terminal(person, "chat", "-s", "trio") as other:
            first.rests()
            other.rests()
            first.says("slow")
            server.wait(1)
            other.sees("› slow")
            other.sees("· working")
            other.presses("C-c")
            first.sees("■ Stopped")
            other.rests()
            other.says("second")
            for terminal in (first, other):
                terminal.sees("the second answer")
                assert terminal.screen.count("the second answer") == 1


def test_a_chat_continues_its_turn_when_the_owner_is_killed(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, SLOW))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "a") as owner:
            owner.rests()
            with Terminal(person, "chat", "-s", "b") as client:
                client.rests()
                client.says("slow")
                server.wait(1)
                os.kill(owner.pid, signal.SIGKILL)
                client.sees("it is done at last")
                client.rests()


def test_a_question_is_answered_from_another_terminal(person: Person) -> None:
    run = call("shell", command="echo ran >> ran", needs=["network"])
    asks = ScriptRule("^go", ((says("", run),), (says("all done"),)))
    with ScriptedServer(Script(rules=(asks,))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "talk") as terminal:
            terminal.rests()
            terminal.says("go")
            terminal.sees("[o]nce")
            with Terminal(person, "chat", "-s", "talk") as other:
                other.sees("[o]nce")
                other.says("n")
                terminal.sees("all done")
                other.sees("all done")


def test_a_chat_hands_over_to_up_is_its_client_and_takes_over_when_it_stops(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, SECOND, THIRD))) as server:
        person.uses(server.url)
        with Terminal(person, "chat", "-s", "talk") as terminal:
            terminal.rests()
            terminal.says("hi")
            terminal.sees("hello there")
            with up(person) as there:
                terminal.says("second")
                terminal.sees("the second answer")
                with there.client() as client:
                    assert client.get("/v1/sessions").json()["sessions"][0]["name"] == "talk"
                assert person.types("up", "stop").code == 0
            terminal.says("third")
            terminal.sees("the third answer")
            terminal.rests()
