"""What a sandboxed command may use, of processes, memory and disk, as root and as an ordinary account."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.sandbox import BubblewrapSandbox, Cgroups, LandlockSandbox, Sandbox, find_cgroups
from outrider.workspaces.sandbox.bubblewrap import find_system_paths
from outrider.workspaces.sandbox.detect import SandboxMode
from outrider.workspaces.sandbox.types import MIB, SandboxLimits
from tests.support.outer import ORDINARY, require_bubblewrap, require_sandbox, run, start, wrap


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> BubblewrapSandbox | LandlockSandbox:
    kind: SandboxMode = request.param
    found = require_sandbox(kind)
    assert isinstance(found, BubblewrapSandbox | LandlockSandbox)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


class TestBounds:
    """One command cannot take the machine down."""

    LIMITS = SandboxLimits(processes=64, memory=128 * MIB, cpu=1, file_size=MIB, open_files=64, scratch=8 * MIB)

    @pytest.fixture
    def small(self, sandbox: BubblewrapSandbox | LandlockSandbox) -> BubblewrapSandbox | LandlockSandbox:
        return msgspec.structs.replace(sandbox, limits=self.LIMITS)

    def test_a_fork_bomb_stops_at_the_limit(self, small: BubblewrapSandbox | LandlockSandbox, folder: Path) -> None:
        if os.geteuid() == 0 and not small.cgroups:
            pytest.skip("real root's processes can be counted by cgroups only")
        script = "for i in $(seq 200); do sleep 30 & echo $i >started; done"
        run(small, f"(sh -c '{script}') 2>/dev/null; kill -9 -1", folder)
        assert int((folder / "started").read_text()) < 64

    def test_memory_runs_out_for_the_command_only(
        self, small: BubblewrapSandbox | LandlockSandbox, folder: Path
    ) -> None:
        perl = shutil.which("perl", path="/usr/bin:/bin") or pytest.skip("this machine has no perl")
        hog = f'{perl} -e \'$x = "a" x (1 << 20); push @a, $x . $_ for 1..400; print "got it all\\n"\''
        for box in (small, msgspec.structs.replace(small, cgroups=None)):
            status, output = run(box, f"{hog} 2>/dev/null", folder)
            assert (status != 0, "got it all" in output) == (True, False)

    def test_a_busy_loop_ends(self, small: BubblewrapSandbox | LandlockSandbox, folder: Path) -> None:
        assert run(small, "sh -c 'while :; do :; done'; echo $?", folder)[1].splitlines()[-1] in ("137", "152")

    def test_no_file_grows_beyond_its_limit(self, small: BubblewrapSandbox | LandlockSandbox, folder: Path) -> None:
        run(small, "head -c 10000000000 /dev/zero >big", folder)
        assert (folder / "big").stat().st_size == MIB

    def test_scratch_space_and_shared_memory_are_bounded(self, folder: Path) -> None:
        small = msgspec.structs.replace(require_bubblewrap(), limits=self.LIMITS)
        fill = "i=0; while [ $i -lt 80 ] && head -c 1000000 /dev/zero >{0}/$i; do i=$((i+1)); done; echo $i"
        counts = [int(run(small, fill.format(at), folder)[1].splitlines()[-1]) for at in ("/tmp", "$HOME", "/dev/shm")]
        assert (counts[0] <= 8, counts[1] <= 8, counts[2] <= 67) == (True, True, True)

    def test_open_files_are_bounded(self, small: BubblewrapSandbox | LandlockSandbox, folder: Path) -> None:
        assert run(small, "ulimit -n; ulimit -c", folder) == (0, "64\n0\n")


class TestGroups:
    """Control groups, the machine's and a made-up one of the other version."""

    def test_groups_are_created_for_a_task_and_removed_afterwards(self, sandbox: Sandbox) -> None:
        groups = sandbox.cgroups or pytest.skip("this machine lets us make no control groups")
        task = f"test-{secrets.token_hex(4)}"
        prefix = groups.prepare(task, SandboxLimits())
        command = [*prefix, "sh", "-c", "cat /proc/self/cgroup; echo; exec sleep 60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            inside = "".join(iter(process.stdout.readline, "\n"))
            assert inside.count(f"/outrider/{task}\n") == len(groups.folders)
            assert groups.leftover_tasks([]).count(task) == 1
            assert groups.clean(task)
            assert process.wait(60) == -signal.SIGKILL
        assert (task in groups.leftover_tasks(), groups.clean(task)) == (False, True)

    def test_a_name_that_leads_elsewhere_is_refused(self, tmp_path: Path) -> None:
        for name in ("..", "a/b", "", ".hidden"):
            with pytest.raises(Refused):
                Cgroups((str(tmp_path),), 2).prepare(name, SandboxLimits())

    def test_an_error_of_the_kernel_is_reported_and_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(Unavailable, match="cannot bound"):
            Cgroups((str(tmp_path / "file"),), 2).prepare("task", SandboxLimits())

    @pytest.mark.parametrize("text", ["", "1:cpu:/\n", "0::/app\n"])
    def test_without_a_writable_folder_there_are_no_groups(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "cgroup").write_text(text)
        assert find_cgroups(tmp_path, tmp_path / "nowhere") is None


class TestAnOrdinaryAccount:
    """The sandbox needs no rights; with none it is bounded by what the kernel counts for every account."""

    @pytest.fixture
    def theirs(self) -> Generator[Path]:
        if os.geteuid() != 0:
            pytest.skip("only root can become another account; the other tests ran as an ordinary one")
        with tempfile.TemporaryDirectory(prefix="outrider-test-", dir="/var/tmp") as name:
            os.chown(name, ORDINARY, ORDINARY)
            yield Path(name)

    def test_it_runs_and_its_processes_are_counted(self, theirs: Path) -> None:
        sandbox = require_bubblewrap()
        plain = msgspec.structs.replace(sandbox, system=find_system_paths(), cgroups=None, limits=TestBounds.LIMITS)
        script = "for i in $(seq 200); do sleep 30 & echo $i >started; done"
        argv = ["/bin/sh", "-c", f"id -u; (sh -c '{script}') 2>/dev/null; kill -9 -1"]
        with start(wrap(plain, argv, theirs), account=ORDINARY) as process:
            output, _ = process.communicate(timeout=60)
        assert output == "1000\n"
        assert (int((theirs / "started").read_text()) < 64, (theirs / "started").stat().st_uid) == (True, ORDINARY)
