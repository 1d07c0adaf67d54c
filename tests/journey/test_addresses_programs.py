"""Where a turn answers to while notices arrive in it: the real programs, real commands, a real terminal."""

import json
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

import outrider
from outrider.core.events import Answered, Result
from outrider.testing.scripted_model import ScriptedModel, ScriptedReply, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.at_work import opens, shell
from tests.journey.support import PATIENCE, Person
from tests.journey.tmux import Terminal
from tests.support.cutting import until
from tests.support.turn_requests import turn_requests
from tests.support.up import Event, begin, entries, following, say, up

pytestmark = [
    pytest.mark.needs("sandbox"),
    pytest.mark.behaviour("B2"),
    pytest.mark.behaviour("B3"),
    pytest.mark.behaviour("B6"),
]
ASKING = call("shell", command="true", needs=["network"], why="to fetch the list")
PROBE = says(
    "", call("shell", command="true", background=True), call("delegate", work="look it up", background=True), ASKING
)
NOT_LATER = ["background_started", False, "done", None, "not run"]
"""What the calls of PROBE lead to where nothing is delivered later and nobody can answer."""


def outcome(results: list[str]) -> list[Any]:
    """What the calls of PROBE led to: two results, as status and `notify`, and whether the third call ran."""
    *first, asked = results[-3:]
    found = [json.loads(text) for text in first]
    return [*(one.get(name) for one in found for name in ("status", "notify")), asked.partition(":")[0]]


@contextmanager
def scripted(person: Person, *lines: ScriptedReply) -> Generator[None]:
    """A model that says these lines, and "It is blue." in a child session; gates `build` and `hold` in the project."""
    child = ScriptRule("^look it up$", ((says("It is blue."),),))
    with ScriptedServer(Script(tuple((line,) for line in lines), (child,))) as server:
        person.uses(server.url)
        for name in ("build", "hold"):
            os.mkfifo(person.project / name)
        yield


def journal(client: httpx2.Client, is_last: Callable[[Event], bool]) -> list[Event]:
    """The entries of session `s` up to this one."""
    found: list[Event] = []
    with following(client, "s") as events:
        for event in events:
            found += [event] if "seq" in event else []
            if found and is_last(found[-1]):
                return found
    raise AssertionError("a stream of events has no end")


def is_notice(event: Event) -> bool:
    return event["type"] == "input" and event.get("source") == "task"


def until_running(client: httpx2.Client, command: str) -> None:
    def find() -> bool | None:
        return any(task["command"] == command for task in client.get("/v1/tasks?open=true").json()["tasks"]) or None

    until(find)


def complete(client: httpx2.Client) -> str:
    """The text of a completion in session `s`."""
    request = turn_requests("go on")["chat"]
    answer = client.post(request.path, json=request.body, headers={"x-session-id": "s"})
    return answer.json()["choices"][0]["message"]["content"]


def run_in_pipe(person: Person) -> str:
    ran = person.types("run", "-s", "s", "go on")
    assert ran.code == 0, ran.err
    return ran.out.strip()


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("surface", ["completion", "pipe"])
def test_a_command_of_the_chat_that_ends_in_another_turn_changes_no_promise_there(person: Person, surface: str) -> None:
    lines = [shell("cat build", background=True), says("I will tell you."), shell("cat hold"), PROBE, says("All said.")]
    with (
        scripted(person, *lines),
        up(person) as running,
        running.client() as client,
        ThreadPoolExecutor(1) as pool,
        Terminal(person, "chat", "-s", "s") as terminal,
    ):
        terminal.rests()
        terminal.says("build it")
        terminal.sees("I will tell you.")
        answer: Future[str] = (
            pool.submit(complete, client) if surface == "completion" else pool.submit(run_in_pipe, person)
        )
        until_running(client, "cat hold")
        opens(person.project / "build", "linked\n")
        journal(client, is_notice)
        opens(person.project / "hold")
        said = answer.result(PATIENCE)
        with following(client, "s", until="idle") as events:
            results = [entry["text"] for entry in entries(events) if entry["type"] == "result"]
        terminal.sees("linked")
    assert (said, outcome(results)) == ("All said.", NOT_LATER)


@pytest.mark.needs("tmux")
def test_a_command_of_python_that_ends_in_a_turn_of_the_chat_takes_nothing_from_the_person(person: Person) -> None:
    lines = [shell("cat build", background=True), says("I will tell you."), shell("cat hold"), PROBE, says("All said.")]
    with scripted(person, *lines):
        model = ScriptedModel(*lines)
        with outrider.open_blocking(person.home, model=model, workspace=person.project) as agent:
            assert agent.say("build it", session="s").text == "I will tell you."
        with Terminal(person, "chat", "-s", "s") as terminal:
            terminal.rests()
            terminal.says("go on")
            terminal.sees("$ cat hold")
            opens(person.project / "build", "linked\n")
            terminal.sees("│ linked")
            opens(person.project / "hold")
            terminal.sees("? Allow this command with network access")
            terminal.says("y")
            terminal.sees("All said.")
            terminal.rests()
            terminal.says("/quit")
            assert terminal.ends() == 0
        with outrider.open_blocking(person.home, model=model) as agent:
            bodies = [entry.body for entry in agent.journal(agent.find("s"))]
    results = [body.text for body in bodies if isinstance(body, Result)]
    assert outcome(results) == ["background_started", True, "background_started", True, '{"status"']
    assert [(body.answer, body.person) for body in bodies if isinstance(body, Answered)] == [("once", "owner")]


def start_build_over_http(person: Person, client: httpx2.Client) -> None:
    """A build that session `s` starts for its sessions API, in the project's folder."""
    say(client, begin(client, "s"), "build it")
    until_running(client, "cat build")
    with following(client, "s", until="idle") as events:
        entries(events)


def test_a_pipe_moves_the_turn_of_a_notice_and_promises_nothing(person: Person) -> None:
    lines = [shell("cat build", background=True), says("I will tell you."), shell("cat hold"), PROBE, says("All said.")]
    with scripted(person, says("Hello."), *lines), ThreadPoolExecutor(1) as pool:
        assert person.types("run", "-s", "s", "hi").out == "Hello.\n"
        with up(person) as running, running.client() as client:
            start_build_over_http(person, client)
            opens(person.project / "build")
            until_running(client, "cat hold")
            said = pool.submit(run_in_pipe, person)
            journal(client, lambda entry: entry["type"] == "input" and entry["text"] == "go on")
            opens(person.project / "hold")
            assert said.result(PATIENCE) == "All said."
            with following(client, "s", until="idle") as events:
                results = [entry["text"] for entry in entries(events) if entry["type"] == "result"]
    assert outcome(results) == NOT_LATER


def test_a_pipe_leaves_a_question_of_the_turn_of_a_notice_pending(person: Person) -> None:
    lines = [shell("cat build", background=True), says("I will tell you."), says("", ASKING), says("All said.")]
    with scripted(person, says("Hello."), *lines):
        assert person.types("run", "-s", "s", "hi").out == "Hello.\n"
        with up(person) as running, running.client() as client:
            start_build_over_http(person, client)
            opens(person.project / "build")
            journal(client, lambda entry: entry["type"] == "asked")
            ran = person.types("run", "-s", "s", "go on")
            (question,) = client.get("/v1/questions").json()["questions"]
    assert (ran.code, ran.out, question["short_id"] in ran.err) == (1, "", True)
