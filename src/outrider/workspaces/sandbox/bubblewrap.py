"""The bubblewrap sandbox: from a command, its workspace and its grants to the argv that runs it confined.

The parts of the system that commands may see are found once. Building an argv changes nothing, and resolves every path
before it decides.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.system.processes import process_table
from outrider.workspaces.held_paths import HeldPaths
from outrider.workspaces.sandbox.cgroups import Cgroups
from outrider.workspaces.sandbox.types import MIB, SandboxedCommand, SandboxLimits

SANDBOX_ETC = Path(__file__).parent / "etc"
"""Files for the sandbox in place of the machine's, so that commands cannot see its accounts."""
_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "perl"),
    *("pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "protocols", "services", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "debian_version", "os-release"),
)
"""Never all of ssl, pki or etc: they contain keys and password hashes, which root could read."""
_NETWORK = ("resolv.conf", "hosts")
_PROC_BLANK = (
    *(
        "acpi",
        "asound",
        "driver",
        "dynamic_debug",
        "fs",
        "kallsyms",
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "kpagecgroup",
    ),
    *("kpagecount", "kpageflags", "latency_stats", "mtrr", "pagetypeinfo", "sched_debug", "scsi", "slabinfo"),
    *("sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo"),
)
_PROC_READ_ONLY = ("bus", "irq", "pressure", "sys", "sysvipc", "tty")
"""Root could write to /proc/sys: the kernel checks the user there, not the capabilities."""


class SystemPaths(Struct, frozen=True):
    """The parts of the system that commands see, by absolute path."""

    links: tuple[tuple[str, str], ...] = ()
    """Path and target of the system folders that are links, as /bin is on a merged system."""
    folders: tuple[str, ...] = ()
    etc: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """Files in /etc that a command with network needs in addition."""
    blank_files: tuple[str, ...] = ()
    blank_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    """Path and source of devices in place of the machine's own."""


def find_system_paths(top: Path = Path("/")) -> SystemPaths:
    """Find the system's paths below `top`."""
    names = [name for name in _FOLDERS if os.path.lexists(top / name)]
    links = [name for name in names if (top / name).is_symlink()]
    blank = [f"/proc/{name}" for name in _PROC_BLANK if (top / "proc" / name).exists()]
    folders = [path for path in blank if (top / path[1:]).is_dir()]
    return SystemPaths(
        links=tuple((f"/{name}", os.readlink(top / name)) for name in links),
        folders=tuple(f"/{name}" for name in names if name not in links),
        etc=tuple(f"/etc/{name}" for name in _ETC if (top / "etc" / name).exists()),
        network=tuple(f"/etc/{name}" for name in _NETWORK if (top / "etc" / name).exists()),
        blank_files=tuple(path for path in blank if path not in folders),
        blank_folders=tuple(folders),
        read_only=tuple(f"/proc/{name}" for name in _PROC_READ_ONLY if (top / "proc" / name).exists()),
    )


HOME = "/tmp/home"
"""In the private /tmp, so that one limit applies to both, and no account of the machine has this home."""
ENVIRON: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "outrider",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
}
_ISOLATION = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup", "--disable-userns"),
    *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session", "--clearenv", "--as-pid-1"),
)
"""The first process inside is our shell, not bubblewrap: through /proc/1, a command could read bubblewrap's environment
and arguments, which are the machine's, and as their owner even change them."""
_MACHINE_FOLDERS = frozenset(
    {"/", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr", "/var", "/var/tmp"}
)
"""Folders that a workspace or grant must not be: they belong to the system, or contain sockets of other programs."""
_KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
_SCRATCH = (("/tmp", 3), ("/var/tmp", 4))
_SMALL_TMPFS = 64 * MIB
_SECCOMP_FD = 9
_OUTER_SCRIPT = f'unset PWD OLDPWD; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- {_SECCOMP_FD}<"$0" && exec "$@"'
"""Opens the filter and closes inherited descriptors: one of a folder would be a way out."""
_INNER_SCRIPT = """\
trap : INT QUIT TERM
[ -c /proc/self/fd/0 ] && [ ! -t 0 ] && exec </dev/null
[ -c /proc/self/fd/1 ] && [ ! -t 1 ] && exec >/dev/null
[ -c /proc/self/fd/2 ] && [ ! -t 2 ] && exec 2>/dev/null
{}"$@"
exit $?"""
"""Replaces standard streams on the machine's devices, which their owner could change, by the sandbox's own, and stays
to reap the processes that the command leaves behind."""
_RLIMIT_SCRIPT = "ulimit -d {1} && {{ ulimit -u {0} 2>/dev/null || ulimit -p {0}; }} || exit 126\n"
"""Set inside, where the kernel counts processes by namespace: outside, the person's own would count too."""


class VisiblePaths(Struct, frozen=True):
    """The parts of the disk that a command sees."""

    root: str
    cwd: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Folders that stay hidden inside a visible folder. A workspace may be inside one."""
    hidden_files: tuple[str, ...] = ()
    network: bool = False


class _Mount(Struct, frozen=True):
    at: str
    words: tuple[str, ...]
    rank: int = 0


def check_visible_paths(paths: VisiblePaths) -> None:
    """Raises Refused when these paths would expose what must stay hidden."""
    for path in (paths.root, *paths.write, *paths.read):
        if path in _MACHINE_FOLDERS or any(_within(path, folder) for folder in _KERNEL_FOLDERS):
            raise Refused(f"{path} belongs to the system; use a folder below it")
        if path in paths.hidden or path in paths.hidden_files:
            raise Refused(f"{path} is Outrider's own and stays hidden from commands")
    for path in (paths.root, *paths.write):
        if any(_within(hidden, path) for hidden in (*paths.hidden, *paths.hidden_files)):
            raise Refused(f"{path} contains Outrider's own files, which a command could change; use another folder")
    for path in (*paths.write, *paths.read):
        if not _within(path, paths.root) and any(_within(path, hidden) for hidden in paths.hidden):
            raise Refused(f"{path} is inside Outrider's own folder and stays hidden from commands")
    if not any(_within(paths.cwd, path) for path in (paths.root, *paths.write, *paths.read)):
        raise Refused(f"{paths.cwd} is outside the workspace, {paths.root}")


def sandbox_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The command's environment: the basic variables and these."""
    for name, value in environ.items():
        if not name or "=" in name or "\0" in name + value:
            raise Refused(f"{name!r} cannot be the name of a variable, or its value contains a NUL character")
    return {**ENVIRON, **environ}


def bwrap_arguments(
    system: SystemPaths, paths: VisiblePaths, limits: SandboxLimits, environ: Mapping[str, str]
) -> list[str]:
    """The arguments of bubblewrap before the command."""
    words = [*_ISOLATION] if paths.network else [*_ISOLATION, "--unshare-net"]
    mounts = [*_system_mounts(system, paths), *_scratch_mounts(limits), *_path_mounts(paths)]
    blanks = [*_hidden_folders(paths), *_scratch_parents(paths)]
    mounts += [_Mount(path, ("--perms", "0555", "--size", str(MIB), "--tmpfs", path), 3) for path in blanks]
    for mount in sorted(mounts, key=lambda each: (len(PurePosixPath(each.at).parts), each.rank)):
        words += mount.words  # parents first: a deeper mount covers part of the one above it
    for path in (*blanks, *system.blank_folders, "/proc", "/dev", "/"):
        words += ["--remount-ro", path]
    words += ["--chdir", paths.cwd]
    for name, value in environ.items():
        words += ["--setenv", name, value]
    return words


def inner_argv(limits: SandboxLimits | None, command: Sequence[str]) -> list[str]:
    """The command as bubblewrap starts it: in a shell, which ends with 127 or 126 when it cannot be started."""
    if not command or any("\0" in word for word in command):
        raise Refused("a command needs at least one word, and no word may contain a NUL character")
    rlimits = _RLIMIT_SCRIPT.format(limits.processes, limits.memory // 1024) if limits else ""
    return ["/bin/sh", "-c", _INNER_SCRIPT.format(rlimits), "sh", *command]


def _system_mounts(system: SystemPaths, paths: VisiblePaths) -> list[_Mount]:
    binds = {path: path for path in (*system.folders, *system.etc)}
    binds |= {f"/etc/{name}": str(SANDBOX_ETC / name) for name in ("passwd", "group", "hosts")}
    if paths.network:
        binds |= {path: path for path in system.network}
    mounts = [_Mount(at, ("--ro-bind", source, at)) for at, source in binds.items()]
    mounts += [_Mount(at, ("--symlink", target, at)) for at, target in system.links]
    mounts += [_Mount("/proc", ("--proc", "/proc"))]
    mounts += [_Mount(path, ("--ro-bind", path, path)) for path in system.read_only]
    mounts += [_Mount(path, ("--ro-bind", "/dev/null", path)) for path in system.blank_files]
    mounts += [_Mount(at, ("--dev-bind", source, at), 1) for at, source in system.devices]
    return mounts + [_Mount(path, ("--size", str(MIB), "--tmpfs", path)) for path in system.blank_folders]


def _scratch_mounts(limits: SandboxLimits) -> list[_Mount]:
    return [
        _Mount("/dev", ("--dev", "/dev")),
        _Mount("/dev/shm", ("--perms", "1777", "--size", str(_SMALL_TMPFS), "--tmpfs", "/dev/shm")),
        _Mount("/tmp", ("--perms", "1777", "--size", str(limits.scratch), "--tmpfs", "/tmp")),
        _Mount(HOME, ("--perms", "0700", "--dir", HOME)),
        _Mount("/var/tmp", ("--perms", "1777", "--size", str(_SMALL_TMPFS), "--tmpfs", "/var/tmp")),
        _Mount("/run", ("--dir", "/run")),
    ]


def _path_mounts(paths: VisiblePaths) -> list[_Mount]:
    mounts = [_Mount(path, ("--bind", path, path), 2) for path in (paths.root, *paths.write)]
    reads = [path for path in paths.read if not any(_within(path, mount.at) for mount in mounts)]
    mounts += [_Mount(path, ("--ro-bind", path, path), 1) for path in reads]
    covered = [path for path in paths.hidden_files if any(_within(path, folder) for folder in (*reads, "/usr"))]
    return mounts + [_Mount(path, ("--ro-bind", "/dev/null", path), 3) for path in covered]


def _hidden_folders(paths: VisiblePaths) -> list[str]:
    """The hidden folders that would be visible inside a readable folder."""
    return [path for path in paths.hidden if any(_within(path, folder) for folder in (*paths.read, "/usr"))]


def _scratch_parents(paths: VisiblePaths) -> list[str]:
    """Folders in scratch space above visible ones: writable, they would invite a command to write what is lost."""
    visible = [paths.root, *paths.write, *paths.read]
    firsts = {"/".join(path.split("/")[:depth]) for path in visible for top, depth in _SCRATCH if _within(path, top)}
    return sorted(
        firsts - {path for path in firsts if any(_within(path, other) for other in (*visible, *paths.hidden))}
    )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def command_group(pid: int) -> int | None:
    """The process group of the command in the sandbox started as `pid`; None before it runs or when it has ended.

    SIGTERM or SIGINT to this group lets the command stop in order; any signal to `pid` ends everything at once.
    """
    children = [row for row in process_table.list_processes() if row.parent == pid]
    first = min(children, key=lambda row: (row.started, row.pid), default=None)
    return first.group if first and first.group == first.pid else None


class BubblewrapSandbox(Struct, frozen=True):
    """Runs commands that reach their workspace and nothing else of the person's files."""

    program: str
    system: SystemPaths
    limits: SandboxLimits = SandboxLimits()
    cgroups: Cgroups | None = None
    filter: str | None = None
    why: str = ""
    kind: Literal["bubblewrap"] = "bubblewrap"

    def wrap(self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str]) -> SandboxedCommand:
        visible = visible_paths(paths)
        check_visible_paths(visible)
        arguments = bwrap_arguments(self.system, visible, self.limits, sandbox_environment(environ))
        limits = None if self.cgroups else self.limits
        outer = ["/bin/sh", "-c", _OUTER_SCRIPT, self.filter or "/dev/null"]
        seccomp = ["--seccomp", str(_SECCOMP_FD)] if self.filter else []
        rlimits = {
            "core": 0,
            "cpu": self.limits.cpu,
            "fsize": self.limits.file_size,
            "nofile": self.limits.open_files,
        }
        return SandboxedCommand(
            (*outer, self.program, *arguments, *seccomp, "--", *inner_argv(limits, argv)), rlimits=rlimits
        )


def visible_paths(paths: HeldPaths) -> VisiblePaths:
    hidden = [path for path, _ in paths.hidden]
    return VisiblePaths(
        root=paths.root.path,
        cwd=paths.cwd.path,
        write=tuple(held.path for held in paths.write),
        read=tuple(held.path for held in paths.read),
        hidden=tuple(path for path in hidden if not os.path.isfile(path)),
        hidden_files=tuple(path for path in hidden if os.path.isfile(path)),
        network=paths.network,
    )
