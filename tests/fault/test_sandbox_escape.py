"""Hostile commands, run for real in every sandbox: none of them sees a canary, reaches a listener or changes the world.

What one of the sandboxes does not block is written down here, command by command, and in docs/sandbox.md.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from outrider.workspaces.sandbox import BubblewrapSandbox, LandlockSandbox, Sandbox, detect
from outrider.workspaces.sandbox.types import NoSandbox
from tests.support.hostile import SECTIONS, hostile
from tests.support.outer import (
    ORDINARY,
    OuterWorld,
    guarded,
    outer_world,
    require_bubblewrap,
    require_landlock,
    run,
)

pytestmark = [pytest.mark.promise("S7"), pytest.mark.promise("S8")]

NOT_HELD_BY_LANDLOCK: Mapping[str, Sequence[str]] = {
    "names and attributes can be tested one by one: Landlock controls opening and changing, not looking up": (
        'stat "$PERSON/.ssh/id_ed25519"',
        'test -e "$OUTRIDER/store.db"',
        'test -d "$OTHER"',
        'readlink -f "$PERSON/.bashrc" && test -f "$PERSON/.bashrc"',
        "ls -d /var/spool/cron",
        "ls /sys/kernel/uevent_helper",
        "test -S /run/dbus/system_bus_socket",
        "test -S /var/run/docker.sock",
        "test -e /tmp/.X11-unix",
        "ls /dev/fuse",
        "ls /dev/kvm",
        "ls /dev/vsock",
        "ls /dev/loop-control",
        "losetup -f",
    ),
    "whether a process number is in use can be tested: there is one process table": (
        "python3 -c 'import os; os.pidfd_open(int(os.environ[\"VICTIM\"]))'",
    ),
    "the command keeps its account, so that becoming it, or giving it a file, is no change": (
        "python3 -c 'import os; os.setuid(0)'",
        "setpriv --reuid 0 true",
        "setpriv --reuid 65534 true",
        "touch owned && chown 65534 owned",
        "touch owned && chown root owned",
    ),
    "an ordinary account cannot empty its bounding set; since it gets no new privileges, the set has no effect": (
        "capsh --has-b=cap_net_raw",
    ),
}
"""Why, and the commands that succeed for that reason. None of them may show the content of a file."""
SANDBOXES = ("bundled bubblewrap", "system bubblewrap", "landlock")
OLD_LANDLOCK = "landlock as of version 4"
"""What Linux 6.7 offers: it does not confine signals, which the launcher then does."""

SCAN_SCRIPT = """
import os, stat, sys
def paths():
    for top, folders, files in os.walk("/"):
        if top == "/usr":
            folders.clear()
        if top == "/proc":
            folders += ["1/fd", "self/fd"]
        links = [f"{top}/{name}" for name in ("exe", "cwd", "root") if top.startswith("/proc/")]
        yield from [*(os.path.join(top, name) for name in (*folders, *files)), *links]
    yield from open("names").read().split("\\0")  # for a sandbox in which folders cannot be listed
for path in paths():
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
        print(os.path.realpath(path))
    except OSError:
        pass
print("done")
"""


@dataclass(frozen=True)
class ConfinedAccount:
    """A sandbox, and the account that it is used by."""

    sandbox: Sandbox
    outer: OuterWorld
    account: int | None

    def run(self, script: str) -> tuple[int, str]:
        return run(
            self.sandbox,
            script,
            self.outer.workspace,
            environ=self.outer.environ,
            hidden=[self.outer.home],
            account=self.account,
        )

    def escapes(self, commands: Sequence[str]) -> dict[str, str]:
        """The commands that got somewhere, with their output, except those that are disclaimed. All were tried."""
        status, output = self.run(guarded(commands, self.sandbox.kind))
        assert status == 0, output
        tried = re.findall(r"(?ms)^=== (\d+)\n(.*?)(?=^=== )", output)
        assert [int(number) for number, _ in tried] == list(range(len(commands)))
        return {
            commands[int(number)]: said[-400:]
            for number, said in tried
            if self.outer.canary in said
            or (said.rstrip().endswith("ESCAPED") and commands[int(number)] not in self._disclaimed())
        }

    def _disclaimed(self) -> set[str]:
        if self.sandbox.kind == "bubblewrap":
            return set()
        return {command for commands in NOT_HELD_BY_LANDLOCK.values() for command in commands}


def _sandbox(name: str) -> Sandbox:
    match name:
        case "bundled bubblewrap":
            return require_bubblewrap()
        case "system bubblewrap":
            program = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
            found = detect(programs=[program] if program else [], mode="bubblewrap")
            return pytest.skip(found.why) if isinstance(found, NoSandbox) else found
        case "landlock":
            return require_landlock()
        case _:
            return msgspec.structs.replace(require_landlock(), abi=int(name.split()[-1]))


@pytest.fixture(params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return _sandbox(request.param)


@pytest.fixture(params=["own account", "ordinary account"])
def confined(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> Generator[ConfinedAccount]:
    if request.param == "own account":
        with outer_world(tmp_path) as outer:
            yield ConfinedAccount(sandbox, outer, None)
        return
    if os.geteuid() != 0:
        pytest.skip("only root can become another account; the other tests ran as an ordinary one")
    with tempfile.TemporaryDirectory(prefix="outrider-test-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "world").mkdir()
        with outer_world(folder / "world", ORDINARY) as outer:
            yield ConfinedAccount(_for_ordinary_account(sandbox, folder), outer, ORDINARY)


def _for_ordinary_account(sandbox: Sandbox, folder: Path) -> Sandbox:
    """The same sandbox, with copies of what may be in root's home, and without root's devices and control groups."""
    assert isinstance(sandbox, BubblewrapSandbox | LandlockSandbox)
    filters = [path for path in (sandbox.filter,) if path]
    if isinstance(sandbox, BubblewrapSandbox):
        try:
            subprocess.run([sandbox.program, "--version"], check=True, capture_output=True, user=ORDINARY)
        except PermissionError:
            pytest.skip(f"an ordinary account cannot run {sandbox.program}")
        system = msgspec.structs.replace(sandbox.system, devices=())
        copied = _copy(folder, *filters)
        return msgspec.structs.replace(sandbox, filter=copied[0] if copied else None, system=system, cgroups=None)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or pytest.skip("root's Python only")
    copied = _copy(folder, sandbox.program[-1], *filters)
    program = (python, *sandbox.program[1:-1], copied[0])
    return msgspec.structs.replace(sandbox, program=program, filter=copied[-1], cgroups=None)


def _copy(folder: Path, *files: str) -> list[str]:
    return [str(shutil.copy(file, folder)) for file in files]


def test_the_list_of_hostile_commands_is_long_enough() -> None:
    assert sum(len(hostile(section)) for section in SECTIONS) >= 400


def test_what_is_disclaimed_is_in_the_list() -> None:
    known = {command for section in SECTIONS for command in hostile(section)}
    assert [each for commands in NOT_HELD_BY_LANDLOCK.values() for each in commands if each not in known] == []


@pytest.mark.promise("S11")
@pytest.mark.promise("S10")
def test_a_command_sees_nothing_of_the_person_of_outrider_or_of_other_sessions(confined: ConfinedAccount) -> None:
    before = confined.outer.state()
    assert confined.escapes(hostile("reading")) == {}
    assert confined.outer.state() == before


@pytest.mark.promise("S10")
def test_a_command_changes_nothing_but_its_workspace(confined: ConfinedAccount) -> None:
    before = confined.outer.state()
    assert confined.escapes(hostile("writing")) == {}
    assert confined.outer.state() == before


@pytest.mark.parametrize("sandbox", [*SANDBOXES, OLD_LANDLOCK], indirect=True)
def test_a_command_gets_no_more_access_to_the_kernel_than_it_was_given(confined: ConfinedAccount) -> None:
    before = confined.outer.state()
    assert confined.escapes(hostile("kernel")) == {}
    assert confined.outer.state() == before


@pytest.mark.promise("S12")
def test_a_command_reaches_no_listener_and_no_network(confined: ConfinedAccount) -> None:
    assert confined.escapes(hostile("network")) == {}
    assert confined.outer.reached_listeners() == []


@pytest.mark.promise("S10")
@pytest.mark.parametrize("sandbox", [*SANDBOXES, OLD_LANDLOCK], indirect=True)
def test_a_destructive_command_destroys_only_its_workspace(confined: ConfinedAccount) -> None:
    before = confined.outer.state()
    for command in hostile("ruinous"):
        status, output = confined.run(guarded([command], confined.sandbox.kind))
        assert (status != 99, confined.outer.canary in output) == (True, False), command
        assert confined.outer.state() == before, command


def test_a_command_can_change_only_its_own_files(confined: ConfinedAccount) -> None:
    """Whatever root owns, root may change, unless it is shown read-only: so all is tried, to be what it already is."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("this machine has no /usr/bin/python3")
    (confined.outer.workspace / "sweep.py").write_text(SCAN_SCRIPT)
    folders = ["/", "/etc", "/dev", "/proc", "/usr", "/usr/bin", "/home", "/var", f"/proc/{confined.outer.victim}"]
    names = [str(path) for folder in folders for path in Path(folder).iterdir()]
    own_files = [
        str(path) for path in confined.outer.folder.rglob("*") if not path.is_relative_to(confined.outer.workspace)
    ]
    (confined.outer.workspace / "names").write_text("\0".join([*folders, *names, *own_files]))
    status, output = confined.run("python3 sweep.py")
    own = ("/tmp", "/var/tmp", "/dev/pts", "/dev/ptmx", "/dev/shm", "/dev/stdout", "/dev/stderr")
    changed = [line for line in output.splitlines() if not line.startswith(own) and "/pipe:[" not in line]
    assert (status, changed) == (0, ["done"])
