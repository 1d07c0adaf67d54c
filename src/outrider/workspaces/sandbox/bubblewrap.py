"""The sandbox that bubblewrap makes of the kernel's namespaces: a command in, what to start in its stead out.

What of this machine's system a sandboxed command sees: found once, as facts for building an argv from.

The argv of bubblewrap for one command. Pure: facts in, words out; every path here is real and absolute.

How to speak to a command inside: a signal to bubblewrap itself ends everything at once.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.system.processes import process_table
from outrider.workspaces.sandbox.cgroups import Cgroups
from outrider.workspaces.sandbox.types import MIB, SandboxedCommand, SandboxGrant, SandboxLimits

SANDBOX_ETC = Path(__file__).parent / "etc"
"""Files made up for the sandbox: the person's account and the other accounts of the machine are nobody's business."""
_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "perl"),
    *("pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "protocols", "services", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "debian_version", "os-release"),
)
"""Never ssl, pki or all of etc: keys and password hashes are beside these, and root could read them."""
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
"""bubblewrap leaves /proc/sys writable for real root: the kernel asks there who one is, not what one is capable of."""


class SystemPaths(Struct, frozen=True):
    """The parts of the machine to show, by absolute path."""

    links: tuple[tuple[str, str], ...] = ()
    """Path and target of the system folders that are links, as /bin is on a merged system."""
    folders: tuple[str, ...] = ()
    etc: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """What of /etc a command with network needs besides."""
    blank_files: tuple[str, ...] = ()
    blank_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    """Path and source of devices to show in place of the machine's own."""


def find_system_paths(top: Path = Path("/")) -> SystemPaths:
    """The machine below `top`."""
    there = [name for name in _FOLDERS if os.path.lexists(top / name)]
    links = [name for name in there if (top / name).is_symlink()]
    blank = [f"/proc/{name}" for name in _PROC_BLANK if (top / "proc" / name).exists()]
    folders = [path for path in blank if (top / path[1:]).is_dir()]
    return SystemPaths(
        links=tuple((f"/{name}", os.readlink(top / name)) for name in links),
        folders=tuple(f"/{name}" for name in there if name not in links),
        etc=tuple(f"/etc/{name}" for name in _ETC if (top / "etc" / name).exists()),
        network=tuple(f"/etc/{name}" for name in _NETWORK if (top / "etc" / name).exists()),
        blank_files=tuple(path for path in blank if path not in folders),
        blank_folders=tuple(folders),
        read_only=tuple(f"/proc/{name}" for name in _PROC_READ_ONLY if (top / "proc" / name).exists()),
    )


HOME = "/tmp/home"
"""Beneath the private /tmp, so that one bound holds for both and no account of the machine has this home."""
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
"""The first process inside is our shell, not bubblewrap: that one's environment, arguments and program are the
machine's, and could be read, or for their owner even changed, through /proc/1."""
_MACHINE_FOLDERS = frozenset(
    {"/", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr", "/var", "/var/tmp"}
)
"""What a workspace or a grant never is as a whole: the machine's, or full of other programs' doors."""
_KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
_SCRATCH = (("/tmp", 3), ("/var/tmp", 4))
_SMALL_TMPFS = 64 * MIB
_SECCOMP_FD = 9
_OUTER_SCRIPT = f'unset PWD OLDPWD; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- {_SECCOMP_FD}<"$0" && exec "$@"'
"""Opens the filter, and closes what was left open: a folder's descriptor would be a way out."""
_INNER_SCRIPT = """\
trap : INT QUIT TERM
[ -c /proc/self/fd/0 ] && [ ! -t 0 ] && exec </dev/null
[ -c /proc/self/fd/1 ] && [ ! -t 1 ] && exec >/dev/null
[ -c /proc/self/fd/2 ] && [ ! -t 2 ] && exec 2>/dev/null
{}"$@"
exit $?"""
"""Puts the sandbox's devices in place of the machine's, which their owner could change through an open descriptor, and
stays to take leave of what the command leaves behind."""
_RLIMIT_SCRIPT = "ulimit -d {1} && {{ ulimit -u {0} 2>/dev/null || ulimit -p {0}; }} || exit 126\n"
"""Inside, because the kernel counts processes by namespace there: outside, the person's own would count too."""


class VisiblePaths(Struct, frozen=True):
    """What a command gets to see of the disk."""

    root: str
    cwd: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Folders that stay out of sight, whatever is shown around them. A workspace may lie within one."""
    hidden_files: tuple[str, ...] = ()
    network: bool = False


class _Mount(Struct, frozen=True):
    at: str
    words: tuple[str, ...]
    rank: int = 0


def check_visible_paths(room: VisiblePaths) -> None:
    """Raises Refused when this room would open what must stay shut."""
    for path in (room.root, *room.write, *room.read):
        if path in _MACHINE_FOLDERS or any(_within(path, shut) for shut in _KERNEL_FOLDERS):
            raise Refused(f"{path} belongs to the whole machine; name a folder of its own")
        if path in room.hidden or path in room.hidden_files:
            raise Refused(f"{path} is Outrider's own and stays out of every command's sight")
    for path in (room.root, *room.write):
        if any(_within(hidden, path) for hidden in (*room.hidden, *room.hidden_files)):
            raise Refused(f"{path} holds Outrider's own files, which a command could then change; name a folder beside")
    for path in (*room.write, *room.read):
        if not _within(path, room.root) and any(_within(path, hidden) for hidden in room.hidden):
            raise Refused(f"{path} is within Outrider's own folder and stays out of every command's sight")
    if not any(_within(room.cwd, path) for path in (room.root, *room.write, *room.read)):
        raise Refused(f"{room.cwd} is outside the workspace, {room.root}")


def sandbox_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The command's environment: the usual few, and what it was given by name."""
    for name, value in environ.items():
        if not name or "=" in name or "\0" in name + value:
            raise Refused(f"{name!r} cannot be the name of a variable, or its value holds a zero byte")
    return {**ENVIRON, **environ}


def bwrap_arguments(
    system: SystemPaths, room: VisiblePaths, limits: SandboxLimits, environ: Mapping[str, str]
) -> list[str]:
    """All of bubblewrap's words up to the command."""
    words = [*_ISOLATION] if room.network else [*_ISOLATION, "--unshare-net"]
    mounts = [*_system_mounts(system, room), *_scratch_mounts(limits), *_path_mounts(room)]
    blanks = [*_hidden_folders(room), *_scratch_parents(room)]
    mounts += [_Mount(path, ("--perms", "0555", "--size", str(MIB), "--tmpfs", path), 3) for path in blanks]
    for mount in sorted(mounts, key=lambda each: (len(PurePosixPath(each.at).parts), each.rank)):
        words += mount.words  # parents first: what lies deeper is laid over what lies above it
    for path in (*blanks, *system.blank_folders, "/proc", "/dev", "/"):
        words += ["--remount-ro", path]
    words += ["--chdir", room.cwd]
    for name, value in environ.items():
        words += ["--setenv", name, value]
    return words


def outer_argv(filter_file: str | None) -> list[str]:
    """What stands before bubblewrap."""
    return ["/bin/sh", "-c", _OUTER_SCRIPT, filter_file or "/dev/null"]


def seccomp_arguments(filter_file: str | None) -> list[str]:
    return ["--seccomp", str(_SECCOMP_FD)] if filter_file else []


def inner_argv(limits: SandboxLimits | None, command: Sequence[str]) -> list[str]:
    """The command as bubblewrap starts it; a shell tells by 127 and 126 that it cannot be started."""
    if not command or any("\0" in word for word in command):
        raise Refused("a command has at least one word, and no word holds a zero byte")
    bounds = _RLIMIT_SCRIPT.format(limits.processes, limits.memory // 1024) if limits else ""
    return ["/bin/sh", "-c", _INNER_SCRIPT.format(bounds), "sh", *command]


def _system_mounts(system: SystemPaths, room: VisiblePaths) -> list[_Mount]:
    shown = {path: path for path in (*system.folders, *system.etc)}
    shown |= {f"/etc/{name}": str(SANDBOX_ETC / name) for name in ("passwd", "group", "hosts")}
    if room.network:
        shown |= {path: path for path in system.network}
    mounts = [_Mount(at, ("--ro-bind", source, at)) for at, source in shown.items()]
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


def _path_mounts(room: VisiblePaths) -> list[_Mount]:
    mounts = [_Mount(path, ("--bind", path, path), 2) for path in (room.root, *room.write)]
    reads = [path for path in room.read if not any(_within(path, mount.at) for mount in mounts)]
    mounts += [_Mount(path, ("--ro-bind", path, path), 1) for path in reads]
    covered = [path for path in room.hidden_files if any(_within(path, shown) for shown in (*reads, "/usr"))]
    return mounts + [_Mount(path, ("--ro-bind", "/dev/null", path), 3) for path in covered]


def _hidden_folders(room: VisiblePaths) -> list[str]:
    """The hidden folders that a grant to read would show: all others have nothing shown above them."""
    return [path for path in room.hidden if any(_within(path, shown) for shown in (*room.read, "/usr"))]


def _scratch_parents(room: VisiblePaths) -> list[str]:
    """Folders above what is shown, where scratch space would let a command write words that are lost with it."""
    shown = [room.root, *room.write, *room.read]
    firsts = {"/".join(path.split("/")[:depth]) for path in shown for top, depth in _SCRATCH if _within(path, top)}
    return sorted(firsts - {path for path in firsts if any(_within(path, other) for other in (*shown, *room.hidden))})


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def command_group(pid: int) -> int | None:
    """The process group of the command that the sandbox started as `pid` holds; None before it runs or when it ended.

    SIGTERM or SIGINT to this group asks the command to stop in its own way; SIGKILL to `pid` ends all of it.
    """
    children = [row for row in process_table.list_processes() if row.parent == pid]
    first = min(children, key=lambda row: (row.started, row.pid), default=None)
    return first.group if first and first.group == first.pid else None


NO_GRANT = SandboxGrant()


class Sandbox(Struct, frozen=True):
    """A way to run commands that reach their workspace and nothing else of the person's."""

    program: str
    system: SystemPaths
    limits: SandboxLimits = SandboxLimits()
    hidden: tuple[str, ...] = ()
    """Outrider's own files: no grant shows them, and no workspace may hold them (but it may lie within a folder)."""
    cgroups: Cgroups | None = None
    filter: str | None = None
    why: str = ""
    kind: Literal["bubblewrap"] = "bubblewrap"

    def wrap(
        self, argv: Sequence[str], root: Path, cwd: Path, environ: Mapping[str, str], grant: SandboxGrant = NO_GRANT
    ) -> SandboxedCommand:
        """What to start so that `argv` runs confined to `root`. Looks at the paths named, changes nothing.

        `environ` is what the command gets besides the usual few. Raises Refused when a path does not exist or would
        open what must stay shut.
        """
        room = self._visible_paths(root, cwd, grant)
        check_visible_paths(room)
        begin = bwrap_arguments(self.system, room, self.limits, sandbox_environment(environ))
        limits = None if self.cgroups else self.limits
        whole = [*outer_argv(self.filter), self.program, *begin, *seccomp_arguments(self.filter), "--"]
        return SandboxedCommand((*whole, *inner_argv(limits, argv)), rlimits=self._rlimits())

    def _visible_paths(self, root: Path, cwd: Path, grant: SandboxGrant) -> VisiblePaths:
        hidden = [os.path.realpath(path) for path in self.hidden]
        return VisiblePaths(
            root=_real_folder(root),
            cwd=_real_folder(cwd),
            write=tuple(map(_granted_path, grant.write)),
            read=tuple(map(_granted_path, grant.read)),
            hidden=tuple(path for path in hidden if os.path.isdir(path)),
            hidden_files=tuple(path for path in hidden if os.path.isfile(path)),
            network=grant.network,
        )

    def _rlimits(self) -> Mapping[str, int]:
        limits = self.limits
        return {"core": 0, "cpu": limits.cpu, "fsize": limits.file_size, "nofile": limits.open_files}


def _real_folder(path: Path) -> str:
    real = _real_path(str(path))
    if not os.path.isdir(real):
        raise Refused(f"{path} is not a folder")
    return real


def _granted_path(path: str) -> str:
    """Links are followed before anything is decided, so that what is checked is what is shown."""
    real = _real_path(path)
    kind = os.stat(real).st_mode
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise Refused(f"{path} is neither a folder nor a file; a socket or a device is a door that is not opened")
    return real


def _real_path(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        raise Refused(f"{path} cannot be shown to a command: {error.strerror}") from error
