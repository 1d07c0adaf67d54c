"""The world outside a sandbox, with canaries that a command inside must neither see nor change."""

import os
import resource
import secrets
import shlex
import socket
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.workspaces.held_paths import HeldPath, HeldPaths, HiddenFiles, hold_path
from outrider.workspaces.sandbox import BubblewrapSandbox, detect
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand, SandboxGrant, SandboxLimits

_WATCHED = ("/", "/etc", "/usr", "/usr/bin", "/usr/local/bin", "/etc/passwd", "/etc/hosts", "/etc/ld.so.preload")
_SETTINGS = ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/swappiness", "user/max_user_namespaces")

_GUARD = """
[ "$(cat /proc/sys/kernel/hostname)" = sandbox ] || exit 99
grep -q '^CapEff:.0000000000000000$' /proc/self/status || exit 99
grep -Eq '^[^ ]+ / tmpfs ro,' /proc/mounts || exit 99
grep -Eq '^[^ ]+ /usr [^ ]+ ro,' /proc/mounts || grep -Eq '^[^ ]+ /bin [^ ]+ ro,' /proc/mounts || exit 99
[ ! -e "$OUTRIDER/store.db" ] || exit 99
"""
"""Ends the script before it does harm, unless it is confined."""


@dataclass(frozen=True)
class OuterWorld:
    """A person's home with Outrider's home in it, a process and some listeners."""

    folder: Path
    canary: str
    victim: int
    environ: Mapping[str, str]
    listeners: Sequence[socket.socket]

    @property
    def person(self) -> Path:
        return self.folder / "person"

    @property
    def home(self) -> Path:
        return self.person / ".outrider"

    @property
    def workspace(self) -> Path:
        return self.home / "workspaces" / "mine"

    def reached_listeners(self) -> list[str]:
        """The listeners that got a connection."""
        return [str(listener.getsockname()) for listener in self.listeners if _was_reached(listener)]

    def state(self) -> dict[str, object]:
        """A snapshot of the outside: the content of the folders and the state of the system."""
        state: dict[str, object] = {
            str(path.relative_to(self.folder)): (path.lstat().st_mode, path.lstat().st_mtime_ns, _content(path))
            for path in sorted(self.folder.rglob("*"))
            if not path.is_relative_to(self.workspace)
        }
        state |= {path: _stamp(path) for path in _WATCHED}
        state |= {str(path): _mode(path) for top in ("/dev", "/proc") for path in Path(top).glob("[a-z]*")}
        state |= {name: _content(Path("/proc/sys") / name) for name in _SETTINGS}
        state["victim"] = Path(f"/proc/{self.victim}/stat").read_text().rpartition(")")[2].split()[0] in "SDR"
        return state


def require_sandbox(limits: SandboxLimits | None = None) -> BubblewrapSandbox:
    """The sandbox of this machine; skips the test where there is none."""
    sandbox = detect(limits)
    if isinstance(sandbox, NoSandbox):
        pytest.skip(f"no sandbox: {sandbox.why}")
    return sandbox


@contextmanager
def held(
    folder: Path, grant: SandboxGrant | None = None, cwd: Path | None = None, hidden: Sequence[Path] = ()
) -> Generator[HeldPaths]:
    """What a command sees, held open until the context ends."""
    grant = grant or SandboxGrant()
    with ExitStack() as stack:

        def hold(path: Path | str) -> HeldPath:
            return stack.enter_context(closing(hold_path(os.path.realpath(path))))

        yield HeldPaths(
            root=hold(folder),
            cwd=hold(cwd or folder),
            write=tuple(map(hold, grant.write)),
            read=tuple(map(hold, grant.read)),
            hidden=HiddenFiles(tuple(map(str, hidden))).tops(),
            network=grant.network,
        )


def start(wrapped: SandboxedCommand, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start it and close its descriptors here."""
    with closing(wrapped):
        return _start(wrapped, prefix)


def _start(wrapped: SandboxedCommand, prefix: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, *wrapped.argv],
        pass_fds=wrapped.descriptors,
        env=wrapped.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        start_new_session=True,
        preexec_fn=_bound(wrapped.rlimits),
    )


def run(
    sandbox: BubblewrapSandbox,
    script: str,
    folder: Path,
    grant: SandboxGrant | None = None,
    environ: Mapping[str, str] | None = None,
    hidden: Sequence[Path] = (),
) -> tuple[int, str]:
    """Exit status and output of a shell script in the sandbox, with the limits of a task."""
    with held(folder, grant, hidden=hidden) as paths:
        wrapped = sandbox.wrap(["/bin/sh", "-c", script], paths, environ or {})
    task = f"test-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        prefix: Sequence[str] = ()
        if sandbox.cgroups:
            prefix = sandbox.cgroups.prepare(task, sandbox.limits)
            stack.callback(sandbox.cgroups.clean, task)
        process = stack.enter_context(start(wrapped, prefix))
        try:
            output, _ = process.communicate(timeout=90)
        finally:
            process.kill()
    return process.returncode, output


def guarded(commands: Sequence[str]) -> str:
    """A script that runs each command in turn and prints which of them succeeded."""
    tries = [
        f"printf '\\n=== {number}\\n'; timeout -s KILL 10 sh -c {shlex.quote(command)} 2>&1 && echo ESCAPED"
        for number, command in enumerate(commands)
    ]
    return "\n".join([_GUARD, *tries, "printf '\\n=== end\\n'"])


@contextmanager
def outer_world(folder: Path) -> Generator[OuterWorld]:
    """Set it up below this folder, with a process and listeners that end with the context."""
    canary = f"CANARY-{secrets.token_hex(12)}"
    person, home = folder / "person", folder / "person" / ".outrider"
    other, mine = home / "workspaces" / "other", home / "workspaces" / "mine"
    secret_files = [person / ".ssh/id_ed25519", person / ".bashrc", person / ".aws/credentials", other / "secret.txt"]
    for path in [*secret_files, home / "config.toml", home / "store.db", home / "keys/api", folder / "nobody/x"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{canary}\n")
    mine.mkdir()
    (mine / "link").symlink_to(person)
    (mine / "link-file").symlink_to(home / "store.db")
    with ExitStack() as stack:
        abstract = f"outrider-listener-{secrets.token_hex(8)}"
        listeners = [stack.enter_context(socket.socket(family)) for family in (socket.AF_INET, *[socket.AF_UNIX] * 2)]
        for listener, at in zip(listeners, (("127.0.0.1", 0), f"\0{abstract}", str(folder / "listener")), strict=True):
            listener.bind(at)
            listener.listen()
            listener.setblocking(False)
        victim = stack.enter_context(_victim(canary))
        environ = {"PERSON": str(person), "OUTRIDER": str(home), "OTHER": str(other), "OUTER": str(folder / "nobody")}
        environ |= {"VICTIM": str(victim), "PORT": str(listeners[0].getsockname()[1]), "ABSTRACT": abstract}
        yield OuterWorld(folder, canary, victim, {**environ, "SOCKET": str(folder / "listener")}, listeners)


@contextmanager
def _victim(canary: str) -> Generator[int]:
    command = ["sh", "-c", f"read -r _; : outrider-canary {canary}"]
    environ = {"KEY": canary, "PATH": os.defpath}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _bound(limits: Mapping[str, int]) -> Callable[[], None]:
    def apply() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))

    return apply


def _was_reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _content(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else None


def _mode(path: Path) -> object:
    status = path.lstat()
    return status.st_mode, status.st_uid, status.st_gid


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mode, status.st_uid, status.st_mtime_ns
