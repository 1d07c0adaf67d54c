"""Restarts under load: `./dev soak restarts`. Nothing may be lost or repeated.

Clients post inputs with idempotency keys to a real `outrider up` and repeat each until it is acknowledged. Meanwhile
this process stops the server, or sometimes kills it, and starts it again. In the end every acknowledged input is in its
journal once, and was answered once.
"""

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from bench.ports import free_port
from outrider.testing.scripted_model import ScriptedReply
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer

SESSIONS = 4
PATIENCE = 60


class Verdict(msgspec.Struct):
    """What was counted outside of Outrider."""

    restarts: int
    acknowledged: int
    lost: int
    """Acknowledged, and not in the journal."""
    repeated: int
    """In the journal more than once, or answered again."""
    unanswered: int
    """Without a reply in the end."""
    refused: int
    """Starts that failed, stops that were not clean, and unexpected responses."""


class Clients:
    """Clients of the API, each with a session of its own, that repeat every request until it succeeds."""

    def __init__(self, url: str, key: str, pause: float) -> None:
        self._url, self._key, self._pause = url, key, pause
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._post_messages, args=(n,)) for n in range(SESSIONS)]
        self.sessions: dict[int, str] = {}
        self.acknowledged: dict[str, list[str]] = {}
        self.odd: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _post_messages(self, n: int) -> None:
        with httpx2.Client(
            base_url=self._url, headers={"authorization": f"Bearer {self._key}"}, timeout=PATIENCE, trust_env=False
        ) as client:
            session: str = self._post(client, "/v1/sessions", {"name": f"s{n}"}, "")["id"]
            acknowledged = self.acknowledged.setdefault(session, [])
            count = 0
            while not self._stop.is_set():
                text = f"message {n}-{count}"
                self._post(client, f"/v1/sessions/{session}/inputs", {"text": text}, text)
                acknowledged.append(text)
                count += 1
                self._stop.wait(self._pause)

    def _post(self, client: httpx2.Client, path: str, body: Mapping[str, str], key: str) -> Any:
        """Repeat a request until it is acknowledged: after a lost or refused connection, and when asked to retry."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                answer = client.post(path, json=body, headers={"idempotency-key": key} if key else {})
            except httpx2.TransportError:
                self._stop.wait(0.02)
                continue
            if answer.status_code in (200, 201, 202):
                return answer.json()
            if answer.status_code not in (429, 503):
                self.odd.append(f"{answer.status_code} {answer.text}")
            self._stop.wait(0.05)
        raise TimeoutError(f"{path} was never acknowledged")


class Home:
    """A home in which `outrider up` is started repeatedly, on one port."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.odd: list[str] = []
        self._environ = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "OUTRIDER_HOME": str(folder / "home"),
            "OUTRIDER_MODEL": "openai-chat:scripted",
            "OUTRIDER_MODEL_URL": model,
            "OUTRIDER_MODEL_KEY": "k-1234567890",
            "OUTRIDER_LIMITS_QUEUE": "1000",
        }

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "outrider", "up", "--port", str(self.port)]
        child = subprocess.Popen(
            command, env=self._environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if not child.stdout or not select.select([child.stdout], [], [], PATIENCE)[0] or not child.stdout.readline():
            child.kill()
            raise RuntimeError(f"outrider up did not start: {child.communicate()[1].decode()}")
        return child

    def end(self, child: "subprocess.Popen[bytes]", number: int) -> None:
        begun = time.monotonic()
        child.send_signal(number)
        _, errors = child.communicate(timeout=PATIENCE)
        seconds = time.monotonic() - begun
        if child.returncode != (-number if number == signal.SIGKILL else 0) or errors or seconds > PATIENCE / 2:
            self.odd.append(f"ended with {child.returncode} after {seconds:.1f} s: {errors.decode()}")

    def journal(self, session: str, key: str) -> list[dict[str, Any]]:
        """All entries of a session, once it is idle."""
        url = f"http://127.0.0.1:{self.port}/v1/sessions/{session}/events"
        with httpx2.stream(
            "GET", url, params={"until": "idle"}, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE
        ) as answer:
            return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]


def soak(folder: Path, restarts: int, seed: int, kills: float = 0.2, pause: float = 0.02) -> Verdict:
    """Restart this many times while clients post; `kills` is the share of kills. Wait until idle, and count."""
    chance = random.Random(seed)
    says = ScriptedReply("answered", delay=0.01)
    with ScriptedServer(Script(rules=(ScriptRule("message", ((says,),)),))) as model:
        home = Home(folder, model.url)
        child = home.start()
        key = (folder / "home" / "api_key").read_text().strip()
        clients = Clients(f"http://127.0.0.1:{home.port}", key, pause)
        clients.start()
        try:
            for n in range(restarts):
                time.sleep(0.1 + chance.random() * 0.4)
                home.end(child, signal.SIGKILL if chance.random() < kills else signal.SIGTERM)
                child = home.start()
                if sys.stderr.isatty():
                    sys.stderr.write(f"\rrestart {n + 1} of {restarts} ")
        finally:
            clients.stop()
        verdict = _judge(home, clients, key, restarts)
        home.end(child, signal.SIGTERM)
        for odd in (*home.odd, *clients.odd):
            sys.stderr.write(f"{odd}\n")
        return msgspec.structs.replace(verdict, refused=len(home.odd) + len(clients.odd))


def _judge(home: Home, clients: Clients, key: str, restarts: int) -> Verdict:
    verdict = Verdict(restarts, 0, 0, 0, 0, 0)
    for session, acknowledged in clients.acknowledged.items():
        journal = [event for event in home.journal(session, key) if event["type"] != "delta"]
        inputs = Counter(entry["text"] for entry in journal if entry["type"] == "input")
        verdict.acknowledged += len(acknowledged)
        verdict.lost += sum(inputs[text] == 0 for text in acknowledged)
        verdict.repeated += sum(count > 1 for count in inputs.values())
        saw = [entry["saw"] for entry in journal if entry["type"] == "reply"]
        verdict.repeated += sum(not _inputs_between(journal, *pair) for pair in pairwise([0, *saw]))
        seen = max(saw, default=0)
        verdict.unanswered += sum(entry["type"] == "input" and entry["seq"] > seen for entry in journal)
    return verdict


def _inputs_between(journal: Sequence[Mapping[str, Any]], after: int, until: int) -> int:
    return sum(entry["type"] == "input" and after < entry["seq"] <= until for entry in journal)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak restarts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--kills", type=float, default=0.2, help="the share of restarts that are kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        verdict = soak(Path(name), options.restarts, options.seed, options.kills)
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    sys.exit(1 if verdict.lost + verdict.repeated + verdict.unanswered + verdict.refused else 0)


if __name__ == "__main__":
    main()
