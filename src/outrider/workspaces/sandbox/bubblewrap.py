"""The bubblewrap sandbox: from a command, its workspace and its grants to the argv that runs it confined.

The parts of the system that commands may see are found once. The workspace and grants are bound by descriptor:
bubblewrap ends when what it has bound is not what the descriptor is of.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.system.processes import process_table
from outrider.workspaces.held_paths import KERNEL_FOLDERS, HeldPath, HeldPaths, identity_of_status, is_within
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
_SCRATCH = (("/tmp", 3), ("/var/tmp", 4))
_SMALL_TMPFS = 64 * MIB
_SECCOMP_FD = 9
_FIRST_BIND_FD = 20
"""Scripts on the way to bubblewrap redirect smaller numbers. A POSIX shell passes larger ones on as they are."""
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


class _Mount(Struct, frozen=True):
    at: str
    words: tuple[str, ...]
    rank: int = 0


def check_visible_paths(paths: HeldPaths) -> None:
    """Raises Refused when these paths would expose what must stay hidden."""
    hidden = frozenset(identity for _, identity in paths.hidden)
    for each in (paths.root, *paths.write, *paths.read):
        path = each.path
        if kernel := [folder for folder in KERNEL_FOLDERS if is_within(path, folder)]:
            raise Refused(f"{path} belongs to the system, like everything in {kernel[0]}; choose a path elsewhere")
        if path in _MACHINE_FOLDERS:
            raise Refused(f"{path} belongs to the system; use a folder below it")
        if each.identity in hidden:
            raise Refused(f"{path} is Outrider's own and stays hidden from commands")
    for each in (paths.root, *paths.write):
        if any(is_within(path, each.path) for path, _ in paths.hidden):
            raise Refused(
                f"{each.path} contains Outrider's own files, which a command could change; use another folder"
            )
    for each in (*paths.write, *paths.read):
        if paths.root.identity not in (each.identity, *each.above) and not hidden.isdisjoint(each.above):
            raise Refused(f"{each.path} is inside Outrider's own folder and stays hidden from commands")
    if not any(is_within(paths.cwd.path, each.path) for each in (paths.root, *paths.write, *paths.read)):
        raise Refused(f"{paths.cwd.path} is outside the workspace, {paths.root.path}")


def sandbox_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The command's environment: the basic variables and these."""
    for name, value in environ.items():
        if not name or "=" in name or "\0" in name + value:
            raise Refused(f"{name!r} cannot be the name of a variable, or its value contains a NUL character")
    return {**ENVIRON, **environ}


def bwrap_arguments(
    system: SystemPaths,
    paths: HeldPaths,
    limits: SandboxLimits,
    environ: Mapping[str, str],
    guards: Sequence[_Mount] = (),
) -> list[str]:
    """The arguments of bubblewrap before the command. They name the descriptors of `paths`."""
    words = [*_ISOLATION] if paths.network else [*_ISOLATION, "--unshare-net"]
    mounts = [*_system_mounts(system, paths), *_scratch_mounts(limits), *_path_mounts(paths), *guards]
    blanks = [*filter(os.path.isdir, _covered_paths(paths)), *_scratch_parents(paths)]
    mounts += [_Mount(path, ("--perms", "0555", "--size", str(MIB), "--tmpfs", path), 3) for path in blanks]
    for mount in sorted(mounts, key=lambda each: (each.at.count("/"), each.rank)):
        words += mount.words  # parents first: a deeper mount covers part of the one above it
    for path in (*blanks, *system.blank_folders, "/proc", "/dev", "/"):
        words += ["--remount-ro", path]
    words += ["--chdir", paths.cwd.path]  # resolved inside, where nothing else can be reached
    for name, value in environ.items():
        words += ["--setenv", name, value]
    return words


def inner_argv(limits: SandboxLimits | None, command: Sequence[str]) -> list[str]:
    """The command as bubblewrap starts it: in a shell, which ends with 127 or 126 when it cannot be started."""
    if not command or any("\0" in word for word in command):
        raise Refused("a command needs at least one word, and no word may contain a NUL character")
    rlimits = _RLIMIT_SCRIPT.format(limits.processes, limits.memory // 1024) if limits else ""
    return ["/bin/sh", "-c", _INNER_SCRIPT.format(rlimits), "sh", *command]


def _system_mounts(system: SystemPaths, paths: HeldPaths) -> list[_Mount]:
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


def _path_mounts(paths: HeldPaths) -> list[_Mount]:
    mounts = [_bind("--bind-fd", each, 2) for each in (paths.root, *paths.write)]
    mounts += [_bind("--ro-bind-fd", each, 1) for each in paths.read]
    covered = [path for path in _covered_paths(paths) if not os.path.isdir(path)]
    return mounts + [_Mount(path, ("--ro-bind", "/dev/null", path), 3) for path in covered]


def _bind(option: str, held: HeldPath, rank: int) -> _Mount:
    return _Mount(held.path, (option, str(held.descriptor), held.path), rank)


def _covered_paths(paths: HeldPaths) -> list[str]:
    """The hidden paths that would be visible inside a readable folder."""
    readable = [*(each.path for each in paths.read), "/usr"]
    return [path for path, _ in paths.hidden if any(is_within(path, folder) for folder in readable)]


def _scratch_parents(paths: HeldPaths) -> list[str]:
    """Folders in scratch space above visible ones: writable, they would invite a command to write what is lost."""
    visible = [each.path for each in (paths.root, *paths.write, *paths.read)]
    hidden = [path for path, _ in paths.hidden if os.path.isdir(path)]
    firsts = {"/".join(path.split("/")[:depth]) for path in visible for top, depth in _SCRATCH if is_within(path, top)}
    return sorted(firsts - {path for path in firsts if any(is_within(path, other) for other in (*visible, *hidden))})


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

    def wrap(
        self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str], git_settings: str = ""
    ) -> SandboxedCommand:
        """What to start so that `argv` runs confined to `paths`.

        `environ` is added to the basic variables; `git_settings` is the `.gitconfig` of its home.
        Raises Refused when a path must stay hidden.
        """
        check_visible_paths(paths)
        basic, inner = sandbox_environment(environ), inner_argv(None if self.cgroups else self.limits, argv)
        guards = _hold_protected(paths.root, (*paths.protected, *paths.program))
        bound, descriptors = _renumber(paths)
        descriptors += tuple(each.descriptor for _, each in guards)
        mounts = [_bind(option, each, 3) for option, each in guards]
        if git_settings:
            settings = _hold_text(git_settings)
            descriptors += (settings,)
            mounts.append(_Mount(f"{HOME}/.gitconfig", ("--file", str(settings), f"{HOME}/.gitconfig")))
        arguments = bwrap_arguments(self.system, bound, self.limits, basic, mounts)
        outer = ["/bin/sh", "-c", _OUTER_SCRIPT, self.filter or "/dev/null"]
        seccomp = ["--seccomp", str(_SECCOMP_FD)] if self.filter else []
        rlimits = {
            "core": 0,
            "cpu": self.limits.cpu,
            "fsize": self.limits.file_size,
            "nofile": self.limits.open_files,
        }
        return SandboxedCommand(
            (*outer, self.program, *arguments, *seccomp, "--", *inner), rlimits=rlimits, descriptors=descriptors
        )


def _hold_protected(root: HeldPath, protected: Sequence[str]) -> list[tuple[str, HeldPath]]:
    """Binds that keep these paths below the root as they are, with descriptors of what is bound.

    They are bound read-only, and every folder above them onto itself: what is bound cannot be renamed or removed from
    inside, so nothing else takes its place. Raises Refused when a path has changed since it was found.
    """
    tops = [path for path in protected if not any(is_within(path, other) for other in protected if other != path)]
    above = {str(folder) for path in tops for folder in PurePosixPath(path).parents} - {"."}
    options = dict.fromkeys(above, "--bind-fd") | dict.fromkeys(tops, "--ro-bind-fd")
    held: list[tuple[str, HeldPath]] = []
    try:
        for path, option in options.items():
            descriptor = _open_below(root.descriptor, path)
            identity = identity_of_status(os.fstat(descriptor))
            held.append((option, HeldPath(f"{root.path}/{path}", descriptor, identity)))
    except OSError as error:
        for _, each in held:
            each.close()
        raise Refused(f"{root.path}/{error.filename} changed while the command was started; try again") from error
    return held


def _hold_text(text: str) -> int:
    """A file in memory with this text, to be read from its beginning."""
    with os.fdopen(os.memfd_create("settings", os.MFD_CLOEXEC), "wb") as file:
        file.write(text.encode())
        file.seek(0)
        return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_BIND_FD)


def _open_below(root: int, path: str) -> int:
    """What is at this path below an open folder, no part of it a link."""
    descriptor = fcntl.fcntl(root, fcntl.F_DUPFD_CLOEXEC, _FIRST_BIND_FD)
    for name in path.split("/"):
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = fcntl.fcntl(inner, fcntl.F_DUPFD_CLOEXEC, _FIRST_BIND_FD)
        os.close(inner)
    return descriptor


def _renumber(paths: HeldPaths) -> tuple[HeldPaths, tuple[int, ...]]:
    """What is to be bound, with descriptors that the scripts before bubblewrap leave alone.

    Each of them is bound: bubblewrap closes those, and would leave others open for the command.
    """
    writable = [each.path for each in (paths.root, *paths.write)]
    read = [each for each in paths.read if not any(is_within(each.path, path) for path in writable)]
    held = (paths.root, *paths.write, *read)
    copies = tuple(fcntl.fcntl(each.descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_BIND_FD) for each in held)
    root, *granted = (replace(each, descriptor=copy) for each, copy in zip(held, copies, strict=True))
    count = len(paths.write)
    return replace(paths, root=root, write=tuple(granted[:count]), read=tuple(granted[count:])), copies
