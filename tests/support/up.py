"""A real `outrider up`, and an HTTP client for it."""

import json
import select
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.journey.support import PATIENCE, Person, Ran, ended

Event = dict[str, Any]


class Running:
    """A process of `outrider up` that listens."""

    def __init__(self, process: "subprocess.Popen[bytes]", line: str, home: Path) -> None:
        self.process = process
        self.line = line
        self.url = line.split()[2]
        self._home = home

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def key(self) -> str:
        """The key that the first start created."""
        return (self._home / "api_key").read_text().strip()

    @contextmanager
    def client(self) -> Generator[httpx2.Client]:
        """A client with that key."""
        with caller(self.url, self.key) as client:
            yield client

    def ends(self, number: int = signal.SIGTERM) -> Ran:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return ended(self.process)


@contextmanager
def up(person: Person, *options: str, environ: Mapping[str, str] | None = None) -> Generator[Running]:
    """Run `outrider up` during the block, on a free port unless the options name one."""
    words = options if "--port" in options else ("--port", "0", *options)
    process = person.begins("up", *words, environ=environ)
    try:
        yield Running(process, _first_line(process), person.home)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


def _first_line(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout
    assert select.select([process.stdout], [], [], PATIENCE)[0], "it printed nothing"
    line = process.stdout.readline().decode().strip()
    assert line.startswith("outrider up: http://"), (line, ended(process))
    return line


@contextmanager
def caller(url: str, key: str) -> Generator[httpx2.Client]:
    """A client with this key, or without one when it is empty."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False) as client:
        yield client


def begin(client: httpx2.Client, name: str) -> str:
    """Create or find the session of this name; returns its id."""
    response = client.post("/v1/sessions", json={"name": name})
    assert response.status_code in (200, 201), response.text
    return response.json()["id"]


def say(client: httpx2.Client, session: str, text: str, key: str = "") -> httpx2.Response:
    headers = {"idempotency-key": key} if key else {}
    return client.post(f"/v1/sessions/{session}/inputs", json={"text": text}, headers=headers)


@contextmanager
def following(client: httpx2.Client, session: str, after: int = 0, until: str = "") -> Generator[Iterator[Event]]:
    """The events of a session after an entry, including deltas."""
    headers = {"last-event-id": str(after)} if after else {}
    with client.stream("GET", f"/v1/sessions/{session}/events", params={"until": until}, headers=headers) as stream:
        assert stream.status_code == 200
        yield (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


def entries(events: Iterator[Event]) -> list[Event]:
    """Those of these events that are journal entries."""
    return [event for event in events if "seq" in event and event["type"] != "idle"]
