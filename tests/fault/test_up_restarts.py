"""`outrider up` stopped or killed in the middle of a turn: nothing that was accepted is lost or repeated."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from bench.ports import free_port
from bench.restart_soak import Verdict, soak
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person
from tests.support.up import Event, begin, entries, following, say, up


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.promise("L1")
@pytest.mark.promise("L3")
@pytest.mark.promise("L9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_turn_is_finished_after_the_restart_and_a_reconnected_stream_sees_it(
    person: Person, number: int
) -> None:
    port = free_port()
    seen: list[Event] = []
    with ScriptedServer(script([Stall("stream"), says("all is well")])) as model:
        person.uses(model.url)
        with up(person, "--port", str(port)) as running, running.client() as client:
            session = begin(client, "s")
            assert say(client, session, "how are things?").status_code == 202
            with following(client, session) as events:
                for event in events:
                    if "seq" in event:
                        seen.append(event)
                    if event["type"] == "started":
                        break
                model.wait(1)
                ran = running.ends(number)
                left = list(_rest(events))
        if number == signal.SIGKILL:
            assert ran.code == -number
        else:
            assert (ran.code, ran.err) == (0, "")
            assert [event["type"] for event in left if event["type"] != "delta"] == ["error"]
            assert "restarting" in left[-1]["message"]
        with up(person, "--port", str(port)) as running, running.client() as client:
            with following(client, session, after=seen[-1]["seq"], until="idle") as events:
                seen += entries(events)
            with following(client, session, until="idle") as events:
                assert entries(events) == seen
    assert [entry["seq"] for entry in seen] == list(range(1, len(seen) + 1))
    kinds = ["input", "started", "resumed", "reply", "ended"]
    assert [entry["type"] for entry in seen] == kinds
    assert (seen[2].get("crashed", True), seen[3]["text"]) == (number == signal.SIGKILL, "all is well")


def _rest(events: Iterator[Event]) -> list[Event]:
    """The rest of a stream, whether it was ended or cut."""
    rest: list[Event] = []
    with suppress(httpx2.TransportError):
        rest.extend(events)
    return rest


@pytest.mark.promise("L1")
@pytest.mark.promise("L9")
def test_an_input_that_arrives_during_the_drain_is_accepted_and_answered_after_the_restart(person: Person) -> None:
    with ScriptedServer(script([Stall("stream"), says("one")], says("two"))) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as client:
            session = begin(client, "s")
            say(client, session, "first")
            model.wait(1)
            with socket.create_connection(("127.0.0.1", running.port), 60) as late:
                body = b'{"text":"second"}'
                late.sendall(_head(client, session, len(body)) + body[:5])
                assert client.get("/health").status_code == 200  # By now the other request is being read.
                running.process.send_signal(signal.SIGTERM)
                _wait_until(lambda: not _listens(running.port))
                late.sendall(body[5:])
                answer = late.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 202 ")
            assert (running.process.wait(PATIENCE), len(model.requests)) == (0, 1)
        with up(person) as running, running.client() as client, following(client, session, until="idle") as events:
            journal = entries(events)
    assert [entry["text"] for entry in journal if entry["type"] == "input"] == ["first", "second"]
    assert journal[-1]["type"] == "ended"


def _head(client: httpx2.Client, session: str, length: int) -> bytes:
    return (
        f"POST /v1/sessions/{session}/inputs HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: {client.headers['authorization']}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except ConnectionError:
        return False
    return True


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.promise("L1b")
@pytest.mark.promise("L9")
def test_a_chat_completion_cut_by_a_restart_is_answered_when_repeated_with_its_key(person: Person) -> None:
    request = {"model": "outrider", "messages": [{"role": "user", "content": "how are things?"}]}
    key = {"idempotency-key": "k1"}
    port = free_port()
    with ScriptedServer(script([Stall("stream"), says("all is well")])) as model:
        person.uses(model.url)
        with up(person, "--port", str(port)) as running, running.client() as client:
            with ThreadPoolExecutor() as pool:
                response = pool.submit(client.post, "/v1/chat/completions", json=request, headers=key)
                model.wait(1)
                assert running.ends().code == 0
                cut = response.result(PATIENCE)
            assert (cut.status_code, cut.headers["retry-after"], cut.json()["error"]["code"]) == (
                503,
                "1",
                "unavailable",
            )
        with up(person, "--port", str(port)) as running, running.client() as client:
            again = [client.post("/v1/chat/completions", json=request, headers=key) for _ in range(2)]
        assert [answer.json()["choices"][0]["message"]["content"] for answer in again] == ["all is well"] * 2
        assert len(model.requests) == 2


@pytest.mark.promise("L9")
def test_a_second_signal_does_not_wait_for_a_request_that_never_ends(person: Person) -> None:
    with up(person) as running, running.client() as client:
        session = begin(client, "s")
        with socket.create_connection(("127.0.0.1", running.port), 60) as late:
            late.sendall(_head(client, session, 10) + b"{")
            say(client, session, "seen after the other request")
            running.process.send_signal(signal.SIGTERM)
            _wait_until(lambda: not _listens(running.port))
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(PATIENCE) == 0
            assert late.recv(100).startswith(b"HTTP/1.1 503 ")


@pytest.mark.promise("L9")
def test_a_request_that_never_ends_delays_the_shutdown_for_a_bounded_time(person: Person) -> None:
    with up(person) as running, running.client() as client:
        session = begin(client, "s")
        with socket.create_connection(("127.0.0.1", running.port), 60) as late:
            late.sendall(_head(client, session, 10) + b"{")
            say(client, session, "seen after the other request")
            assert running.ends().code == 0


@pytest.mark.promise("L12")
def test_a_signal_before_it_listens_stops_it_gracefully(person: Person) -> None:
    person.types("up", "status")
    for number in range(6):
        process = person.begins("up", "--port", "0")
        time.sleep(0.03 * number)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
        process.communicate()
    with up(person) as running:
        assert running.ends().code == 0


@pytest.mark.promise("L1")
@pytest.mark.promise("L1b")
@pytest.mark.promise("L9")
def test_rolling_restarts_under_load_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    verdict = soak(tmp_path, restarts=10, seed=3)
    assert verdict == Verdict(10, verdict.acknowledged, 0, 0, 0, 0)
    assert verdict.acknowledged > 10
