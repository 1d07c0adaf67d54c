"""The Landlock sandbox, for machines that refuse user namespaces, and commands without any sandbox.

Both are started by the launcher, in a process tree that ends with the command, with a home and temporary folder of
their own. docs/sandbox.md compares this sandbox with bubblewrap.
"""

import fcntl
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.held_paths import HeldPath, HeldPaths
from outrider.workspaces.sandbox.bubblewrap import (
    SystemPaths,
    check_visible_paths,
    sandbox_environment,
)
from outrider.workspaces.sandbox.cgroups import Cgroups
from outrider.workspaces.sandbox.landlock_filter import CALLS, NOTIFIED, assemble_filter
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand, SandboxLimits

LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).parent / "landlock_launcher.py"))
MIN_ABI, MAX_ABI = 3, 7
"""Before version 3, a command could empty files that it may only read. Version 7 is the newest that was tested."""
NOT_HELD = (
    "a command can find out the attributes of files outside, one name at a time, but not their content",
    "a command has no /tmp, /dev/shm or /proc of its own: programs that need them fail",
    "its processes cannot listen on a port or on a named unix socket",
    "files below .git are not protected from commands",
    "the size of its temporary folder is not limited",
)
"""How it protects less than bubblewrap, for `outrider doctor`."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ETC = ("/etc/passwd", "/etc/group", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d", "/etc/wgetrc")
"""Without accounts, git, npm and ssh do not work; inside bubblewrap there are others in their place. Without these
settings, which exist, ssh and wget do not."""
_PROC = (
    *("meminfo", "cpuinfo", "stat", "uptime", "loadavg", "version", "filesystems"),
    *("sys/kernel/osrelease", "sys/kernel/ostype", "sys/kernel/pid_max", "sys/kernel/cap_last_cap"),
    *("sys/kernel/random/boot_id", "sys/kernel/random/uuid", "sys/kernel/ngroups_max", "sys/kernel/threads-max"),
    *("sys/vm/overcommit_memory", "sys/vm/max_map_count", "sys/fs/file-max", "sys/fs/nr_open", "sys/fs/pipe-max-size"),
)
"""Of /proc only these: the folders of processes would show the arguments of every process of the machine."""
_OTHER_ACCOUNT = 65534


def landlock_abi() -> int | NoSandbox:
    """The version of Landlock that the kernel offers, or why it offers none."""
    import ctypes
    import errno

    libc = ctypes.CDLL(None, use_errno=True)
    version = int(libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    if version >= MIN_ABI:
        return min(version, MAX_ABI)
    if version > 0:
        return NoSandbox(
            f"this kernel's Landlock is version {version}, and {MIN_ABI} is needed", "use Linux 6.2 or newer"
        )
    if ctypes.get_errno() == errno.EOPNOTSUPP:
        return NoSandbox("Landlock is disabled on this machine", "add landlock to the kernel's boot parameter lsm=")
    if ctypes.get_errno() == errno.EPERM:
        return NoSandbox("the rules of this container forbid Landlock", "update Docker, or allow its system calls")
    return NoSandbox("this kernel has no Landlock", "use Linux 6.2 or newer")


class LandlockSandbox(Struct, frozen=True):
    """Runs commands that can open their workspace and nothing else of the person's files."""

    abi: int
    system: SystemPaths
    filter: str
    """The file with the seccomp filter that every sandbox has."""
    program: tuple[str, ...] = LAUNCHER
    limits: SandboxLimits = SandboxLimits()
    cgroups: Cgroups | None = None
    why: str = ""
    instead: NoSandbox | None = None
    """Why it is not bubblewrap."""
    kind: Literal["landlock"] = "landlock"

    def wrap(
        self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str], git_settings: str = ""
    ) -> SandboxedCommand:
        hidden = [path for path, _ in paths.hidden]
        check_visible_paths(paths)
        if paths.program:
            raise Refused(
                f"the workspace contains the program of Outrider ({paths.root.path}/{paths.program[0]}), which this "
                "sandbox cannot keep a command from changing; work in another folder, or install Outrider elsewhere"
            )
        machine = platform.machine()
        system = (*self.system.folders, *self.system.etc, *_ETC, *(f"/proc/{name}" for name in _PROC))
        if paths.network:
            system = (*system, *self.system.network)
        calls = ",".join(f"{name}:{number}" for name, number in CALLS[machine].items() if name in NOTIFIED)
        words = [
            f"abi={self.abi}",
            f"network={int(paths.network)}",
            *(f"system={path}" for path in system),
            *(f"device=/dev/{name}" for name in _DEVICES),
            *(f"hidden={path}" for path in hidden),
            f"filter={self.filter}",
            f"notify={assemble_filter(machine, self.abi, network=paths.network).hex()}",
            f"calls={calls}",
        ]
        # The machine's settings of git exist but cannot be read, which git does not accept.
        environ = {"GIT_CONFIG_NOSYSTEM": "1", **environ}
        if os.geteuid() == 0:
            # Root without capabilities cannot give files away, and tar fails when it tries.
            environ = {"TAR_OPTIONS": "--no-same-owner", **environ}
        return _launch(self, [*words, f"gitconfig={git_settings}"], argv, paths, environ)


class UnconfinedCommands(Struct, frozen=True):
    """Runs commands without a sandbox, for machines that are themselves disposable.

    As root, they run as another account, which cannot read Outrider's home. Any other account cannot become another.
    """

    program: tuple[str, ...] = LAUNCHER
    limits: SandboxLimits = SandboxLimits()
    cgroups: Cgroups | None = None
    why: str = ""
    kind: Literal["off"] = "off"

    def wrap(
        self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str], git_settings: str = ""
    ) -> SandboxedCommand:
        if sys.platform != "linux":
            if os.geteuid() == 0:
                raise Refused("sandbox.mode is off: run Outrider as a normal user, whose account commands then have")
            own = {"HOME": tempfile.gettempdir(), "TMPDIR": tempfile.gettempdir()}
            return SandboxedCommand(tuple(argv), {**sandbox_environment(environ), **own})
        words = ["abi=0", *([f"account={_OTHER_ACCOUNT}"] if os.geteuid() == 0 else [])]
        return _launch(self, [*words, f"gitconfig={git_settings}"], argv, paths, environ)


def _launch(
    sandbox: LandlockSandbox | UnconfinedCommands,
    words: Sequence[str],
    argv: Sequence[str],
    paths: HeldPaths,
    environ: Mapping[str, str],
) -> SandboxedCommand:
    if not argv or any("\0" in word for word in argv):
        raise Refused("a command needs at least one word, and no word may contain a NUL character")
    limits = sandbox.limits
    bounds = [] if sandbox.cgroups else [f"memory={limits.memory}", f"processes={limits.processes}"]
    variables = [f"env={name}={value}" for name, value in sandbox_environment(environ).items()]
    own = [*words, f"scratch={os.path.realpath(tempfile.gettempdir())}", *bounds, *variables]
    descriptors: list[int] = []
    try:
        for name, held in _names_of(paths):
            # Numbers from 20 on, since a shell between here and the launcher uses smaller ones itself.
            descriptors.append(fcntl.fcntl(held.descriptor, fcntl.F_DUPFD_CLOEXEC, 20))
            own.append(f"{name}={descriptors[-1]}")
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise Unavailable(f"no descriptor is free: {error.strerror}") from error
    return SandboxedCommand(
        (*sandbox.program, *own, "--", *argv),
        rlimits={"core": 0, "cpu": limits.cpu, "fsize": limits.file_size, "nofile": limits.open_files},
        descriptors=tuple(descriptors),
    )


def _names_of(paths: HeldPaths) -> list[tuple[str, HeldPath]]:
    write = [("write", held) for held in (paths.root, *paths.write)]
    return [("cwd", paths.cwd), *write, *(("read", held) for held in paths.read)]
