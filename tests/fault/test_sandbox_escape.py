"""Hostile commands, run for real: none of them sees a canary, reaches a listener or changes the world outside."""

import re
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from outrider.workspaces.sandbox import BubblewrapSandbox
from tests.support.hostile import SECTIONS, hostile
from tests.support.outer import OuterWorld, guarded, outer_world, require_sandbox, run

pytestmark = [pytest.mark.promise("S7"), pytest.mark.promise("S8")]

SCAN_SCRIPT = """
import os, stat
for top, folders, files in os.walk("/"):
    if top == "/usr":
        folders.clear()
    if top == "/proc":
        folders += ["1/fd", "self/fd"]
    links = [f"{top}/{name}" for name in ("exe", "cwd", "root") if top.startswith("/proc/")]
    for path in [*(os.path.join(top, name) for name in (*folders, *files)), *links]:
        try:
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
            print(os.path.realpath(path))
        except OSError:
            pass
print("done")
"""


@pytest.fixture
def outer(tmp_path: Path) -> Generator[OuterWorld]:
    with outer_world(tmp_path) as world:
        yield world


@pytest.fixture
def sandbox() -> BubblewrapSandbox:
    return require_sandbox()


def escapes(sandbox: BubblewrapSandbox, outer: OuterWorld, commands: Sequence[str]) -> dict[str, str]:
    """The commands that got somewhere, with their output. All of them were tried."""
    status, output = run(sandbox, guarded(commands), outer.workspace, environ=outer.environ, hidden=[outer.home])
    assert status == 0, output
    tried = re.findall(r"(?ms)^=== (\d+)\n(.*?)(?=^=== )", output)
    assert [int(number) for number, _ in tried] == list(range(len(commands)))
    return {
        commands[int(number)]: said[-400:]
        for number, said in tried
        if outer.canary in said or said.rstrip().endswith("ESCAPED")
    }


def test_the_list_of_hostile_commands_is_long_enough() -> None:
    assert sum(len(hostile(section)) for section in SECTIONS) >= 100


@pytest.mark.promise("S11")
@pytest.mark.promise("S10")
def test_a_command_sees_nothing_of_the_person_of_outrider_or_of_other_sessions(
    sandbox: BubblewrapSandbox, outer: OuterWorld
) -> None:
    before = outer.state()
    assert escapes(sandbox, outer, hostile("reading")) == {}
    assert outer.state() == before


@pytest.mark.promise("S10")
def test_a_command_changes_nothing_but_its_workspace(sandbox: BubblewrapSandbox, outer: OuterWorld) -> None:
    before = outer.state()
    assert escapes(sandbox, outer, hostile("writing")) == {}
    assert outer.state() == before


def test_a_command_gets_no_more_access_to_the_kernel_than_it_was_given(
    sandbox: BubblewrapSandbox, outer: OuterWorld
) -> None:
    before = outer.state()
    assert escapes(sandbox, outer, hostile("kernel")) == {}
    assert outer.state() == before


@pytest.mark.promise("S12")
def test_a_command_reaches_no_listener_and_no_network(sandbox: BubblewrapSandbox, outer: OuterWorld) -> None:
    assert escapes(sandbox, outer, hostile("network")) == {}
    assert outer.reached_listeners() == []


@pytest.mark.promise("S10")
def test_a_destructive_command_destroys_only_its_workspace(sandbox: BubblewrapSandbox, outer: OuterWorld) -> None:
    before = outer.state()
    for command in hostile("ruinous"):
        status, output = run(sandbox, guarded([command]), outer.workspace, environ=outer.environ, hidden=[outer.home])
        assert (status != 99, outer.canary in output) == (True, False), command
        assert outer.state() == before, command


def test_a_command_can_change_only_its_own_files(sandbox: BubblewrapSandbox, outer: OuterWorld) -> None:
    """Whatever root owns, root may change, unless it is shown read-only: so all is tried, to be what it already is."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("this machine has no /usr/bin/python3")
    (outer.workspace / "sweep.py").write_text(SCAN_SCRIPT)
    status, output = run(sandbox, "python3 sweep.py", outer.workspace, environ=outer.environ, hidden=[outer.home])
    own = ("/tmp", "/var/tmp", "/dev/pts", "/dev/ptmx", "/dev/shm", "/dev/stdout", "/dev/stderr")
    changed = [line for line in output.splitlines() if not line.startswith(own) and "/pipe:[" not in line]
    assert (status, changed) == (0, ["done"])
