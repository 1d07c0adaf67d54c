"""Floods against a real `outrider up`: its memory stays flat, and other clients are served during and after them."""

import resource
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person
from tests.support.raw import Wire, head, memory, sockets
from tests.support.up import Running, begin, entries, following, say, up

MIB = 1024 * 1024
TEN_GB = 10_000_000_000
CHUNK = b"100000\r\n" + b"x" * MIB + b"\r\n"
CHUNKED = "transfer-encoding: chunked"


class Limited(Person):
    """A person whose commands have a limit on open files."""

    files = 256

    def begins(self, *words: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        process = super().begins(*words, environ=environ)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (self.files, self.files))
        return process


@pytest.fixture
def person(tmp_path: Path) -> Person:
    person = Person(tmp_path)
    person.environ["OUTRIDER_MODEL"] = "practice"
    return person


@contextmanager
def flat(running: Running, most: int) -> Generator[None]:
    """Check that its memory grows by no more than this."""
    before = memory(running.process.pid)
    yield
    grown = memory(running.process.pid) - before
    assert grown < most, f"{grown:,} bytes more"


def is_responsive(client: httpx2.Client) -> bool:
    """Whether a client gets a response."""
    messages = [{"role": "user", "content": "hello"}]
    answer = client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.promise("L7")
def test_a_body_of_ten_gigabytes_is_refused_early_and_not_stored(person: Person) -> None:
    with up(person) as running, running.client() as client:
        assert is_responsive(client)
        with flat(running, 64 * MIB):
            for key, status in ((running.key, 413), ("", 401), ("ork_made_up", 401)):
                with Wire(running.port) as wire:
                    wire.sends(head("/v1/chat/completions", CHUNKED, key=key))
                    assert wire.sends(CHUNK, TEN_GB // MIB) < 64 * MIB
                    assert wire.status() == status
            assert is_responsive(client)


@pytest.mark.promise("L7")
def test_a_body_shorter_or_longer_than_declared_is_no_request(person: Person) -> None:
    with up(person) as running, running.client() as client:
        for target in ("/v1/sessions", "/v1/chat/completions", "/v1/responses"):
            with Wire(running.port) as wire:
                wire.sends(head(target, "content-length: 1000", key=running.key) + b'{"name":"half"}')
        with Wire(running.port) as wire:
            wire.sends(head("/v1/sessions", "content-length: 2", key=running.key) + b'{}{"name":"more"}')
            assert wire.hears().count(b"HTTP/1.1 400 ") == 1
        assert is_responsive(client)
        assert not {"half", "more"} & {one["name"] for one in client.get("/v1/sessions").json()["sessions"]}
        assert 'status="500"' not in client.get("/metrics").text


@pytest.mark.promise("L7")
@pytest.mark.usefixtures("many_files")
def test_slow_clients_do_not_delay_others(person: Person) -> None:
    with up(person) as running, running.client() as client, ExitStack() as stack:
        assert is_responsive(client)
        with flat(running, 64 * MIB):
            for number in range(400):
                slow_head, slow_body, slow_stranger = (stack.enter_context(Wire(running.port)) for _ in range(3))
                slow_head.sends(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
                slow_stranger.sends(head("/v1/sessions", "content-length: 1000") + b"{")
                # Within the rate limit of one key.
                slow_body.sends(head("/v1/sessions", "content-length: 1000", key=running.key) + b"{")
                if number % 100 == 0:
                    assert is_responsive(client)
            assert is_responsive(client)


@pytest.fixture
def many_files() -> Generator[None]:
    """Raise the limit of open files of this process, so that it can flood another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.promise("L7")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(("kind", "room"), [(Person, 1_100), (Limited, Limited.files)])
def test_two_thousand_connections_are_limited_and_other_clients_are_served(
    tmp_path: Path, kind: type[Person], room: int
) -> None:
    person = kind(tmp_path)
    person.environ["OUTRIDER_MODEL"] = "practice"
    with up(person) as running, running.client() as client, ExitStack() as stack:
        assert is_responsive(client)
        with flat(running, 64 * MIB):
            for number in range(2_000):
                wire = stack.enter_context(Wire(running.port))
                if number % 2:
                    wire.sends(b"GET / HT")
                if number % 500 == 0:
                    with running.client() as newcomer:
                        assert is_responsive(newcomer)
                    assert sockets(running.process.pid) < room
            with running.client() as newcomer:
                assert is_responsive(newcomer)
            assert sockets(running.process.pid) < room
        stack.close()
        with running.client() as newcomer:
            assert is_responsive(newcomer)


@pytest.mark.promise("L7")
def test_unread_streams_use_bounded_memory_and_do_not_delay_others(person: Person) -> None:
    rounds, words = 30, "x" * 65_536
    with ScriptedServer(script(*[says(words) for _ in range(rounds + 5)])) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as client, ExitStack() as stack:
            session = begin(client, "loud")
            for _ in range(50):
                wire = stack.enter_context(Wire(running.port))
                wire.sends(head(f"/v1/sessions/{session}/events", key=running.key, method="GET"))
                assert wire.socket.recv(16) == b"HTTP/1.1 200 OK\r"
            speak(client, session, 5)
            with flat(running, 64 * MIB):
                speak(client, session, rounds)


def speak(client: httpx2.Client, session: str, rounds: int) -> None:
    """Run turns, one after the other, each followed to its end."""
    for _ in range(rounds):
        seq = say(client, session, "speak").json()["seq"]
        with following(client, session, after=seq, until="idle") as events:
            assert [entry["type"] for entry in entries(events)] == ["started", "reply", "ended"]
