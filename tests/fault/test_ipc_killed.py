"""Owners that are killed while others wait: every client gets its reply once, and nothing is done twice."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from outrider.system.lock import last_holder
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person, ended
from tests.support.pay import bills_paid, install_pay

CLIENTS = 6


@pytest.mark.promise("L1")
@pytest.mark.promise("L1b")
@pytest.mark.promise("L2")
@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
@pytest.mark.promise("L5")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_client_of_killed_owners_gets_its_reply_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    person = Person(tmp_path)
    person.environ["PYTHONPATH"] = install_pay(tmp_path / "plugins")
    rules = tuple(
        ScriptRule(
            rf"pay bill {n}\b",
            ((says("paying now", call("pay", bill=str(n)), delay=0.2),), (says(f"paid {n}", delay=0.2),)),
        )
        for n in range(CLIENTS)
    )
    with ScriptedServer(Script(rules=rules)) as server:
        person.uses(server.url)
        up = person.begins("up", "--port", "0")
        assert up.stdout
        assert up.stdout.readline()
        runs = [person.begins("run", "--json", "-s", f"s{n}", f"pay bill {n}") for n in range(CLIENTS)]
        server.wait(1)
        killed = _kill_owners(person.home, up, runs, chance)
        results = [ended(run) for run in runs]
        ended(up)
    survivors = [ran for run, ran in zip(runs, results, strict=True) if run.pid not in killed]
    assert len(killed) == 3
    for n, ran in enumerate(results):
        if ran not in survivors:
            continue
        assert (ran.code, ran.lines[-1]["text"]) == (0, f"paid {n}"), ran
        entries = [line for line in ran.lines if "seq" in line and line["type"] != "finished"]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        assert sum(entry["type"] == "ended" for entry in entries) == 1
    paid = bills_paid(person.project)
    assert len(paid) == len(set(paid))


def _kill_owners(
    home: Path, up: "subprocess.Popen[bytes]", runs: "list[subprocess.Popen[bytes]]", chance: random.Random
) -> set[int]:
    """Kill `up` and then two of its successors, each at a random moment."""
    killed: set[int] = set()
    processes = {process.pid: process for process in (up, *runs)}
    deadline = time.monotonic() + PATIENCE
    while len(killed) < 3:
        assert time.monotonic() < deadline, "no process took over the home"
        owner = last_holder(home).pid
        if owner in processes and owner not in killed and processes[owner].poll() is None:
            time.sleep(chance.uniform(0.05, 0.6))
            os.kill(owner, signal.SIGKILL)
            processes[owner].wait(PATIENCE)
            killed.add(owner)
        time.sleep(0.01)
    return killed
