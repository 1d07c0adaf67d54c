"""`outrider up`: start, status, stop, logs, and addresses that are refused."""

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
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import OUTRIDER, PATIENCE, interrupt, owned_home
from tests.support.cutting import until
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import begin, entries, following, say, up


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.command("up")
def test_it_prints_its_url_and_where_the_key_is_and_answers(person: Person) -> None:
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


def test_it_resumes_what_another_command_left_unfinished(person: Person) -> None:
    with ScriptedServer(script("finished after all")) as model:
        person.uses(model.url, OUTRIDER_FAIL="turn_started")
        assert person.types("run", "--session", "s", "do it").code == -signal.SIGKILL
        del person.environ["OUTRIDER_FAIL"]
        with up(person) as running, running.client() as client, following(client, "s", until="idle") as events:
            assert [entry["text"] for entry in entries(events) if entry["type"] == "reply"] == ["finished after all"]


def test_the_server_of_a_home_is_in_a_private_file_and_in_status(person: Person) -> None:
    with up(person) as running:
        server = json.loads((person.home / "up.json").read_text())
        assert (server["pid"], server["url"]) == (running.process.pid, running.url)
        assert (person.home / "up.json").stat().st_mode & 0o777 == 0o600
        status = person.types("up", "status")
        assert status.code == 0
        assert status.out.startswith(f"running: process {running.process.pid} at {running.url} since ")
        report = json.loads(person.types("up", "status", "--json").out)
        assert (report["state"], report["pid"], report["health"]["status"]) == ("well", running.process.pid, "ok")


def test_a_killed_server_is_not_mistaken_for_a_running_one(person: Person) -> None:
    assert (person.types("up", "status").code, person.types("up", "status").out) == (1, "not running\n")
    with up(person) as running:
        pid = running.process.pid
        running.ends(signal.SIGKILL)
        status = person.types("up", "status")
        assert status.code == 1
        assert status.out.startswith(f"not running: process {pid}, started ")
        assert (person.types("up", "stop").code, person.types("up", "stop").out) == (1, "not running\n")
    # Another process may have its pid now; that one is not taken for the server, and not stopped.
    stale = json.loads((person.home / "up.json").read_text())
    stale["pid"] = stale["mark"]["pid"] = os.getpid()
    (person.home / "up.json").write_text(json.dumps(stale))
    assert person.types("up", "stop").out == "not running\n"
    with up(person) as running:
        assert json.loads((person.home / "up.json").read_text())["pid"] == running.process.pid
    assert f"process {os.getpid()}) was killed; its up.json will be replaced" in person.types("up", "logs").out


def test_a_server_in_the_background_is_found_and_stopped(person: Person) -> None:
    began = person.starts("up", "--detach", "--port", "0")
    assert (began.code, began.err) == (0, "")
    pid = json.loads((person.home / "up.json").read_text())["pid"]
    identity = identity_of(pid)
    try:
        lines = began.out.splitlines()
        assert lines[1] == f"process {pid} runs in the background; to stop it: outrider up stop"
        again = person.starts("up", "--port", "0")
        assert again.code == 75
        assert again.err.startswith(f"outrider: outrider up (process {pid}) already serves this home at http://")
        stopped = person.types("up", "stop")
        assert (stopped.code, stopped.out) == (0, f"stopped process {pid}\n")
        assert not is_alive(identity)
    finally:
        if is_alive(identity):
            os.kill(pid, signal.SIGKILL)


def test_a_start_in_the_background_that_fails_says_why(person: Person) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        advice = "stop the program that uses it, or choose another port with --port"
        problem = f"outrider: port {port} on 127.0.0.1 is in use; {advice}\n"
        for words in (("up", "--port", str(port)), ("up", "--detach", "--port", str(port))):
            ran = person.starts(*words)
            assert (ran.code, ran.out, ran.err) == (75, "", problem)
    assert not (person.home / "up.json").exists()


def test_a_home_that_a_python_program_uses_is_refused_with_its_process(person: Person) -> None:
    with owned_home(person.home):
        ran = person.starts("up", "--port", "0")
    assert ran.code == 75
    assert ran.err.startswith(f"outrider: Python (process {os.getpid()}) has been using {person.home} since ")


@pytest.mark.promise("S1")
def test_an_address_beyond_loopback_needs_a_flag_and_a_key(person: Person) -> None:
    by_setting = person.starts("up", "--port", "0", environ={"OUTRIDER_HTTP_HOST": "0.0.0.0"})
    assert (by_setting.code, by_setting.out) == (2, "")
    assert "name it on the command line: outrider up --host 0.0.0.0" in by_setting.err
    without_key = person.starts("up", "--host", "0.0.0.0", "--port", "0")
    assert (without_key.code, without_key.out) == (2, "")
    assert "create one with `outrider key create NAME` or set OUTRIDER_API_KEY" in without_key.err
    assert not (person.home / "api_key").exists()
    assert person.types("key", "create", "mine").code == 0
    with up(person, "--host", "0.0.0.0") as running:
        assert running.line.endswith("(keys: outrider key list)")
    with up(person, "--host", "0.0.0.0", environ={"OUTRIDER_API_KEY": "k" * 40}) as running:
        assert running.line.endswith("(key in OUTRIDER_API_KEY)")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_every_loopback_address_is_accepted(person: Person, host: str) -> None:
    with up(person, "--host", host) as running, running.client() as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "problem"),
    [("no-such-host.invalid", "is not an address of this machine"), ("192.0.2.1", "cannot be used")],
)
def test_an_address_of_another_machine_is_refused(person: Person, host: str, problem: str) -> None:
    ran = person.starts("up", "--host", host, "--port", "0")
    assert (ran.code, ran.out, problem in ran.err, ran.err.count("\n")) == (2, "", True, 1)


def test_the_log_can_be_followed_before_it_exists(person: Person) -> None:
    follower = person.begins("up", "logs", "--follow")
    try:
        with up(person) as running:
            assert follower.stdout
            lines = follower.stdout.readline().decode() + follower.stdout.readline().decode()
        assert f"listening at {running.url}" in lines
        assert interrupt(follower).code == 0
    finally:
        if follower.poll() is None:
            follower.kill()
            follower.communicate()


@pytest.mark.needs("terminal")
def test_at_a_terminal_stderr_shows_short_log_lines(person: Person) -> None:
    terminal, side = pty.openpty()
    with os.fdopen(terminal, "rb", 0) as screen, os.fdopen(side, "wb", 0) as stderr:
        command = [OUTRIDER, "up", "--port", "0"]
        with subprocess.Popen(command, env=person.environ, stdout=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdout
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        lines = [line[9:] for line in screen.read(65_536).decode().splitlines()]
    assert lines[-2:] == ["up: received SIGINT", "up: stopped"]


def test_the_log_is_printed_in_short_lines_or_as_json(person: Person) -> None:
    assert person.types("up", "logs").code == 2
    with up(person):
        pass
    line = person.types("up", "logs", "-n", "1").out
    assert " up: listening at http://127.0.0.1:" in line
    assert json.loads(person.types("up", "logs", "-n", "1", "--json").out)["logger"] == "outrider.up"


def test_the_systemd_unit_names_this_home_and_does_not_kill_commands(person: Person) -> None:
    unit = person.types("up", "--print-unit", "--port", "9000", environ={"OUTRIDER_HOME": "/tmp/a b/100%"})
    lines = unit.out.splitlines()
    assert unit.code == 0
    assert 'Environment="OUTRIDER_HOME=/tmp/a b/100%%"' in lines
    assert "KillMode=process" in lines
    start = next(line for line in lines if line.startswith("ExecStart="))
    assert start.endswith(" -P -m outrider up --port 9000")
    assert not Path("/tmp/a b").exists()


def test_options_of_up_are_refused_by_its_subcommands(person: Person) -> None:
    ran = person.types("up", "--port", str(free_port()), "status")
    assert (ran.code, ran.err) == (
        2,
        "outrider: `status` does not take options of `outrider up`; see `outrider up --help`\n",
    )


def test_resume_beside_it_prints_a_pending_question_and_does_not_wait(person: Person) -> None:
    person.home.mkdir(mode=0o700, exist_ok=True)
    (person.home / "config.toml").write_text('[[rules]]\nverdict = "ask"\ntool = "write"\n')
    with ScriptedServer(script(says("", call("write", path="a.txt", content="x")), "done")) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as client:
            session = begin(client, "s")
            assert say(client, session, "go").status_code == 202
            until(lambda: client.get("/v1/questions").json()["questions"] or None)
            ran = person.types("resume")
            assert (ran.code, "outrider questions answer" in ran.err) == (1, True), ran
            running.ends()
