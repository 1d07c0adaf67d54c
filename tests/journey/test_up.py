"""`outrider up` as people use it: it starts, is found, looked after, refused and stopped."""

import json
import os
import pty
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from bench.ports import free_port
from outrider.system.processes import identity_of, is_alive
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import OUTRIDER, PATIENCE, Person, held, interrupt
from tests.support.up import begin, entries, following, say, up


def test_it_says_where_it_listens_and_where_the_key_is_and_answers(person: Person) -> None:
    with ScriptedServer(script("hello there")) as model:
        person.uses(model.url)
        with up(person) as running:
            assert running.line == f"outrider up: {running.url} (key in {person.home}/api_key)"
            with running.client() as client:
                assert client.get("/health").json()["status"] == "ok"
                session = begin(client, "s")
                assert say(client, session, "hello").status_code == 202
                with following(client, session, until="idle") as events:
                    replies = [entry["text"] for entry in entries(events) if entry["type"] == "reply"]
            assert replies == ["hello there"]
            ran = running.ends()
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert not (person.home / "up.json").exists()


def test_it_takes_up_what_another_command_left_unfinished(person: Person) -> None:
    with ScriptedServer(script("finished after all")) as model:
        person.uses(model.url, OUTRIDER_FAIL="turn_started")
        assert person.types("run", "--session", "s", "do it").code == -signal.SIGKILL
        del person.environ["OUTRIDER_FAIL"]
        with up(person) as running, running.client() as client, following(client, "s", until="idle") as events:
            assert [entry["text"] for entry in entries(events) if entry["type"] == "reply"] == ["finished after all"]


def test_who_serves_a_home_stands_in_a_private_file_and_in_status(person: Person) -> None:
    with up(person) as running:
        found = json.loads((person.home / "up.json").read_text())
        assert (found["pid"], found["url"]) == (running.process.pid, running.url)
        assert (person.home / "up.json").stat().st_mode & 0o777 == 0o600
        status = person.types("up", "status")
        assert status.code == 0
        assert status.out.startswith(f"running: process {running.process.pid} at {running.url} since ")
        told = json.loads(person.types("up", "status", "--json").out)
        assert (told["state"], told["pid"], told["health"]["status"]) == ("well", running.process.pid, "ok")


def test_one_that_was_killed_is_told_from_one_that_runs(person: Person) -> None:
    assert (person.types("up", "status").code, person.types("up", "status").out) == (1, "not running\n")
    with up(person) as running:
        pid = running.process.pid
        running.ends(signal.SIGKILL)
        status = person.types("up", "status")
        assert status.code == 1
        assert status.out.startswith(f"not running: process {pid}, started ")
        assert (person.types("up", "stop").code, person.types("up", "stop").out) == (1, "not running\n")
    # Another process may have got its number meanwhile; that one is not taken for it, and surely not ended.
    stale = json.loads((person.home / "up.json").read_text())
    stale["pid"] = stale["mark"]["pid"] = os.getpid()
    (person.home / "up.json").write_text(json.dumps(stale))
    assert person.types("up", "stop").out == "not running\n"
    with up(person) as running:
        assert json.loads((person.home / "up.json").read_text())["pid"] == running.process.pid
    assert f"process {os.getpid()}) was killed: it left up.json behind" in person.types("up", "logs").out


def test_in_the_background_it_is_found_and_stopped(person: Person) -> None:
    began = person.types("up", "--detach", "--port", "0")
    assert (began.code, began.err) == (0, "")
    pid = json.loads((person.home / "up.json").read_text())["pid"]
    mark = identity_of(pid)
    try:
        lines = began.out.splitlines()
        assert lines[1] == f"process {pid} is in the background; `outrider up stop` ends it"
        again = person.types("up", "--port", "0")
        assert again.code == 75
        assert again.err.startswith(f"outrider: outrider up (process {pid}) serves this home already at http://")
        stopped = person.types("up", "stop")
        assert (stopped.code, stopped.out) == (0, f"stopped: process {pid} has left\n")
        assert not is_alive(mark)
    finally:
        if is_alive(mark):
            os.kill(pid, signal.SIGKILL)


def test_a_start_in_the_background_that_fails_says_why(person: Person) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = f"outrider: port {port} of 127.0.0.1 is in use; end what uses it, or name another with --port\n"
        for words in (("up", "--port", str(port)), ("up", "--detach", "--port", str(port))):
            ran = person.types(*words)
            assert (ran.code, ran.out, ran.err) == (75, "", said)
    assert not (person.home / "up.json").exists()


def test_a_home_in_use_by_a_program_that_does_not_make_way_is_named(person: Person) -> None:
    with held(person.home):
        ran = person.types("up", "--port", "0")
    assert ran.code == 75
    assert ran.err.startswith(f"outrider: Python (process {os.getpid()}) has been using {person.home} since ")


@pytest.mark.promise("S1")
def test_wider_than_loopback_needs_a_flag_and_a_key(person: Person) -> None:
    by_setting = person.types("up", "--port", "0", environ={"OUTRIDER_HTTP_HOST": "0.0.0.0"})
    assert (by_setting.code, by_setting.out) == (2, "")
    assert "say so on the command line too: outrider up --host 0.0.0.0" in by_setting.err
    without_key = person.types("up", "--host", "0.0.0.0", "--port", "0")
    assert (without_key.code, without_key.out) == (2, "")
    assert "make one with `outrider key create NAME` or set OUTRIDER_API_KEY" in without_key.err
    assert not (person.home / "api_key").exists()
    assert person.types("key", "create", "mine").code == 0
    with up(person, "--host", "0.0.0.0") as running:
        assert running.line.endswith("(`outrider key list` shows the keys)")
    with up(person, "--host", "0.0.0.0", environ={"OUTRIDER_API_KEY": "k" * 40}) as running:
        assert running.line.endswith("(key in OUTRIDER_API_KEY)")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_every_loopback_address_will_do(person: Person, host: str) -> None:
    with up(person, "--host", host) as running, running.client() as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "said"), [("no-such-host.invalid", "is no address of this machine"), ("192.0.2.1", "cannot be used")]
)
def test_an_address_that_is_not_ours_is_refused(person: Person, host: str, said: str) -> None:
    ran = person.types("up", "--host", host, "--port", "0")
    assert (ran.code, ran.out, said in ran.err, ran.err.count("\n")) == (2, "", True, 1)


def test_the_log_can_be_followed_before_there_is_one(person: Person) -> None:
    follower = person.begins("up", "logs", "--follow")
    try:
        with up(person) as running:
            assert follower.stdout
            heard = follower.stdout.readline().decode() + follower.stdout.readline().decode()
        assert f"listening at {running.url}" in heard
        assert interrupt(follower).code == 0
    finally:
        if follower.poll() is None:
            follower.kill()
            follower.communicate()


def test_somebody_at_a_terminal_sees_short_lines_of_what_happens(person: Person) -> None:
    terminal, side = pty.openpty()
    with os.fdopen(terminal, "rb", 0) as shown, os.fdopen(side, "wb", 0) as stderr:
        command = [OUTRIDER, "up", "--port", "0"]
        with subprocess.Popen(command, env=person.environ, stdout=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdout
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        lines = [line[9:] for line in shown.read(65_536).decode().splitlines()]
    assert lines[-2:] == ["up: told to leave by SIGINT", "up: left"]


def test_the_log_is_shown_in_short_lines_or_as_it_is(person: Person) -> None:
    assert person.types("up", "logs").code == 2
    with up(person):
        pass
    shown = person.types("up", "logs", "-n", "1").out
    assert " up: listening at http://127.0.0.1:" in shown
    assert json.loads(person.types("up", "logs", "-n", "1", "--json").out)["logger"] == "outrider.up"


def test_the_unit_for_systemd_names_this_home_and_spares_commands(person: Person) -> None:
    unit = person.types("up", "--print-unit", "--port", "9000", environ={"OUTRIDER_HOME": "/tmp/a b/100%"})
    lines = unit.out.splitlines()
    assert unit.code == 0
    assert 'Environment="OUTRIDER_HOME=/tmp/a b/100%%"' in lines
    assert "KillMode=process" in lines
    start = next(line for line in lines if line.startswith("ExecStart="))
    assert start.endswith(" -P -m outrider up --port 9000")
    assert not Path("/tmp/a b").exists()


def test_options_of_up_are_not_taken_for_its_commands(person: Person) -> None:
    ran = person.types("up", "--port", str(free_port()), "status")
    assert (ran.code, ran.err) == (
        2,
        "outrider: options of `outrider up` do not belong to `status`; see `outrider up --help`\n",
    )
