"""What a sandbox gives a command and what it keeps from it; the words it is made of."""

import os
import platform
import secrets
import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from outrider.core.errors import Refused
from outrider.workspaces.sandbox import BubblewrapSandbox, detect
from outrider.workspaces.sandbox.bubblewrap import command_group, find_system_paths
from outrider.workspaces.sandbox.seccomp import ARCHITECTURES, assemble_program, seccomp_file
from outrider.workspaces.sandbox.types import NoSandbox, SandboxGrant
from tests.support.outer import held, require_sandbox, run, start


@pytest.fixture
def sandbox() -> BubblewrapSandbox:
    return require_sandbox()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def tool(name: str) -> str:
    """The system's own; skips the test where it has none, or where it lies in somebody's home."""
    found = shutil.which(name, path="/usr/bin:/bin")
    return found or pytest.skip(f"this machine has no {name}")


def running(word: str) -> bool:
    """Whether any process of the machine was started with this word."""
    return any(word.encode() in _command_line(path) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _command_line(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


class TestOrdinaryCommands:
    """Nobody gives up a sandbox that lets them work."""

    @pytest.mark.parametrize(
        ("script", "output"),
        [
            ("printf 'b\\na\\n' | sort | tr a-z A-Z", "A\nB\n"),
            ("echo kept >file && cat file && ls", "kept\nfile\n"),
            ("f=$(mktemp) && echo x >$f && cat $f && rm $f", "x\n"),
            ("cd && pwd && touch .profile && ls -A", "/tmp/home\n.profile\n"),
            ("id -un; whoami; id -u", "outrider\noutrider\n1000\n"),
            ("TZ=UTC date -d @0 +%Y", "1970\n"),
            ("echo 'exit 3' >s && chmod +x s && (sh ./s; echo $?)", "3\n"),
            ("sleep 0 & wait; echo $?", "0\n"),
            ("echo x >/dev/null; head -c 4 /dev/zero | wc -c", "4\n"),
            ("echo x >/dev/shm/x && cat /dev/shm/x", "x\n"),
            ("test -d /proc/self && ls /proc/self/fd/0", "/proc/self/fd/0\n"),
        ],
    )
    def test_the_usual_things_work(self, sandbox: BubblewrapSandbox, folder: Path, script: str, output: str) -> None:
        assert run(sandbox, script, folder)[1] == output

    def test_the_exit_status_is_the_commands(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        scripts = ["exit 0", "exit 7", "no-such-command", "kill -KILL $$"]
        assert [run(sandbox, script, folder)[0] for script in scripts] == [0, 7, 127, 137]

    def test_a_missing_program_is_reported_as_by_a_shell(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        with held(folder) as paths, start(sandbox.wrap(["no-such-program"], paths, {})) as process:
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, "no-such-program" in output) == (127, True)

    def test_python_works(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        script = "import json, ssl, sqlite3, subprocess; print(subprocess.check_output(['echo', 'x']))"
        assert run(sandbox, f'{tool("python3")} -c "{script}"', folder) == (0, "b'x\\n'\n")

    def test_git_works(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        who = "-c user.name=Ann -c user.email=ann@example.com"
        script = f"{tool('git')} init -q && touch a && git add a && git {who} commit -qm first && git log --format=%s"
        assert run(sandbox, script, folder) == (0, "first\n")

    def test_a_compiler_works(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        script = f"echo 'int main(void) {{ return 42; }}' >a.c && {tool('gcc')} a.c -o a && ./a"
        assert run(sandbox, script, folder)[0] == 42

    def test_node_works_also_where_memory_is_bounded_for_each_process(
        self, sandbox: BubblewrapSandbox, folder: Path
    ) -> None:
        node = f"{tool('node')} -e 'console.log([1, 2].map(x => x * 2))'"
        single = msgspec.structs.replace(sandbox, cgroups=None)
        assert [run(box, node, folder) for box in (sandbox, single)] == [(0, "[ 2, 4 ]\n")] * 2

    def test_files_created_inside_belong_to_the_user_outside(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        run(sandbox, "mkdir made && touch made/file", folder)
        assert {path.stat().st_uid for path in (folder / "made", folder / "made/file")} == {os.geteuid()}


class TestWhatIsSeen:
    """The workspace, the system, and what was granted."""

    def test_the_environment_is_the_basic_variables_and_the_given_ones(
        self, sandbox: BubblewrapSandbox, folder: Path
    ) -> None:
        _, output = run(sandbox, "env | sort", folder, environ={"GREETING": "hello world", "LANG": "C"})
        assert output.splitlines() == [
            "GREETING=hello world",
            "HOME=/tmp/home",
            "LANG=C",
            "LC_ALL=C.UTF-8",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"PWD={folder}",
            "TERM=dumb",
            "TMPDIR=/tmp",
            "USER=outrider",
        ]

    def test_the_first_process_reveals_nothing_of_the_outside(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        with held(folder) as paths, closing(sandbox.wrap(["true"], paths, {"LD_PRELOAD": "/nowhere.so"})) as wrapped:
            assert dict(wrapped.environ) == {}
        script = (
            "tr '\\0' '\\n' </proc/1/environ | sort >a; env | sort | cmp - a; cat /proc/1/cmdline; readlink /proc/1/exe"
        )
        _, output = run(sandbox, script, folder)
        assert ("differ" in output, "bwrap" in output, str(Path(__file__).parents[2]) in output) == (
            False,
            False,
            False,
        )

    def test_a_folder_can_be_granted_for_reading_or_for_writing(
        self, sandbox: BubblewrapSandbox, tmp_path: Path
    ) -> None:
        names = ("workspace", "read", "write", "neither")
        mine, read, write, neither = (tmp_path / name for name in names)
        for path in (mine, read, write, neither):
            path.mkdir()
            (path / "file").write_text(f"{path.name}\n")
        script = "\n".join(f"cat {path}/file; echo x 2>/dev/null >{path}/new" for path in (mine, read, write, neither))
        _, output = run(
            sandbox, f"exec 2>/dev/null\n{script}", mine, SandboxGrant(read=(str(read),), write=(str(write),))
        )
        found = {path.name: (path.name in output, (path / "new").exists()) for path in (mine, read, write, neither)}
        assert found == {
            "workspace": (True, True),
            "read": (True, False),
            "write": (True, True),
            "neither": (False, False),
        }

    def test_programs_of_the_person_run_when_their_folder_is_granted(
        self, sandbox: BubblewrapSandbox, tmp_path: Path
    ) -> None:
        mine, programs = tmp_path / "workspace", tmp_path / "person" / "bin"
        mine.mkdir()
        programs.mkdir(parents=True)
        (programs / "greet").write_text("#!/bin/sh\necho hello\n")
        (programs / "greet").chmod(0o755)
        script, grant = f"{programs}/greet", SandboxGrant(read=(str(programs),))
        assert [run(sandbox, script, mine)[0], run(sandbox, script, mine, grant)] == [127, (0, "hello\n")]

    def test_a_grant_never_shows_outriders_own_folder(self, tmp_path: Path) -> None:
        person, home = tmp_path / "person", tmp_path / "person" / ".outrider"
        mine, key = home / "workspaces" / "mine", person / "key"
        mine.mkdir(parents=True)
        (home / "config.toml").write_text("secret")
        (person / "notes").write_text("plain\n")
        key.write_text("secret")
        sandbox = require_sandbox()
        script = f"cat {person}/notes; cat {key}; ls -A {home}; touch {home}/x; echo ok >kept"
        _, output = run(
            sandbox, f"exec 2>/dev/null; {script}", mine, SandboxGrant(read=(str(person),)), hidden=[home, key]
        )
        assert (output, (mine / "kept").read_text()) == ("plain\nworkspaces\n", "ok\n")

    @pytest.mark.parametrize("name", ["/", "/etc", "/proc/sys", "/dev", "/tmp", "/usr", "/sys/fs", "/home"])
    def test_folders_of_the_system_are_neither_workspace_nor_granted(
        self, sandbox: BubblewrapSandbox, folder: Path, name: str
    ) -> None:
        if not Path(name).is_dir():
            pytest.skip(f"this machine has no {name}")
        with held(Path(name)) as paths, pytest.raises(Refused, match="belongs to the system"):
            sandbox.wrap(["true"], paths, {})
        for grant in (SandboxGrant(read=(name,)), SandboxGrant(write=(name,))):
            with held(folder, grant) as paths, pytest.raises(Refused, match="belongs to the system"):
                sandbox.wrap(["true"], paths, {})

    def test_outriders_folder_is_neither_workspace_nor_granted_nor_reached_by_a_link(self, tmp_path: Path) -> None:
        home, mine, link = tmp_path / "home", tmp_path / "mine", tmp_path / "link"
        for path in (home / "keys", mine):
            path.mkdir(parents=True)
        link.symlink_to(home)
        sandbox = BubblewrapSandbox("bwrap", find_system_paths())
        for root in (home, link, tmp_path):
            with held(root, hidden=[home]) as paths, pytest.raises(Refused, match="Outrider's own"):
                sandbox.wrap(["true"], paths, {})
        for path in (home, link, link / "keys"):
            for grant in (SandboxGrant(read=(str(path),)), SandboxGrant(write=(str(path),))):
                with held(mine, grant, hidden=[home]) as paths, pytest.raises(Refused, match="Outrider's own"):
                    sandbox.wrap(["true"], paths, {})

    def test_a_command_starts_in_the_workspace_or_nowhere(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        (folder / "below").mkdir()
        with (
            held(folder, cwd=folder / "below") as paths,
            start(sandbox.wrap(["pwd"], paths, {})) as process,
        ):
            assert process.communicate(timeout=60)[0] == f"{folder}/below\n"
        with held(folder, cwd=folder.parent) as paths, pytest.raises(Refused, match="outside the workspace"):
            sandbox.wrap(["pwd"], paths, {})

    @pytest.mark.parametrize(
        ("argv", "environ"), [([], {}), (["a\0"], {}), (["a"], {"A=B": "c"}), (["a"], {"A": "\0"})]
    )
    def test_arguments_with_nul_characters_are_refused(
        self, folder: Path, argv: list[str], environ: dict[str, str]
    ) -> None:
        with held(folder) as paths, pytest.raises(Refused):
            BubblewrapSandbox("bwrap", find_system_paths()).wrap(argv, paths, environ)

    def test_a_network_that_was_granted_reaches_the_machines_own_listeners(
        self, sandbox: BubblewrapSandbox, folder: Path
    ) -> None:
        seen = [
            run(sandbox, "readlink /proc/self/ns/net", folder, SandboxGrant(network=on))[1].strip()
            for on in (True, False)
        ]
        here = os.readlink("/proc/self/ns/net")
        assert (seen[0] == here, seen[1] == here) == (True, False)


class TestEnding:
    """Nothing inside outlives what was started outside."""

    def begin(self, sandbox: BubblewrapSandbox, folder: Path, script: str) -> subprocess.Popen[str]:
        with held(folder) as paths:
            process = start(sandbox.wrap(["/bin/sh", "-c", script], paths, {}))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def test_killing_the_sandbox_ends_everything_inside(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        word = f"60{secrets.randbelow(10**9):09}"
        script = f"trap '' TERM HUP; setsid sleep {word} & sleep {word} & echo ready; wait"
        with self.begin(sandbox, folder, script) as process:
            assert running(word)
            os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None
            assert process.stdout.read() == ""  # the last of them has let go of it
        assert not running(word)

    def test_background_processes_end_with_the_command(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        word = f"60{secrets.randbelow(10**9):09}"
        with self.begin(sandbox, folder, f"setsid sleep {word} & echo ready") as process:
            assert process.communicate(timeout=60) == ("", None)
        assert not running(word)

    def test_a_command_can_handle_a_signal(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        script = "trap 'echo goodbye; exit 5' TERM; echo ready; while :; do sleep 0.1; done 2>/dev/null"
        with self.begin(sandbox, folder, script) as process:
            group = command_group(process.pid)
            assert group is not None
            os.killpg(group, signal.SIGTERM)
            assert process.communicate(timeout=60) == ("goodbye\n", None)
        assert (process.returncode, command_group(process.pid)) == (5, None)


class TestFindingOut:
    """Whether there is a sandbox is tried, and why not is told."""

    def test_it_describes_its_program_and_limits(self, sandbox: BubblewrapSandbox) -> None:
        assert sandbox.kind == "bubblewrap"
        assert sandbox.why.startswith(f"{sandbox.program}; ")

    def test_without_bubblewrap_it_says_what_to_install(self) -> None:
        found = detect(programs=[])
        assert isinstance(found, NoSandbox)
        assert (found.why, "apt install bubblewrap" in found.hint) == ("bubblewrap is not installed", True)

    @pytest.mark.parametrize(
        ("script", "why"),
        [
            ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "No permissions to create a new"),
            ("echo 'bwrap: Unknown option --bind-fd' >&2; exit 1", "Unknown option --bind-fd"),
            (
                'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
                "a command could see or change what it must not",
            ),
        ],
        ids=["forbidden", "too old", "confines nothing"],
    )
    def test_a_bubblewrap_that_does_not_confine_is_not_used(self, tmp_path: Path, script: str, why: str) -> None:
        fake = tmp_path / "bwrap"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        found = detect(programs=[str(fake)])
        assert isinstance(found, NoSandbox)
        assert (why in found.why, bool(found.hint)) == (True, True)

    def test_the_next_one_is_tried(self, sandbox: BubblewrapSandbox) -> None:
        found = detect(programs=["/nowhere/bwrap", sandbox.program])
        assert isinstance(found, BubblewrapSandbox)
        assert found.program == sandbox.program

    def test_the_shipped_filters_are_what_the_source_says(self) -> None:
        shipped = {kind: path.read_bytes() for kind in ARCHITECTURES if (path := seccomp_file(kind))}
        assert shipped == {kind: assemble_program(machine) for kind, machine in ARCHITECTURES.items()}

    def test_an_architecture_without_a_filter_is_supported(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        assert seccomp_file("pdp11") is None
        assert run(msgspec.structs.replace(sandbox, filter=None), "echo x", folder) == (0, "x\n")

    @pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no filter is shipped for this machine")
    def test_the_filter_is_in_force(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        assert run(sandbox, "grep ^Seccomp: /proc/self/status", folder) == (0, "Seccomp:\t2\n")
