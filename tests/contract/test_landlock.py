"""What only the Landlock sandbox and commands without a sandbox have: the launcher, its monitor and its folders."""

import os
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from outrider.system.processes import process_table
from outrider.workspaces.sandbox import LandlockSandbox, UnconfinedCommands, detect
from outrider.workspaces.sandbox.landlock_filter import CALLS, NOTIFIED, assemble_filter
from outrider.workspaces.sandbox.seccomp import ARCHITECTURES
from outrider.workspaces.sandbox.types import NoSandbox
from tests.support.outer import ORDINARY, Grant, require_landlock, run, start, wrap

RACE = """
import os, threading
os.mkdir("real"); open("real/x", "w").close(); os.symlink("real", "a"); os.symlink(os.environ["OUTSIDE"], "b")
done = threading.Event()
def swap():
    while not done.is_set():
        os.rename("a", "flip"); os.symlink("real", "a"); os.rename("b", "flip"); os.symlink(os.environ["OUTSIDE"], "b")
thread = threading.Thread(target=swap)
thread.start()
inside = 0
for number in range(20_000):
    try:
        (os.chmod if number % 2 else os.utime)("flip/x", 0o777 if number % 2 else (0, 0))
        inside += 1
    except OSError:
        pass
done.set()
thread.join()
print(inside > 0)
"""


@pytest.fixture
def sandbox() -> LandlockSandbox:
    return require_landlock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


class TestFilesOfThePerson:
    """Landlock does not control permissions, owners and times. The monitor does."""

    def test_a_file_that_may_only_be_read_keeps_its_permissions_and_times(
        self, sandbox: LandlockSandbox, folder: Path, tmp_path: Path
    ) -> None:
        notes = tmp_path / "notes"
        notes.mkdir()
        (notes / "x").write_text("read me\n")
        before = (notes / "x").stat()
        script = """cat {0}/x; exec 2>/dev/null; chmod 777 {0}/x; touch -d @0 {0}/x; chown 1 {0}/x
            python3 -c 'import os; f = os.open("{0}/x", os.O_RDONLY); os.fchmod(f, 0o777)'
            python3 -c 'import os; f = os.open("{0}/x", os.O_RDONLY); os.utime(f, (0, 0))'
            python3 -c 'import os; os.open("{0}/x", os.O_RDONLY | os.O_TRUNC)'
            python3 -c 'import os; os.setxattr("{0}/x", "user.x", b"1")'"""
        _, output = run(sandbox, script.format(notes), folder, Grant(read=(str(notes),)))
        after = (notes / "x").stat()
        assert output == "read me\n"
        assert (after.st_mode, after.st_mtime_ns, after.st_uid, after.st_size) == (
            before.st_mode,
            before.st_mtime_ns,
            before.st_uid,
            before.st_size,
        )

    def test_a_folder_that_may_be_written_is_changed_in_every_way(
        self, sandbox: LandlockSandbox, folder: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        other.mkdir()
        script = f"""cd {other} && touch x && chmod 751 x && touch -d @7 x && chown $(id -u) x
            ln -s x l && touch -h -d @8 l
            python3 -c 'import os; f = os.open("x", os.O_RDONLY); os.fchmod(f, 0o640)' && mv x {folder}/y && ls"""
        assert run(sandbox, script, folder, Grant(write=(str(other),))) == (0, "l\n")
        status = (folder / "y").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime, (other / "l").lstat().st_mtime) == (0o640, 7, 8)

    def test_no_race_leads_the_monitor_to_a_file_outside(
        self, sandbox: LandlockSandbox, folder: Path, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "x").write_text("")
        before = (outside / "x").stat()
        (folder / "race.py").write_text(RACE)
        output = run(sandbox, "python3 race.py", folder, environ={"OUTSIDE": str(outside)})
        after = (outside / "x").stat()
        assert (output, after.st_mode, after.st_mtime_ns) == ((0, "True\n"), before.st_mode, before.st_mtime_ns)

    def test_files_of_the_workspace_can_be_watched(self, sandbox: LandlockSandbox, folder: Path) -> None:
        script = (
            "import ctypes, os; l = ctypes.CDLL(None); f = l.inotify_init(); w = l.inotify_add_watch(f, b'.', 0x100)\n"
            "open('made', 'w').close(); print(w, b'made' in os.read(f, 4096))"
        )
        (folder / "watch.py").write_text(script)
        assert run(sandbox, "python3 watch.py", folder) == (0, "1 True\n")


class TestScratchFolders:
    """Where a command has its home and its temporary files."""

    def test_a_folder_that_another_account_put_in_their_place_stops_no_command(
        self, sandbox: LandlockSandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="outrider-test-", dir="/var/tmp") as top:
            os.chmod(top, 0o1777)
            monkeypatch.setattr(tempfile, "tempdir", top)
            usual = Path(top) / f"outrider-commands-{os.geteuid()}"
            usual.mkdir()
            usual.chmod(0o777)  # as one that another account can write to: only root could give it to another one
            (Path(top) / f"{usual.name}-0").symlink_to("/")
            ran = [run(sandbox, 'echo x >"$TMPDIR/x" && dirname "$(dirname "$TMPDIR")"', folder) for _ in range(2)]
            (used,) = {output for _, output in ran}
            mine = Path(used.strip())
            assert ([code for code, _ in ran], mine.parent) == ([0, 0], Path(top))
            assert stat.S_IMODE(mine.stat().st_mode) == 0o711
            assert (mine.name.startswith(f"{usual.name}-"), list(usual.iterdir()), list(mine.iterdir())) == (
                True,
                [],
                [],
            )


class TestProcesses:
    """There is no process namespace: the monitor ends everything."""

    @pytest.mark.parametrize("killed", ["first process", "monitor"])
    def test_everything_ends_whichever_process_of_the_launcher_is_killed(
        self, sandbox: LandlockSandbox, folder: Path, killed: str
    ) -> None:
        script = "trap '' TERM HUP; (setsid sh -c 'exec >/dev/null; exec sleep 600' &); echo $$ $TMPDIR; sleep 600"
        process = start(wrap(sandbox, ["/bin/sh", "-c", script], folder))
        with process:
            assert process.stdout is not None
            pid, scratch = process.stdout.readline().split()
            parents = {row.pid: row.parent for row in process_table.list_processes()}
            assert parents[parents[int(pid)]] == process.pid
            family = {int(pid), *(each for each in parents if _has_ancestor(parents, each, process.pid))}
            os.kill(process.pid if killed == "first process" else parents[int(pid)], signal.SIGKILL)
            assert process.stdout.read() == ""
            process.wait(60)
        assert len(family) >= 3
        until = time.monotonic() + 60  # The monitor may still be ending the others.
        while left := [each for each in family if (row := process_table.find_process(each)) and not row.is_zombie]:
            assert time.monotonic() < until, left
        assert not Path(scratch).exists()

    def test_a_signal_to_the_first_process_lets_the_command_stop_in_order(
        self, sandbox: LandlockSandbox, folder: Path
    ) -> None:
        script = "trap 'echo goodbye; exit 5' TERM; echo ready; while :; do sleep 0.1; done 2>/dev/null"
        process = start(wrap(sandbox, ["/bin/sh", "-c", script], folder))
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.communicate(timeout=60) == ("goodbye\n", None)
        assert process.returncode == 5

    def test_nothing_runs_when_it_cannot_be_confined(self, sandbox: LandlockSandbox, folder: Path) -> None:
        wrapped = wrap(sandbox, ["touch", "ran"], folder)
        broken = [word if not word.startswith("filter=") else "filter=/nowhere" for word in wrapped.argv]
        with closing(wrapped):
            ran = subprocess.run(
                broken, env={}, pass_fds=wrapped.descriptors, capture_output=True, text=True, timeout=60
            )
        assert (ran.returncode, "was not started" in ran.stderr, (folder / "ran").exists()) == (126, True, False)


def _has_ancestor(parents: dict[int, int], pid: int, ancestor: int) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


class TestFindingOut:
    """Which one is used is tried, and said."""

    def test_landlock_is_used_where_bubblewrap_does_not_work_and_says_why(self) -> None:
        require_landlock()
        found = detect(programs=[])
        assert isinstance(found, LandlockSandbox)
        assert found.instead is not None
        assert (found.instead.why, found.why.startswith("Landlock, version ")) == ("bubblewrap is not installed", True)

    def test_bubblewrap_alone_can_be_required(self) -> None:
        assert isinstance(detect(programs=[], mode="bubblewrap"), NoSandbox)

    def test_the_filter_has_every_call_that_the_monitor_answers(self) -> None:
        assert set(CALLS) == set(ARCHITECTURES)
        modern = {"fchmodat", "fchmodat2", "fchmod", "fchownat", "fchown", "utimensat", "kill", "prlimit64"}
        for machine, calls in CALLS.items():
            assert len(set(calls.values())) == len(calls)
            assert modern <= set(calls) & set(NOTIFIED)
            for abi in (3, 4, 7):
                program = assemble_filter(machine, abi, network=False)
                assert (len(program) % 8, len(program) // 8 < 4096) == (0, True)


class TestWithoutASandbox:
    """For machines that are themselves disposable, by an explicit setting."""

    @pytest.fixture
    def theirs(self) -> Generator[Path]:
        with tempfile.TemporaryDirectory(prefix="outrider-test-", dir="/var/tmp") as name:
            os.chmod(name, 0o755)
            (Path(name) / "workspace").mkdir()
            (Path(name) / "private").mkdir(mode=0o700)
            (Path(name) / "private" / "secret").write_text("secret\n")
            yield Path(name)

    @pytest.fixture
    def commands(self) -> UnconfinedCommands:
        found = detect(mode="off")
        assert isinstance(found, UnconfinedCommands)
        return found

    def test_it_says_so(self, commands: UnconfinedCommands) -> None:
        assert (commands.kind, "without a sandbox" in commands.why) == ("off", True)

    def test_commands_get_the_basic_environment_and_folders_of_their_own(
        self, commands: UnconfinedCommands, theirs: Path
    ) -> None:
        if os.geteuid() == 0:
            os.chown(theirs / "workspace", ORDINARY, ORDINARY)
        _, output = run(commands, 'env | cut -d= -f1 | sort | tr "\\n" " "; cd && pwd', theirs / "workspace")
        names, _, home = output.rpartition(" ")
        assert names == "HOME LANG LC_ALL PATH PWD TERM TMPDIR USER"
        assert (home.strip().endswith("/home"), Path(home.strip()).exists()) == (True, False)

    def test_as_root_they_run_as_another_account_that_cannot_read_the_home(
        self, commands: UnconfinedCommands, theirs: Path
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can become another account")
        os.chown(theirs / "workspace", ORDINARY, ORDINARY)
        status, output = run(commands, f"id -u; touch x; cat {theirs}/private/secret 2>&1; ls", theirs / "workspace")
        assert (status, output) == (0, f"{ORDINARY}\ncat: {theirs}/private/secret: Permission denied\nx\n")

    def test_as_root_a_workspace_that_the_other_account_cannot_use_is_said(
        self, commands: UnconfinedCommands, theirs: Path
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can become another account")
        work = theirs / "workspace"
        said = run(commands, "echo ran", work)
        work.chmod(0o700)
        assert said == (
            0,
            f"outrider: {work} cannot be written to by account {ORDINARY}, which runs commands here; chown it\nran\n",
        )
        status, output = run(commands, "echo ran", work)
        assert (status, "cannot be read by account" in output, "ran" in output.split()) == (126, True, False)
