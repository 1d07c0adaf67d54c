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
from outrider.workspaces.sandbox import BubblewrapSandbox, LandlockSandbox, Sandbox, detect
from outrider.workspaces.sandbox.detect import SandboxMode
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand, SandboxKind, SandboxLimits

ORDINARY = 65534
"""The account that stands for an ordinary user in tests that run as root."""

_WATCHED = ("/", "/etc", "/usr", "/usr/bin", "/usr/local/bin", "/etc/passwd", "/etc/hosts", "/etc/ld.so.preload")
_SETTINGS = ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/swappiness", "user/max_user_namespaces")

_BUBBLEWRAP_GUARD = """
[ "$(cat /proc/sys/kernel/hostname)" = sandbox ] || exit 99
grep -q '^CapEff:.0000000000000000$' /proc/self/status || exit 99
grep -Eq '^[^ ]+ / tmpfs ro,' /proc/mounts || exit 99
grep -Eq '^[^ ]+ /usr [^ ]+ ro,' /proc/mounts || grep -Eq '^[^ ]+ /bin [^ ]+ ro,' /proc/mounts || exit 99
[ ! -e "$OUTRIDER/store.db" ] || exit 99
"""
_LANDLOCK_GUARD = """
! cat "$OUTRIDER/store.db" >/dev/null 2>&1 || exit 99
! (: >>"$OUTER/x") 2>/dev/null || exit 99
! touch "$OUTER/x" 2>/dev/null || exit 99
! chmod 644 "$OUTER/x" 2>/dev/null || exit 99
! kill -0 "$VICTIM" 2>/dev/null || exit 99
! ls / >/dev/null 2>&1 || exit 99
"""
"""Each ends the script before it does harm, unless it is confined."""


@dataclass(frozen=True)
class Grant:
    """What an approval adds for one call."""

    network: bool = False
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


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


def require_sandbox(mode: SandboxMode = "auto", limits: SandboxLimits | None = None) -> Sandbox:
    """The sandbox of this machine; skips the test where there is none."""
    sandbox = detect(limits, mode=mode)
    if isinstance(sandbox, NoSandbox):
        pytest.skip(f"no sandbox: {sandbox.why}")
    return sandbox


def require_bubblewrap(limits: SandboxLimits | None = None) -> BubblewrapSandbox:
    sandbox = require_sandbox("bubblewrap", limits)
    assert isinstance(sandbox, BubblewrapSandbox)
    return sandbox


def require_landlock(limits: SandboxLimits | None = None) -> LandlockSandbox:
    sandbox = require_sandbox("landlock", limits)
    assert isinstance(sandbox, LandlockSandbox)
    return sandbox


def wrap(
    sandbox: Sandbox,
    argv: Sequence[str],
    folder: Path,
    grant: Grant | None = None,
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    hidden: Sequence[Path] = (),
) -> SandboxedCommand:
    """Wrap a command for this workspace. `start` closes what it holds."""
    with held(folder, grant, cwd, hidden) as paths:
        return sandbox.wrap(argv, paths, environ or {})


@contextmanager
def held(
    folder: Path, grant: Grant | None = None, cwd: Path | None = None, hidden: Sequence[Path] = ()
) -> Generator[HeldPaths]:
    """What a command sees, held open until the context ends."""
    own = grant or Grant()
    with ExitStack() as stack:

        def hold(path: Path | str) -> HeldPath:
            return stack.enter_context(closing(hold_path(os.path.realpath(path))))

        yield HeldPaths(
            root=hold(folder),
            cwd=hold(cwd or folder),
            write=tuple(map(hold, own.write)),
            read=tuple(map(hold, own.read)),
            hidden=HiddenFiles(tuple(map(str, hidden))).tops(),
            network=own.network,
        )


def start(wrapped: SandboxedCommand, prefix: Sequence[str] = (), account: int | None = None) -> subprocess.Popen[str]:
    with closing(wrapped):
        return subprocess.Popen(
            [*prefix, *wrapped.argv],
            env=wrapped.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            start_new_session=True,
            pass_fds=wrapped.descriptors,
            user=account,
            group=account,
            extra_groups=None if account is None else [],
            preexec_fn=_bound(wrapped.rlimits),
        )


def run(
    sandbox: Sandbox,
    script: str,
    folder: Path,
    grant: Grant | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    hidden: Sequence[Path] = (),
    account: int | None = None,
) -> tuple[int, str]:
    """Exit status and output of a shell script in the sandbox, with the limits of a task."""
    wrapped = wrap(sandbox, ["/bin/sh", "-c", script], folder, grant, environ=environ, hidden=hidden)
    task = f"test-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        prefix: Sequence[str] = ()
        if sandbox.cgroups:
            prefix = sandbox.cgroups.prepare(task, sandbox.limits)
            stack.callback(sandbox.cgroups.clean, task)
        process = stack.enter_context(start(wrapped, prefix, account))
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, output


def guarded(commands: Sequence[str], kind: SandboxKind) -> str:
    """A script that runs each command in turn and prints which of them succeeded."""
    tries = [
        f"printf '\\n=== {number}\\n'; timeout -s KILL 10 sh -c {shlex.quote(command)} 2>&1 && echo ESCAPED"
        for number, command in enumerate(commands)
    ]
    guard = _BUBBLEWRAP_GUARD if kind == "bubblewrap" else _LANDLOCK_GUARD
    return "\n".join([guard, *tries, "printf '\\n=== end\\n'"])


@contextmanager
def outer_world(folder: Path, account: int | None = None) -> Generator[OuterWorld]:
    """Set it up below this folder, with a process and listeners that end with the context.

    All of it belongs to `account`, so that only a sandbox keeps a command of that account from it.
    """
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
        paths = {"SOCKET": str(folder / "listener"), "DATAGRAM": str(folder / "datagrams")}
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
            (socket.AF_UNIX, socket.SOCK_STREAM, paths["SOCKET"]),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_DGRAM, paths["DATAGRAM"]),
        ]
        listeners = [stack.enter_context(_listener(*address)) for address in addresses]
        victim = stack.enter_context(_victim(canary, account))
        shared, terminal = stack.enter_context(_shared_memory(canary)), stack.enter_context(_terminal())
        if account is not None:
            for path in (folder, *folder.rglob("*"), *map(Path, filter(None, (shared, terminal)))):
                os.lchown(path, account, account)
        environ = {"PERSON": str(person), "OUTRIDER": str(home), "OTHER": str(other), "OUTER": str(folder / "nobody")}
        environ |= {"VICTIM": str(victim), "PORT": str(listeners[0].getsockname()[1]), "ABSTRACT": abstract}
        environ |= {"UDP": str(listeners[3].getsockname()[1]), "SHARED": shared, "TERMINAL": terminal, **paths}
        yield OuterWorld(folder, canary, victim, environ, listeners)


def _listener(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    listener.setblocking(False)
    return listener


@contextmanager
def _victim(canary: str, account: int | None) -> Generator[int]:
    command = ["sh", "-c", f"read -r _; : outrider-canary {canary}"]
    environ = {"KEY": canary, "PATH": os.defpath}
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, start_new_session=True, user=account, group=account
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def _shared_memory(canary: str) -> Generator[str]:
    """A file in /dev/shm, as programs of the person have them; empty where there is no such folder."""
    path = Path("/dev/shm") / f"outrider-test-{secrets.token_hex(8)}"
    if not os.access(path.parent, os.W_OK):
        yield ""
        return
    path.write_text(f"{canary}\n")
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _terminal() -> Generator[str]:
    """A terminal of the person; empty where there are none."""
    try:
        control, terminal = os.openpty()
    except OSError:
        yield ""
        return
    try:
        yield os.ttyname(terminal)
    finally:
        os.close(control)
        os.close(terminal)


def _bound(limits: Mapping[str, int]) -> Callable[[], None]:
    def apply() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))

    return apply


def _was_reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(1)
        else:
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
