"""Later notifications over HTTP, promised only where they can be delivered: real commands, the real program."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.at_work import at_work, opens, shell
from tests.journey.support import Person
from tests.journey.tmux import Terminal
from tests.support.cutting import until
from tests.support.turn_requests import turn_requests
from tests.support.up import Event, Running, begin, entries, following, up

BUILD = "mkfifo gate; cat gate; exit 7"
SESSION_HEADER: Mapping[str, str] = {"x-session-id": "s"}


def ask(client: httpx2.Client, way: str, text: str = "build it") -> httpx2.Response:
    """Send a message to session `s` this way, and wait until the session is idle."""
    request = turn_requests(text)[way]
    answer = client.post(request.path, json=request.body, headers=SESSION_HEADER if request.channel == "chat" else {})
    assert answer.status_code in (200, 202), answer.text
    journal(client)
    return answer


def journal(client: httpx2.Client) -> list[Event]:
    """All entries of session `s`, once it is idle."""
    with following(client, "s", until="idle") as events:
        return entries(events)


def results(happened: list[Event]) -> list[dict[str, Any]]:
    return [json.loads(entry["text"]) for entry in happened if entry["type"] == "result"]


def notices(happened: list[Event]) -> list[Event]:
    return [entry for entry in happened if entry["type"] == "input" and entry.get("source") == "task"]


def until_told(client: httpx2.Client, count: int = 1) -> list[Event]:
    """The entries of session `s` up to its n-th notice."""
    seen: list[Event] = []
    with following(client, "s") as events:
        for event in events:
            seen += [event] if "seq" in event else []
            if len(notices(seen)) == count:
                break
    return seen


def let_go(person: Person, words: str = "linked\n") -> None:
    """Let the build in the only workspace end."""

    def made() -> Path | None:
        return next((path for path in person.home.glob("workspaces/*/gate")), None)

    opens(until(made), words)


@pytest.mark.behaviour("B1")
@pytest.mark.behaviour("B8")
@pytest.mark.parametrize("way", turn_requests(""))
def test_what_is_promised_depends_on_the_endpoint(person: Person, way: str) -> None:
    lines = [shell("true", background=True), says("started"), *[says("over")] * 2]
    with at_work(person, *lines), up(person) as running, running.client() as client:
        begin(client, "s")
        ask(client, way)
        happened = journal(client)
        (task,) = client.get("/v1/tasks").json()["tasks"]
    channel = turn_requests("")[way].channel
    (result,) = results(happened)
    assert happened[0]["address"].startswith(f"{channel}:")
    assert task["address"] == happened[0]["address"]
    assert (result["notify"], task["notify"]) == ((False, "never") if channel == "chat" else (True, "always"))


@pytest.mark.needs("sandbox")
@pytest.mark.needs("tmux")
@pytest.mark.behaviour("B3")
@pytest.mark.behaviour("B2")
def test_the_same_session_promises_nothing_over_completions_and_notifies_over_responses_and_in_the_chat(
    person: Person,
) -> None:
    lines = [shell("echo one", background=True, watch="one"), says("Poll it.")]
    lines += [shell(BUILD, background=True), says("I will tell you."), says("It failed with 7.")]
    lines += [shell("cat fifo", background=True), says("And here too."), says("Seen in the chat.")]
    with at_work(person, *lines) as model:
        with up(person) as running, running.client() as client:
            begin(client, "s")
            ask(client, "chat")
            (first,) = results(journal(client))
            until(lambda: client.get("/v1/tasks?open=true").json()["tasks"] == [] or None)
            quiet = journal(client)
            made = ask(client, "response").json()
            let_go(person)
            until_told(client)
            happened = journal(client)
            assert running.ends().code == 0
        _, second = results(happened)
        assert (first["notify"], "there will be no notice" in first["message"], "Poll it" in first["message"]) == (
            False,
            True,
            True,
        )
        assert (notices(quiet), quiet[-1]["type"]) == ([], "ended")
        assert (second["notify"], made["output"][0]["content"][0]["text"]) == (True, "I will tell you.")
        (notice,) = notices(happened)
        assert notice["address"].startswith("responses:")
        assert ("exit code: 7" in notice["text"], "| linked" in notice["text"]) == (True, True)
        assert [entry["text"] for entry in happened if entry["type"] == "reply"][-1] == "It failed with 7."
        (workspace,) = person.home.glob("workspaces/*")
        os.mkfifo(workspace / "fifo")
        with Terminal(person, "chat", "-s", "s") as terminal:
            terminal.rests()
            terminal.says("once more")
            terminal.sees("And here too.")
            opens(workspace / "fifo", "heard\n")
            terminal.sees("Seen in the chat.")
            screen = terminal.screen
    assert screen.count("│ heard") == 1
    assert len(model.requests) == 8


@pytest.mark.behaviour("B2")
def test_a_session_of_http_continued_by_a_command_promises_nothing_there(person: Person) -> None:
    lines = [says("hello"), shell("true", background=True), says("Look for yourself.")]
    with at_work(person, *lines):
        with up(person) as running, running.client() as client:
            begin(client, "s")
            ask(client, "input", "hi")
            assert running.ends().code == 0
        ran = person.types("run", "--json", "-s", "s", "build it")
    (result,) = results(ran.lines)
    assert (result["status"], result["notify"]) == ("background_started", False)


@pytest.mark.behaviour("B6")
def test_work_delegated_in_the_background_by_a_completion_is_done_within_it(person: Person) -> None:
    child = ScriptRule("^look it up$", ((says("it is blue"),),))
    parent = ((says("", call("delegate", work="look it up", background=True)),), (says("Blue, at once."),))
    with ScriptedServer(Script(replies=parent, rules=(child,))) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as client:
            begin(client, "s")
            answer = ask(client, "chat", "what colour?")
            (done,) = results(journal(client))
    assert answer.json()["choices"][0]["message"]["content"] == "Blue, at once."
    assert (done["status"], done["reply"], "it ran in the foreground" in done["note"]) == ("done", "it is blue", True)
    assert len(model.requests) == 3


@pytest.mark.behaviour("B4")
@pytest.mark.parametrize("way", ["input", "response"])
def test_a_task_that_ends_while_nothing_runs_is_reported_after_the_restart_and_in_the_next_prompt(
    person: Person, way: str
) -> None:
    lines = [shell(BUILD, background=True), says("I will tell you."), says("It failed with 7."), says("As I said: 7.")]
    with at_work(person, *lines) as model:
        with up(person) as running, running.client() as client:
            begin(client, "s")
            ask(client, way)
            (promised,) = results(journal(client))
            running.ends(signal.SIGKILL)
        let_go(person)
        with up(person) as running, running.client() as client:
            until_told(client)
            happened = journal(client)
            answer = answer_of(running, client, way)
            after = journal(client)
    (notice,) = notices(happened)
    assert promised["notify"] is True
    assert notice["address"] == happened[0]["address"]
    assert ("exit code: 7" in notice["text"], "| linked" in notice["text"]) == (True, True)
    assert [entry["text"] for entry in happened if entry["type"] == "reply"][1:] == [
        "I will tell you.",
        "It failed with 7.",
    ]
    assert answer == "As I said: 7."
    assert notice["text"] in [message["content"] for message in model.requests[-1].body["messages"]]
    assert len(notices(after)) == 1


def answer_of(running: Running, client: httpx2.Client, way: str) -> str:
    """The answer to one more message, sent the same way."""
    asked = ask(client, way, "and?")
    if way == "response":
        return asked.json()["output"][0]["content"][0]["text"]
    return [entry["text"] for entry in journal(client) if entry["type"] == "reply"][-1]


@pytest.mark.behaviour("B7")
@pytest.mark.parametrize("way", ["input", "response", "chat"])
def test_a_watched_output_is_reported_once_where_possible_even_over_a_restart(person: Person, way: str) -> None:
    command = "mkfifo gate; echo fine; echo ERROR one; cat gate"
    lines = [shell(command, background=True, watch="^ERROR"), says("I watch."), *[says("I see.")] * 3]
    with at_work(person, *lines):
        with up(person) as running, running.client() as client:
            begin(client, "s")
            ask(client, way)
            if way != "chat":
                until_told(client)
                journal(client)
            running.ends(signal.SIGKILL)
        with up(person) as running, running.client() as client:
            let_go(person)
            until(lambda: client.get("/v1/tasks?open=true").json()["tasks"] == [] or None)
            happened = journal(client) if way == "chat" else until_told(client, 2)
    answer = [notice["text"] for notice in notices(happened)]
    if way == "chat":
        assert (answer, results(happened)[0]["notify"]) == ([], False)
        return
    watched, ended = answer
    assert "matched its watch pattern (^ERROR)" in watched
    assert (watched.count("| ERROR one"), "| fine" in watched) == (1, False)
    assert ended.splitlines()[0].endswith("succeeded]")
