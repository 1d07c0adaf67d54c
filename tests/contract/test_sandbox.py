"""What a command can and cannot reach in a sandbox, and the sandbox's command line."""

import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from outrider.core.errors import Refused
from outrider.workspaces.sandbox import BubblewrapSandbox, LandlockSandbox, Sandbox, detect
from outrider.workspaces.sandbox.bubblewrap import command_group, find_system_paths
from outrider.workspaces.sandbox.detect import SandboxMode
from outrider.workspaces.sandbox.seccomp import ARCHITECTURES, assemble_program, seccomp_file
from outrider.workspaces.sandbox.types import NoSandbox
from tests.support.outer import Grant, require_bubblewrap, require_landlock, require_sandbox, run, start, wrap


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    kind: SandboxMode = request.param
    return require_sandbox(kind)


@pytest.fixture
def bubblewrap() -> BubblewrapSandbox:
    return require_bubblewrap()


@pytest.fixture
def landlock() -> LandlockSandbox:
    return require_landlock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def tool(name: str) -> str:
    """The system's own; skips the test where it has none, or where it is in a home folder."""
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
            ('cd && [ "$PWD" = "$HOME" ] && touch .profile && ls -A', ".profile\n"),
            ("touch a && chmod 750 a && stat -c %a a && touch -d @0 a && stat -c %Y a && cp -a a b", "750\n0\n"),
            ("mkdir d && tar cf d.tar d && rm -r d && tar xf d.tar && ls -d d", "d\n"),
            ('[ "$(id -un)" ] && [ "$(id -u)" ] && echo known', "known\n"),
            ("TZ=UTC date -d @0 +%Y", "1970\n"),
            ("echo 'exit 3' >s && chmod +x s && (sh ./s; echo $?)", "3\n"),
            ("sleep 0 & wait; echo $?", "0\n"),
            ("echo x >/dev/null; head -c 4 /dev/zero | wc -c", "4\n"),
            ("test -d /proc/self && ls /proc/self/fd/0", "/proc/self/fd/0\n"),
            ("nice -n 5 sleep 60 & kill $!; wait $! 2>/dev/null; echo $?", "143\n"),
        ],
    )
    def test_the_usual_things_work(self, sandbox: Sandbox, folder: Path, script: str, output: str) -> None:
        assert run(sandbox, script, folder)[1] == output

    def test_the_exit_status_is_the_commands(self, sandbox: Sandbox, folder: Path) -> None:
        scripts = ["exit 0", "exit 7", "no-such-command", "kill -KILL $$"]
        assert [run(sandbox, script, folder)[0] for script in scripts] == [0, 7, 127, 137]

    def test_a_missing_program_is_reported_as_by_a_shell(self, sandbox: Sandbox, folder: Path) -> None:
        wrapped = wrap(sandbox, ["no-such-program"], folder)
        with start(wrapped) as process:
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, "no-such-program" in output) == (127, True)

    def test_python_works(self, sandbox: Sandbox, folder: Path) -> None:
        script = "import json, ssl, sqlite3, subprocess; print(subprocess.check_output(['echo', 'x']))"
        assert run(sandbox, f'{tool("python3")} -c "{script}"', folder) == (0, "b'x\\n'\n")

    def test_git_works(self, sandbox: Sandbox, folder: Path) -> None:
        who = "-c user.name=Ann -c user.email=ann@example.com"
        script = f"{tool('git')} init -q && touch a && git add a && git {who} commit -qm first && git log --format=%s"
        assert run(sandbox, script, folder) == (0, "first\n")

    def test_a_compiler_works(self, sandbox: Sandbox, folder: Path) -> None:
        script = f"echo 'int main(void) {{ return 42; }}' >a.c && {tool('gcc')} a.c -o a && ./a"
        assert run(sandbox, script, folder)[0] == 42

    def test_node_works_also_where_memory_is_bounded_for_each_process(self, sandbox: Sandbox, folder: Path) -> None:
        node = f"{tool('node')} -e 'console.log([1, 2].map(x => x * 2))'"
        assert isinstance(sandbox, BubblewrapSandbox | LandlockSandbox)
        single = msgspec.structs.replace(sandbox, cgroups=None)
        assert [run(box, node, folder) for box in (sandbox, single)] == [(0, "[ 2, 4 ]\n")] * 2

    def test_npm_installs_a_package(self, sandbox: Sandbox, folder: Path) -> None:
        package = """{"name": "greet", "version": "1.0.0", "bin": {"greet": "greet.js"}}"""
        script = f"""mkdir a b && cd a && echo '{package}' >package.json
            printf '#!/usr/bin/env node\\nconsole.log("hello")\\n' >greet.js && {tool("npm")} pack --silent >/dev/null
            cd ../b && echo '{{}}' >package.json && npm install --silent --offline ../a/greet-1.0.0.tgz
            ./node_modules/.bin/greet"""
        assert run(sandbox, script, folder) == (0, "hello\n")

    def test_a_virtual_environment_can_be_created(self, sandbox: Sandbox, folder: Path) -> None:
        script = f"{tool('python3')} -m venv --without-pip v && v/bin/python -c 'print(1)'"
        assert run(sandbox, script, folder) == (0, "1\n")

    def test_make_works(self, sandbox: Sandbox, folder: Path) -> None:
        (folder / "Makefile").write_text("b: a\n\tcp a b\n")
        assert run(sandbox, f"echo x >a && {tool('make')} -s && touch -d @0 b && make -s && cat b", folder) == (
            0,
            "x\n",
        )

    def test_files_created_inside_belong_to_the_user_outside(self, sandbox: Sandbox, folder: Path) -> None:
        run(sandbox, "mkdir made && touch made/file", folder)
        assert {path.stat().st_uid for path in (folder / "made", folder / "made/file")} == {os.geteuid()}


class TestWhatIsSeen:
    """The workspace, the system, and what was granted."""

    def test_the_environment_is_the_basic_variables_and_the_given_ones(self, sandbox: Sandbox, folder: Path) -> None:
        _, output = run(sandbox, "env | sort", folder, environ={"GREETING": "hello world", "LANG": "C"})
        seen = dict(line.split("=", 1) for line in output.splitlines())
        home, temporary = seen.pop("HOME"), seen.pop("TMPDIR")
        own = {} if sandbox.kind == "bubblewrap" else {"GIT_CONFIG_NOSYSTEM": "1"}
        own |= {"TAR_OPTIONS": "--no-same-owner"} if sandbox.kind == "landlock" and os.geteuid() == 0 else {}
        assert seen == {
            "GREETING": "hello world",
            "LANG": "C",
            "LC_ALL": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PWD": str(folder),
            "TERM": "dumb",
            "USER": "outrider",
            **own,
        }
        is_private = sandbox.kind == "bubblewrap" or not (Path(home).exists() or Path(temporary).exists())
        assert (home.endswith("/home"), temporary.endswith("tmp"), is_private) == (True, True, True)

    def test_the_first_process_reveals_nothing_of_the_outside(
        self, bubblewrap: BubblewrapSandbox, folder: Path
    ) -> None:
        wrapped = wrap(bubblewrap, ["true"], folder, environ={"LD_PRELOAD": "/nowhere.so"})
        wrapped.close()
        assert dict(wrapped.environ) == {}
        script = (
            "tr '\\0' '\\n' </proc/1/environ | sort >a; env | sort | cmp - a; cat /proc/1/cmdline; readlink /proc/1/exe"
        )
        _, output = run(bubblewrap, script, folder)
        assert ("differ" in output, "bwrap" in output, str(Path(__file__).parents[2]) in output) == (
            False,
            False,
            False,
        )

    def test_a_folder_can_be_granted_for_reading_or_for_writing(self, sandbox: Sandbox, tmp_path: Path) -> None:
        names = ("workspace", "read", "write", "neither")
        mine, read, write, neither = (tmp_path / name for name in names)
        for path in (mine, read, write, neither):
            path.mkdir()
            (path / "file").write_text(f"{path.name}\n")
        script = "\n".join(f"cat {path}/file; echo x 2>/dev/null >{path}/new" for path in (mine, read, write, neither))
        _, output = run(sandbox, f"exec 2>/dev/null\n{script}", mine, Grant(read=(str(read),), write=(str(write),)))
        found = {path.name: (path.name in output, (path / "new").exists()) for path in (mine, read, write, neither)}
        assert found == {
            "workspace": (True, True),
            "read": (True, False),
            "write": (True, True),
            "neither": (False, False),
        }

    def test_programs_of_the_person_run_when_their_folder_is_granted(self, sandbox: Sandbox, tmp_path: Path) -> None:
        mine, programs = tmp_path / "workspace", tmp_path / "person" / "bin"
        mine.mkdir()
        programs.mkdir(parents=True)
        (programs / "greet").write_text("#!/bin/sh\necho hello\n")
        (programs / "greet").chmod(0o755)
        script, grant = f"{programs}/greet", Grant(read=(str(programs),))
        assert run(sandbox, script, mine)[0] == (127 if sandbox.kind == "bubblewrap" else 126)
        assert run(sandbox, script, mine, grant) == (0, "hello\n")

    def test_a_grant_never_shows_outriders_own_folder(self, sandbox: Sandbox, tmp_path: Path) -> None:
        person, home = tmp_path / "person", tmp_path / "person" / ".outrider"
        mine, key = home / "workspaces" / "mine", person / "key"
        mine.mkdir(parents=True)
        (home / "config.toml").write_text("secret")
        (person / "notes").write_text("plain\n")
        key.write_text("secret")
        script = f"cat {person}/notes; cat {key} {home}/config.toml; touch {home}/x; ls -A {home}; echo ok >kept"
        granted = Grant(read=(str(person),))
        _, output = run(sandbox, f"exec 2>/dev/null; {script}", mine, granted, hidden=[home, key])
        listing = "workspaces\n" if sandbox.kind == "bubblewrap" else ""
        assert (output, (mine / "kept").read_text()) == (f"plain\n{listing}", "ok\n")

    @pytest.mark.parametrize("name", ["/", "/etc", "/proc/sys", "/dev", "/tmp", "/usr", "/sys/fs", "/home"])
    def test_folders_of_the_system_are_neither_workspace_nor_granted(
        self, sandbox: Sandbox, folder: Path, name: str
    ) -> None:
        if not Path(name).is_dir():
            pytest.skip(f"this machine has no {name}")
        with pytest.raises(Refused, match="belongs to the system"):
            wrap(sandbox, ["true"], Path(name))
        for grant in (Grant(read=(name,)), Grant(write=(name,))):
            with pytest.raises(Refused, match="belongs to the system"):
                wrap(sandbox, ["true"], folder, grant)

    @pytest.mark.parametrize("name", ["/proc/1/environ", "/dev/shm", "/sys/fs"])
    def test_what_is_in_a_folder_of_the_kernel_is_refused_without_advice_to_go_deeper(
        self, sandbox: Sandbox, folder: Path, name: str
    ) -> None:
        if not Path(name).exists():
            pytest.skip(f"this machine has no {name}")
        with pytest.raises(Refused) as refused:
            wrap(sandbox, ["true"], folder, Grant(read=(name,)))
        top = "/" + name.split("/")[1]
        assert str(refused.value) == f"{name} belongs to the system, like everything in {top}; choose a path elsewhere"

    def test_outriders_folder_is_neither_workspace_nor_granted_nor_reached_by_a_link(self, tmp_path: Path) -> None:
        home, mine, link = tmp_path / "home", tmp_path / "mine", tmp_path / "link"
        for path in (home / "keys", mine):
            path.mkdir(parents=True)
        link.symlink_to(home)
        sandbox = BubblewrapSandbox("bwrap", find_system_paths())
        for root in (home, link, tmp_path):
            with pytest.raises(Refused, match="Outrider's own"):
                wrap(sandbox, ["true"], root, hidden=[home])
        for path in (home, link, link / "keys"):
            for grant in (Grant(read=(str(path),)), Grant(write=(str(path),))):
                with pytest.raises(Refused, match="Outrider's own"):
                    wrap(sandbox, ["true"], mine, grant, hidden=[home])

    def test_a_command_starts_in_the_workspace_or_nowhere(self, sandbox: Sandbox, folder: Path) -> None:
        (folder / "below").mkdir()
        wrapped = wrap(sandbox, ["pwd"], folder, cwd=folder / "below")
        with start(wrapped) as process:
            assert process.communicate(timeout=60)[0] == f"{folder}/below\n"
        with pytest.raises(Refused, match="outside the workspace"):
            wrap(sandbox, ["pwd"], folder, cwd=folder.parent)

    @pytest.mark.parametrize(
        ("argv", "environ"), [([], {}), (["a\0"], {}), (["a"], {"A=B": "c"}), (["a"], {"A": "\0"})]
    )
    def test_arguments_with_nul_characters_are_refused(
        self, sandbox: Sandbox, folder: Path, argv: list[str], environ: dict[str, str]
    ) -> None:
        with pytest.raises(Refused):
            wrap(sandbox, argv, folder, environ=environ)

    def test_a_network_that_was_granted_reaches_the_machines_own_listeners(
        self, sandbox: Sandbox, folder: Path
    ) -> None:
        script = (
            f"{tool('python3')} -c 'import os, socket; socket.create_connection((\"127.0.0.1\", %d), 5)' 2>/dev/null"
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = script % listener.getsockname()[1]
            seen = [run(sandbox, command, folder, Grant(network=on))[0] == 0 for on in (True, False)]
        assert seen == [True, False]

    def test_no_socket_of_another_program_is_reached_even_with_network(self, sandbox: Sandbox, tmp_path: Path) -> None:
        mine = tmp_path / "mine"
        mine.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            listener.listen()
            script = f"import socket; socket.socket(socket.AF_UNIX).connect('{tmp_path}/socket')"
            status, _ = run(sandbox, f'{tool("python3")} -c "{script}"', mine, Grant(network=True))
        assert status == 1


class TestEnding:
    """Nothing inside outlives what was started outside."""

    def begin(self, sandbox: Sandbox, folder: Path, script: str) -> subprocess.Popen[str]:
        process = start(wrap(sandbox, ["/bin/sh", "-c", script], folder))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def test_killing_the_sandbox_ends_everything_inside(self, sandbox: Sandbox, folder: Path) -> None:
        word = f"60{secrets.randbelow(10**9):09}"
        script = f"trap '' TERM HUP; setsid sleep {word} & sleep {word} & echo ready; wait"
        with self.begin(sandbox, folder, script) as process:
            assert running(word)
            os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None
            assert process.stdout.read() == ""  # the last of them has let go of it
        assert not running(word)

    def test_background_processes_end_with_the_command(self, sandbox: Sandbox, folder: Path) -> None:
        word = f"60{secrets.randbelow(10**9):09}"
        with self.begin(sandbox, folder, f"setsid sleep {word} & echo ready") as process:
            assert process.communicate(timeout=60) == ("", None)
        assert not running(word)

    def test_a_command_can_handle_a_signal(self, sandbox: Sandbox, folder: Path) -> None:
        script = "trap 'echo goodbye; exit 5' TERM; echo ready; while :; do sleep 0.1; done 2>/dev/null"
        with self.begin(sandbox, folder, script) as process:
            group = command_group(process.pid)
            assert group is not None
            os.killpg(group, signal.SIGTERM)
            assert process.communicate(timeout=60) == ("goodbye\n", None)
        assert (process.returncode, command_group(process.pid)) == (5, None)


class TestFindingOut:
    """Whether there is a sandbox is tried, and why not is told."""

    def test_it_describes_its_program_and_limits(self, bubblewrap: BubblewrapSandbox) -> None:
        assert bubblewrap.kind == "bubblewrap"
        assert bubblewrap.why.startswith(f"{bubblewrap.program}; ")

    def test_without_bubblewrap_it_says_what_to_install(self) -> None:
        found = detect(programs=[], mode="bubblewrap")
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
        found = detect(programs=[str(fake)], mode="bubblewrap")
        assert isinstance(found, NoSandbox)
        assert (why in found.why, bool(found.hint)) == (True, True)

    def test_the_next_one_is_tried(self, bubblewrap: BubblewrapSandbox) -> None:
        found = detect(programs=["/nowhere/bwrap", bubblewrap.program], mode="bubblewrap")
        assert isinstance(found, BubblewrapSandbox)
        assert found.program == bubblewrap.program

    def test_the_shipped_filters_are_what_the_source_says(self) -> None:
        shipped = {kind: path.read_bytes() for kind in ARCHITECTURES if (path := seccomp_file(kind))}
        assert shipped == {kind: assemble_program(machine) for kind, machine in ARCHITECTURES.items()}

    def test_an_architecture_without_a_filter_is_supported(self, bubblewrap: BubblewrapSandbox, folder: Path) -> None:
        assert seccomp_file("pdp11") is None
        assert run(msgspec.structs.replace(bubblewrap, filter=None), "echo x", folder) == (0, "x\n")

    @pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no filter is shipped for this machine")
    def test_the_filter_is_in_force(self, bubblewrap: BubblewrapSandbox, folder: Path) -> None:
        assert run(bubblewrap, "grep ^Seccomp: /proc/self/status", folder) == (0, "Seccomp:\t2\n")
