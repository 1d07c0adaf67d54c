"""Mistakes and failures: one line on stderr that says what to do, a non-zero exit code, never a traceback."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import ErrorStatus, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import OUTRIDER, PATIENCE, Ran, ended, owned_home
from tests.support.in_process import InProcessPerson as Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def assert_refused(ran: Ran, code: int, *parts: str) -> None:
    """One line with these parts, this exit code, and nothing on stdout."""
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), ran
    assert ran.err.startswith("outrider: ")
    for part in parts:
        assert part in ran.err


def test_an_unknown_flag(person: Person) -> None:
    assert_refused(person.types("run", "--frob", "hi"), 2, "no such option", "--frob", "`outrider run --help`")


def test_an_unknown_command(person: Person) -> None:
    assert_refused(person.types("sesions"), 2, "there is no command 'sesions'; did you mean `outrider sessions`?")
    assert_refused(person.types("hello"), 2, "there is no command 'hello'", "outrider run")


def test_an_option_with_an_invalid_value(person: Person) -> None:
    assert_refused(person.types("run", "--timeout", "soon", "hi"), 2, "--timeout", "'soon'")


@pytest.mark.parametrize("option", ["--session", "--key"])
def test_an_option_with_an_empty_value(person: Person, option: str) -> None:
    assert_refused(person.types("run", option, "", "hi"), 2, f"{option} is empty")


def test_settings_that_are_not_toml(person: Person) -> None:
    person.home.mkdir()
    (person.home / "config.toml").write_text("[model\nname = 1")
    assert_refused(person.types("run", "hi"), 2, "config.toml: line 1")


def test_an_unknown_setting(person: Person) -> None:
    person.home.mkdir()
    (person.home / "config.toml").write_text('[model]\nnmae = "practice"\n')
    assert_refused(person.types("run", "hi"), 2, "there is no setting model.nmae", "did you mean model.name?")


def test_a_key_that_is_not_accepted_is_reported_and_never_printed(person: Person) -> None:
    with ScriptedServer(script(ErrorStatus(401, "bad key k-1234567890"))) as server:
        person.uses(server.url)
        ran = person.types("run", "hi")
    assert_refused(ran, 1, "did not accept the key (401)", "OUTRIDER_MODEL_KEY")
    assert "1234567890" not in ran.err


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("nowhere:big", "there is no provider or wire 'nowhere'"),
        ("anthropic:claude-sonnet-5", "needs a key: set ANTHROPIC_API_KEY"),
        ("openai", "but no model"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_a_session_is_created(
    person: Person, model: str, problem: str
) -> None:
    assert_refused(person.types("run", "--model", model, "hi"), 2, problem)
    assert "no sessions yet" in person.types("sessions", "list").out


def test_a_model_that_its_server_does_not_have(person: Person) -> None:
    with ScriptedServer(script(ErrorStatus(404, "model scripted not found"))) as server:
        person.uses(server.url)
        assert_refused(person.types("run", "hi"), 1, "has no model 'scripted'")


def test_a_missing_model_server_fails_the_turn_after_the_configured_attempts(person: Person) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: every connection is refused.
        person.uses(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", OUTRIDER_MODEL_ATTEMPTS="2")
        assert_refused(person.types("run", "hi"), 1, "127.0.0.1")


def test_an_empty_message(person: Person) -> None:
    assert_refused(person.types("run", " "), 2, "the message is empty")
    assert_refused(person.types("run", stdin=b"\n"), 2, "the message is empty")


def test_binary_data_on_stdin(person: Person) -> None:
    assert_refused(person.types("run", stdin=b"\x7fELF\0\0\0"), 2, "is not text", "--image")
    assert_refused(person.types("run", stdin=b"caf\xe9"), 2, "is not UTF-8 text (byte 4)")


def test_arguments_that_are_not_utf_8(person: Person) -> None:
    assert_refused(person.types("run", b"caf\xe9"), 2, "the message is not valid UTF-8 text")
    assert_refused(person.types("run", "-s", b"caf\xe9", "hi"), 2, "--session is not valid UTF-8 text")
    assert_refused(person.types("sessions", "show", b"caf\xe9"), 2, "not valid UTF-8 text")


def test_a_prompt_of_100_mb_is_refused_after_a_small_part_of_it(person: Person) -> None:
    taken = 0
    with subprocess.Popen(
        [OUTRIDER, "run"],
        cwd=person.project,
        env=person.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        piece = b"a" * 65_536
        try:
            while taken < 100_000_000:
                taken += os.write(process.stdin.fileno(), piece)
        except BrokenPipeError:
            pass
        out, err = process.communicate(timeout=PATIENCE)
    assert_refused(
        Ran(process.returncode, out.decode(), err.decode()), 2, "more than 1,000,000 characters", "limits.input"
    )
    assert taken < 5_000_000


def test_a_prompt_just_over_the_limit(person: Person) -> None:
    assert_refused(
        person.types("run", "12345678901", environ={"OUTRIDER_LIMITS_INPUT": "10"}), 2, "more than 10 characters"
    )


def test_an_image_file_that_is_no_image(person: Person) -> None:
    (person.project / "a.txt").write_text("hello")
    assert_refused(person.types("run", "--image", "a.txt", "hi"), 2, "a.txt: not a supported image")
    assert_refused(person.types("run", "--image", "b.png", "hi"), 2, "b.png cannot be read: No such file")


def test_a_workspace_that_does_not_exist(person: Person) -> None:
    assert_refused(person.types("run", "-w", "nowhere", "hi"), 2, "there is no folder nowhere")
    assert_refused(person.types("run", "-w", str(person.folder), "hi"), 2, "cannot be a workspace")


def test_a_session_whose_workspace_was_deleted(person: Person) -> None:
    gone = person.project / "gone"
    gone.mkdir()
    person.types("run", "-s", "s", "-w", "gone", "hi")
    gone.rmdir()
    assert_refused(
        person.types("run", "-q", "-s", "s", "hi"), 2, f"there is no folder {gone} to work in", "run --session s "
    )


def test_a_current_folder_that_was_deleted(person: Person) -> None:
    assert_refused(
        person.pipes("mkdir d && cd d && rmdir ../d && outrider run hi"), 2, "the current folder no longer exists"
    )


def test_a_home_that_is_a_file(person: Person) -> None:
    person.home.write_text("not a folder")
    assert_refused(person.types("run", "hi"), 2, f"{person.home} is not a folder", "OUTRIDER_HOME")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a path that nobody can write to")
def test_a_home_that_cannot_be_written(person: Person) -> None:
    ran = person.types("run", "hi", environ={"OUTRIDER_HOME": "/proc/self/outrider"})
    assert_refused(ran, 2, "/proc/self/outrider cannot be written to", "name another home with OUTRIDER_HOME")
    assert_refused(person.types("sessions", "list", environ={"OUTRIDER_HOME": "/proc/x"}), 2, "/proc/x cannot be")


def test_a_home_in_which_up_cannot_write_its_errors(person: Person) -> None:
    person.home.mkdir(mode=0o700, exist_ok=True)
    (person.home / "logs").write_text("no folder")
    assert_refused(person.types("up", "-d"), 2, "up.err cannot be written", "set OUTRIDER_HOME to another path")


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is read-only to root")
def test_a_home_that_is_read_only(person: Person) -> None:
    person.home.mkdir(mode=0o500)
    assert_refused(person.types("run", "hi"), 2, "cannot be written to", "OUTRIDER_HOME")


def test_a_home_that_a_python_program_uses(person: Person) -> None:
    with owned_home(person.home):
        assert_refused(
            person.types("run", "hi"), 75, f"Python (process {os.getpid()}) has been using {person.home} since 2"
        )
        assert_refused(person.types("sessions", "list"), 75, f"Python (process {os.getpid()})")  # it does not answer


def test_a_pipe_that_is_closed_early(person: Person) -> None:
    with ScriptedServer(script(says("a reply of several words"))) as server:
        person.uses(server.url)
        assert person.pipes("outrider run hi | true; outrider sessions list | head -0") == Ran(0, "", "")


def test_a_turn_whose_events_nobody_reads_is_left_to_be_resumed(person: Person) -> None:
    # The turn writes an event after its reader is gone, and cannot end before it notices that.
    with ScriptedServer(script((Stall(), says("", call("read", path="a.txt"))), Stall())) as server:
        person.uses(server.url)
        process = person.begins("run", "--json", "-s", "s", "hi")
        server.wait(1)
        assert process.stdout is not None
        process.stdout.close()
        server.release()
        process.stdout = None
        ran = ended(process)
    assert (ran.code, ran.err) == (1, "")
    with ScriptedServer(script(says("ok"), says("ok"))) as server:
        person.uses(server.url)
        assert person.types("resume") == Ran(0, "[s]\nok\n\n", "")
        assert len(server.requests) == 1


def test_streams_that_are_closed(person: Person) -> None:
    with ScriptedServer(script(says("ok"))) as server:
        person.uses(server.url)
        assert person.pipes("outrider run hi <&-") == Ran(0, "ok\n", "")
        assert person.pipes("outrider run hi >&-") == Ran(0, "", "")
        assert person.pipes("outrider run hi 2>&-") == Ran(0, "ok\n", "")
        assert_refused(person.pipes("outrider run <&-"), 2, "the message is empty")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_stdout_that_is_full(person: Person) -> None:
    assert_refused(person.pipes("outrider run hi >/dev/full"), 2, "standard output cannot be written to: No space left")


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(person: Person) -> None:
    broken = person.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import pathlib\ndef fail(*_):\n    raise ZeroDivisionError('of all things')\npathlib.Path.cwd = fail\n"
    )
    ran = person.types("run", "hi", environ={"PYTHONPATH": str(broken)})
    log = person.home / "logs" / "outrider.log"
    assert_refused(ran, 70, "internal error: ZeroDivisionError: of all things", f"details are in {log}")
    assert "Traceback (most recent call last)" in log.read_text()
    modes = [path.stat().st_mode & 0o777 for path in (log, log.parent, person.home)]
    assert modes == [0o600, 0o700, 0o700]
