"""Commands that share a home: one owns it, the others are its clients, and one of them takes over when it leaves."""

import base64
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.testing.scripted_model import ScriptedModel, call, says
from outrider.testing.scripted_server.app import RecordedRequest
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Ran, ended, interrupt, kinds
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import up

PIXEL = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
SLOW = "take your time"
HI = ScriptRule("^hi", ((says("hello there"),),))
HELD = ScriptRule(SLOW, ((Stall("stream"), says("it is done at last")),))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def last_user_message(request: RecordedRequest) -> str:
    """The last message of the person in a request."""
    return [message["content"] for message in request.body["messages"] if message["role"] == "user"][-1]


def keys_of(ran: Ran) -> list[set[str]]:
    """The keys of every JSON line but deltas, which a client that connects late may miss."""
    return [set(line) for line in ran.lines if line["type"] != "delta"]


def delta_keys(ran: Ran) -> set[frozenset[str]]:
    return {frozenset(line) for line in ran.lines if line["type"] == "delta"}


@contextmanager
def busy_run(person: Person, server: ScriptedServer) -> Generator["subprocess.Popen[bytes]"]:
    """A run that owns the home, while its model writes a reply."""
    earlier = len(server.requests)
    process = person.begins("run", "-s", "slow", "--json", SLOW)
    try:
        server.wait(earlier + 1)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdout and not process.stdout.closed:
            process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("owner", ["run", "up"])
def test_a_run_beside_another_process_looks_like_one_alone(person: Person, owner: str) -> None:
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        (person.project / "dot.png").write_bytes(PIXEL)
        alone, alone_json = person.types("run", "hi"), person.types("run", "--json", "hi")
        assert alone == Ran(0, "hello there\n", "")
        with up(person) if owner == "up" else busy_run(person, server):
            assert person.types("run", "hi") == alone
            ran = person.types("run", "--json", "hi")
            assert (ran.code, ran.err, kinds(ran.lines), keys_of(ran)) == (
                0,
                "",
                kinds(alone_json.lines),
                keys_of(alone_json),
            )
            assert delta_keys(ran) <= delta_keys(alone_json) == {frozenset({"type", "kind", "text"})}
            assert person.types("run", "--image", "dot.png", "hi") == alone
            assert base64.b64encode(PIXEL).decode() in json.dumps(server.requests[-1].body)
            assert person.types("run", "-s", "mine", "hi").out == "hello there\n"
            sessions = json.loads(person.types("sessions", "list", "--json").out)
            assert "mine" in [session["name"] for session in sessions]
            assert person.types("sessions", "delete", "--yes", "mine").code == 0
            assert person.types("sessions", "search", "hi").code == 0
            made = person.types("key", "create", "laptop", "--json")
            assert made.code == 0, made
            assert person.types("key", "revoke", json.loads(made.out)["id"]).code == 0


@pytest.mark.promise("L1b")
@pytest.mark.promise("L5")
def test_many_runs_at_once_on_one_home_are_each_answered_once(person: Person) -> None:
    rules = tuple(ScriptRule(rf"^say {n}$", ((says(f"this is {n}", delay=0.02),),)) for n in range(16))
    with ScriptedServer(Script(rules=rules)) as server:
        person.uses(server.url)
        ran = person.pipes("seq 0 15 | xargs -P 8 -I{} outrider run say {}")
        assert (ran.code, Counter(ran.out.splitlines())) == (0, Counter(f"this is {n}" for n in range(16))), ran
        assert Counter(last_user_message(request) for request in server.requests) == Counter(
            f"say {n}" for n in range(16)
        )


def test_an_owner_that_is_done_prints_its_reply_and_lets_the_reply_of_a_client_finish(person: Person) -> None:
    first = ScriptRule("^first", ((Stall("stream"), says("first is done")),))
    second = ScriptRule("^second", ((Stall("stream"), says("second is done")),))
    with ScriptedServer(Script(rules=(first, second))) as server:
        person.uses(server.url)
        owner = person.begins("run", "first")
        server.wait(1)
        client = person.begins("run", "second")
        server.wait(2)
        server.release()
        assert (ended(owner), ended(client)) == (Ran(0, "first is done\n", ""), Ran(0, "second is done\n", ""))
        assert len(server.requests) == 2


def test_two_runs_on_one_session_each_print_the_reply_to_their_own_message(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        with up(person):
            first = person.begins("run", "-s", "q", "--json", SLOW)
            server.wait(1)
            second = person.begins("run", "-s", "q", "hi")
            _wait_for_inputs(person, "q", 2)
            server.release()
            assert ended(second).out == "hello there\n"
            lines = ended(first).lines
    assert kinds(lines) == ["input", "started", "input", "reply", "reply", "ended", "finished"]
    assert (lines[-1]["text"], lines[-1]["outcome"]) == ("it is done at last", "done")


def _wait_for_inputs(person: Person, session: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while kinds(person.types("sessions", "show", session, "--json").lines).count("input") < count:
        assert time.monotonic() < deadline, "the input was not recorded"


@pytest.mark.promise("L3")
@pytest.mark.promise("L8")
def test_a_client_whose_owner_is_killed_during_a_reply_sees_every_entry_once_and_in_order(
    person: Person,
) -> None:
    reply = ScriptRule("^client", ((Stall("stream"), says("one two three four")),))
    with ScriptedServer(Script(rules=(HELD, reply))) as server:
        person.uses(server.url)
        with busy_run(person, server) as owner:
            client = person.begins("run", "--json", "-s", "g", "client")
            server.wait(2)
            lines = _read_until(client, "delta")
            owner.kill()
            rest = ended(client)
    lines += rest.lines
    assert rest.code == 0, rest
    assert kinds(lines) == ["input", "started", "resumed", "reply", "ended", "finished"]
    assert [line["seq"] for line in lines if "seq" in line][:-1] == [1, 2, 3, 4, 5]
    deltas = [line for line in lines if line["type"] == "delta"]
    cut = [line["kind"] for line in deltas].index("reset")
    assert "".join(line["text"] for line in deltas[cut + 1 :]) == lines[-1]["text"] == "one two three four"


def _read_until(process: "subprocess.Popen[bytes]", kind: str) -> list[dict[str, Any]]:
    assert process.stdout
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["type"] != kind:
        lines.append(json.loads(process.stdout.readline()))
    return lines


def test_ctrl_c_in_a_client_stops_its_turn_and_no_other(person: Person) -> None:
    with ScriptedServer(Script(rules=(HELD, ScriptRule("^also", ((Stall("headers"),),))))) as server:
        person.uses(server.url)
        with busy_run(person, server) as owner:
            client = person.begins("run", "-s", "g", "also slow")
            server.wait(2)
            assert interrupt(client) == Ran(130, "", "outrider: stopped\n")
            entries = person.types("sessions", "show", "g", "--json").lines
            assert (entries[-1]["type"], entries[-1]["outcome"]) == ("ended", "interrupted")
            server.release()
            assert ended(owner).lines[-1]["text"] == "it is done at last"


def test_a_client_that_is_terminated_leaves_its_turn_to_the_owner(person: Person) -> None:
    with ScriptedServer(
        Script(rules=(HELD, ScriptRule("^also", ((Stall("stream"), says("done without you")),))))
    ) as server:
        person.uses(server.url)
        with busy_run(person, server):
            client = person.begins("run", "-s", "g", "also slow")
            server.wait(2)
            client.send_signal(signal.SIGTERM)
            message = "outrider: the turn continues in another process: outrider sessions show g\n"
            assert ended(client) == Ran(143, "", message)
            server.release()
            assert person.types("run", "-s", "g", "--key", "k", "hi again").code == 0
            assert "done without you" in person.types("sessions", "show", "g").out


def test_the_timeout_of_a_client_stops_its_turn_and_no_other(person: Person) -> None:
    with ScriptedServer(Script(rules=(HELD, ScriptRule("^also", ((Stall("headers"),),))))) as server:
        person.uses(server.url)
        with busy_run(person, server) as owner:
            ran = person.types("run", "--timeout", "1", "also slow")
            assert ran == Ran(1, "", "outrider: stopped after 1 s (--timeout)\n")
            server.release()
            assert ended(owner).lines[-1]["text"] == "it is done at last"


def test_the_timeout_of_an_owner_does_not_apply_to_its_clients(person: Person) -> None:
    with ScriptedServer(Script(rules=(HELD, ScriptRule("^first", ((Stall("headers"),),))))) as server:
        person.uses(server.url)
        owner = person.begins("run", "--timeout", "2", "first")
        server.wait(1)
        client = person.begins("run", SLOW)
        server.wait(2)
        assert ended(owner).code == 1
        server.release()
        assert ended(client).out == "it is done at last\n"


@pytest.mark.promise("L9")
def test_up_takes_over_the_home_of_a_run_which_continues_as_its_client(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        with busy_run(person, server) as run, up(person) as there:  # it listens when the run has let go
            ran = ended(run)
            assert (ran.code, ran.lines[-1]["text"]) == (0, "it is done at last"), ran
            assert kinds(ran.lines) == ["input", "started", "resumed", "reply", "ended", "finished"]
            assert [line["crashed"] for line in ran.lines if line["type"] == "resumed"] == [False]
            assert person.types("run", "hi").out == "hello there\n"
            assert there.ends().code == 0
        assert [last_user_message(request) for request in server.requests] == [SLOW, SLOW, "hi"]


def test_a_run_that_is_terminated_while_up_takes_over_says_that_the_turn_continues(person: Person) -> None:
    with ScriptedServer(Script(rules=(HELD,))) as server:
        person.uses(server.url)
        with busy_run(person, server) as run:
            coming = person.begins("up", "--port", "0")
            _wait_for_line(person.home / "logs" / "outrider.log", "handing over the home")
            run.send_signal(signal.SIGTERM)
            assert ended(run).err == "outrider: the turn continues in another process: outrider sessions show slow\n"
            assert coming.stdout
            assert coming.stdout.readline()
            server.release()
            assert interrupt(coming).code == 0


def _wait_for_line(log: Path, words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not log.exists() or words not in log.read_text():
        assert time.monotonic() < deadline, f"{words!r} is not in the log"
        time.sleep(0.02)


def test_a_client_warns_when_its_owner_uses_another_model(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        with up(person) as there:
            ran = person.types("run", "hi", environ={"OUTRIDER_MODEL": "openai-chat:other"})
            by = f"outrider up (process {there.process.pid})"
            assert ran.err == f"outrider: {by} runs the turns, with its own settings: model openai-chat:scripted\n"
            assert person.types("run", "-q", "hi", environ={"OUTRIDER_MODEL": "openai-chat:other"}).err == ""
            elsewhere = {"OUTRIDER_MODEL": "practice"}
            for words in (("--model", "openai-chat:other"), ()):
                named = person.types("run", *words, "-s", "n", "hi", environ=elsewhere if not words else None)
                assert named == Ran(0, "hello there\n", "")
        assert [request.body["model"] for request in server.requests] == ["scripted", "scripted", "other", "other"]


def test_the_socket_of_a_killed_owner_is_replaced(person: Person) -> None:
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        with busy_run(person, server) as owner:
            owner.kill()
            ended(owner)
        left = person.home / "link"
        assert left.is_socket()
        assert person.types("run", "-q", "hi") == Ran(0, "hello there\n", "")
        assert not left.exists()


def test_a_home_with_a_very_long_path_is_shared_too(person: Person) -> None:
    home = person.folder / ("long " * 20) / ("folder " * 20) / "home"
    person.environ["OUTRIDER_HOME"] = str(home)
    with ScriptedServer(Script(rules=(HI, HELD))) as server:
        person.uses(server.url)
        with busy_run(person, server):
            assert person.types("run", "hi") == Ran(0, "hello there\n", "")
            assert (home / "link").stat().st_mode & 0o777 == 0o600


@pytest.mark.needs("sandbox")
def test_beside_a_python_program_commands_look_things_up_and_kill_tasks(person: Person) -> None:
    run = call("shell", command="sleep 1000", background=True)
    with outrider.open_blocking(person.home, model=ScriptedModel(says("", run), says("it runs"))) as agent:
        session = agent.session("mine")
        agent.post("go", session=session, address="terminal:test")
        agent.wait(agent.find("mine"))
        sessions = json.loads(person.starts("sessions", "list", "--json").out)
        assert [session["name"] for session in sessions] == ["mine"]
        assert "it runs" in person.starts("sessions", "show", "mine").out
        assert person.starts("permissions", "list").code == 0
        assert person.starts("questions", "list").out == "no pending questions\n"
        assert person.starts("key", "list").code == 0
        (task,) = agent.tasks(session, open_only=True)
        assert person.starts("tasks", "kill", task.id).code == 0
        assert [each.state for each in agent.tasks(session)] == ["killed"]


@pytest.mark.parametrize(
    "words",
    [("run", "hi"), ("sessions", "delete", "--yes", "mine"), ("key", "create", "x"), ("up", "--port", "0")],
)
def test_beside_a_python_program_nothing_is_changed_and_no_turn_runs(person: Person, words: tuple[str, ...]) -> None:
    model = ScriptedModel()
    with outrider.open_blocking(person.home, model=model) as agent:
        agent.session("mine")
        ran = person.starts(*words)
        assert (ran.code, ran.out, f"Python (process {os.getpid()})" in ran.err) == (75, "", True), ran
        assert ([session.name for session in agent.sessions()], model.prompts) == (["mine"], [])


def test_commands_that_only_look_things_up_do_not_hinder_each_other(person: Person) -> None:
    assert person.types("run", "-s", "mine", "hi").code == 0
    runs = [person.begins("sessions", "list", "--json") for _ in range(8)]
    for ran in [ended(run) for run in runs]:
        assert (ran.code, [session["name"] for session in json.loads(ran.out)]) == (0, ["mine"]), ran


def test_the_socket_is_private_to_its_user(person: Person, tmp_path: Path) -> None:
    with ScriptedServer(Script(rules=(HELD,))) as server:
        person.uses(server.url)
        with busy_run(person, server):
            modes = [path.stat().st_mode & 0o777 for path in (person.home, person.home / "link")]
    assert modes == [0o700, 0o600]
