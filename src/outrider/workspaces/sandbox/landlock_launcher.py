"""The launcher of a command without namespaces: confines itself with Landlock and seccomp, then becomes the command.

The Python interpreter runs this file by its path, without the package. That is why it is one long file, which uses only
the standard library, and only the parts of it that are quick to import. Three processes run: the first one, which a
caller can kill; the monitor, which inherits every process that the command leaves behind and ends them all; and the
command.

Landlock does not control permissions, owners, times and watches of files, and old versions not signals. The monitor
performs those calls for the command (seccomp user notification), on a file that it has opened itself and found inside a
folder that the command may write.
"""

import _socket
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PIDFD_GETFD, _CLOSE_RANGE = 438, 436
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3 | 1 << 5
"""With a listener, and with waiting for its answer that only a fatal signal ends."""
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""The ioctls of a seccomp listener."""
_CONTINUE = 1
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 1, 24, 28
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_NO_ROOT_LOCKED = 0x2F
"""Securebits: user 0 gets no capabilities from being 0, and that cannot be changed back."""
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_IN_DONT_FOLLOW = 0x02000000
_PAGE = 4096
_SET_ID_BITS = 0o6000
_GRACE = 1.5
"""Seconds between SIGTERM and SIGKILL when the first process is asked to end."""
_KILL_SECONDS = 10.0
_NOT_STARTED = 126

_FILE_READ = 1 << 0 | 1 << 2
_FILE_WRITE = 1 << 1 | 1 << 14
_IOCTL_DEVICE = 1 << 15
_READ = _FILE_READ | 1 << 3
_WRITE = _FILE_WRITE | sum(1 << bit for bit in (4, 5, 7, 8, 9, 10, 12, 13))
"""Remove, make and refer, without character and block devices."""
_FILE_RIGHTS = _FILE_READ | _FILE_WRITE | _IOCTL_DEVICE
_DEVICE = 1 << 2 | _FILE_WRITE | _IOCTL_DEVICE
_HANDLED_TCP = 0b11
_HANDLED_SCOPES = 0b11


class Options:
    """The words before `--`, as name=value, and the command after it."""

    def __init__(self, words: list[str]) -> None:
        end = words.index("--")
        self._pairs = [word.partition("=")[::2] for word in words[:end]]
        self.argv = words[end + 1 :]

    def all(self, name: str) -> list[str]:
        return [value for each, value in self._pairs if each == name]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def number(self, name: str) -> int:
        return int(self.one(name) or 0)

    @property
    def is_confined(self) -> bool:
        return self.number("abi") > 0


def syscall(number: int, *arguments: object) -> int:
    """Raises OSError. Integers are passed with their full width."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    checked(_LIBC.prctl(ctypes.c_int(option), *words))


# Scratch space


def make_scratch(top: str, owner: int) -> str:
    """Create the private folder of one command, with `home` and `tmp`. Removes those of commands that have ended."""
    parent = find_scratch_parent(top)
    lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in os.listdir(lock):
            remove_unless_used(f"{parent}/{name}")
        folder = f"{parent}/{os.urandom(8).hex()}"
        for path in (folder, f"{folder}/home", f"{folder}/tmp"):
            os.mkdir(path, 0o700)
            if owner:
                os.chown(path, owner, owner)
        # Kept open, and so locked, as long as the first process or the monitor runs.
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
    finally:
        os.close(lock)
    return folder


def write_settings(path: str, text: str, owner: int) -> None:
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        if owner:
            os.fchown(file.fileno(), owner, owner)


def find_scratch_parent(top: str) -> str:
    """The folder of this account for the scratch folders of its commands; it is created when there is none.

    Where another account took the usual name, one with a random ending is used: else it could stop all commands.
    """
    usual = f"{top}/outrider-commands-{os.geteuid()}"
    if create_private_folder(usual):
        return usual
    for entry in os.scandir(top):
        if entry.path.startswith(f"{usual}-") and is_private_folder(entry.path):
            return entry.path
    other = f"{usual}-{os.urandom(8).hex()}"
    if create_private_folder(other):
        return other
    raise PermissionError(errno.EPERM, f"{usual} belongs to another account")


def create_private_folder(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o711)
    except FileExistsError:
        pass
    return is_private_folder(path)


def is_private_folder(path: str) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def remove_unless_used(folder: str) -> None:
    try:
        used = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_folder(folder)
    except OSError:
        return  # it is in use, or cannot be removed, which must not keep this command from starting
    finally:
        os.close(used)


def remove_folder(folder: str) -> None:
    """Remove it with everything inside. What cannot be removed stays."""
    try:
        entries = list(os.scandir(folder))
    except PermissionError:
        os.chmod(folder, 0o700)
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    os.chmod(folder, 0o700)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_folder(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


def discard(folder: str) -> None:
    try:
        remove_folder(folder)
    except OSError as error:
        report(f"{folder} was not removed: {error.strerror}")


def report(text: str) -> None:
    try:
        os.write(2, f"outrider: {text}\n".encode())
    except OSError:
        return  # nobody reads the output any more


# Privileges


def drop_privileges() -> None:
    """Give up every capability, now and for every program that is executed later. The account stays the same."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    try:
        for number in range(64):
            prctl(_PR_CAPBSET_DROP, number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):  # the last one, or there is nothing to give up
            raise
    for option, value in ((_PR_SET_SECUREBITS, _NO_ROOT_LOCKED), (_PR_CAP_AMBIENT, 4)):
        # Refused to those who have no capabilities anyway.
        _LIBC.prctl(ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))
    header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    syscall(_CAPSET[os.uname().machine], header, data)
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        left = [line for line in file if line.startswith(("CapEff", "CapPrm")) and int(line.split()[1], 16)]
    if left:
        raise PermissionError(errno.EPERM, "capabilities could not be dropped")


def become_account(account: int, folder: str) -> None:
    """Become another account, which must be able to use this folder."""
    os.setgroups([])
    os.setgid(account)
    os.setuid(account)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if not os.access(".", os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"{folder} cannot be read by account {account}, which runs commands here")
    if not os.access(".", os.W_OK):
        report(f"{folder} cannot be written to by account {account}, which runs commands here; chown it")


def limit_resources(options: Options) -> None:
    if size := options.number("memory"):
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    if (count := options.number("processes")) and os.getuid():
        # The kernel counts all processes of the account, so those that run already are added.
        own = count + count_threads(os.getuid())
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        most = own if hard == resource.RLIM_INFINITY else min(own, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def count_threads(account: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.stat(f"/proc/{name}").st_uid == account:
                    count += int(read_stat(int(name))[17])
            except OSError:
                continue  # it has ended
    return count


# Landlock


def restrict_files(options: Options, scratch: str) -> None:
    """Allow the granted files and folders and nothing else, with all that this version of Landlock controls."""
    abi = options.number("abi")
    handled = _READ | _WRITE | 1 << 6 | 1 << 11 | (_IOCTL_DEVICE if abi >= 5 else 0)
    tcp = _HANDLED_TCP if abi >= 4 and not options.number("network") else 0
    scopes = _HANDLED_SCOPES if abi >= 6 else 0
    attributes = struct.pack("=QQQ", handled, tcp, scopes)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = syscall(_CREATE_RULESET, attributes, len(attributes), 0)

    def allow(descriptor: int, rights: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights & handled, descriptor)
        syscall(_ADD_RULE, ruleset, 1, rule, 0)

    hidden = options.all("hidden")
    for path in filter(os.path.exists, options.all("system")):
        descriptor = os.open(path, os.O_PATH)
        allow_reading(path, descriptor, hidden, allow)
        os.close(descriptor)
    for path in filter(os.path.exists, options.all("device")):
        descriptor = os.open(path, os.O_PATH)
        allow(descriptor, _DEVICE)
        os.close(descriptor)
    for word in options.all("read"):
        allow_reading(os.readlink(f"/proc/self/fd/{word}"), int(word), hidden, allow)
    for descriptor in (*map(int, options.all("write")), os.open(scratch, os.O_PATH)):
        allow(descriptor, _READ | _WRITE)
    syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def allow_reading(path: str, folder: int, hidden: list[str], allow: Callable[[int, int], None]) -> None:
    """Allow reading a folder, or, where something hidden is inside, everything in it except that.

    A rule applies to all that is below, so the folders above something hidden cannot be listed.
    """
    if path in hidden:
        return
    if not any(each.startswith(f"{path.rstrip('/')}/") for each in hidden):
        allow(folder, _READ)
        return
    for name in os.listdir(f"/proc/self/fd/{folder}"):
        inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        if not stat.S_ISLNK(os.fstat(inner).st_mode):
            allow_reading(f"{path.rstrip('/')}/{name}", inner, hidden, allow)
        os.close(inner)


# seccomp


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def load_filter(code: bytes, flags: int = 0) -> int:
    program = _Program(len(code) // 8, code)
    return syscall(_SECCOMP[os.uname().machine], _SET_MODE_FILTER, flags, ctypes.byref(program))


_FILE_CALLS: dict[str, tuple[str, int | None, int | None, int, int | None]] = {
    "chmod": ("mode", None, 0, 1, None),
    "fchmod": ("mode", 0, None, 1, None),
    "fchmodat": ("mode", 0, 1, 2, None),
    "fchmodat2": ("mode", 0, 1, 2, 3),
    "chown": ("owner", None, 0, 1, None),
    "lchown": ("owner", None, 0, 1, None),
    "fchown": ("owner", 0, None, 1, None),
    "fchownat": ("owner", 0, 1, 2, 4),
    "utime": ("seconds", None, 0, 1, None),
    "utimes": ("microseconds", None, 0, 1, None),
    "futimesat": ("microseconds", 0, 1, 2, None),
    "utimensat": ("nanoseconds", 0, 1, 2, 3),
}
"""What each call changes, and the numbers of its arguments: folder, path, value, flags."""


class Monitor:
    """Answers the system calls that Landlock does not control, for one command."""

    def __init__(self, options: Options, listener: int, scratch: int) -> None:
        self.listener = listener
        pairs = [word.partition(":") for word in options.one("calls").split(",")]
        self._names = {int(number): name for name, _, number in pairs}
        self._writable = [*map(int, options.all("write")), scratch]
        self._readable = [*self._writable, *map(int, options.all("read"))]
        self._system = [os.path.realpath(path) for path in options.all("system")]
        self._hidden = options.all("hidden")

    def answer(self) -> None:
        """Receive one call and answer it. A process that is gone needs no answer."""
        notice = bytearray(80)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError:
            return
        id, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", notice)
        value = error = flags = 0
        try:
            value, flags = self._perform(id, pid, self._names[number], arguments)
        except OSError as failure:
            error = -(failure.errno or errno.EPERM)
        try:
            fcntl.ioctl(self.listener, _SEND, bytearray(struct.pack("=QqiI", id, value, error, flags)))
        except OSError:
            return

    def _perform(self, id: int, pid: int, name: str, words: list[int]) -> tuple[int, int]:
        """Perform the call; its value, or the flag with which the kernel continues it."""
        if name in _FILE_CALLS:
            self._change_file(id, pid, name, words)
            return 0, 0
        if name == "inotify_add_watch":
            return self._watch(id, pid, words), 0
        if name == "kill":
            return self._check_signal(_signed(words[0])), _CONTINUE
        # Only numbers decide here, which the process cannot change while it waits.
        which = 1 if name in ("setpriority", "ioprio_set") else 0
        return self._check_process(_signed(words[which])), _CONTINUE

    def _change_file(self, id: int, pid: int, name: str, words: list[int]) -> None:
        kind, folder, path, value, flags = _FILE_CALLS[name]
        start = _AT_FDCWD if folder is None else words[folder]
        if path is None:
            descriptor = self._open_descriptor(id, pid, start)
        else:
            is_own_link = _AT_SYMLINK_NOFOLLOW if name == "lchown" else 0
            descriptor = self._open(id, pid, start, words[path], is_own_link if flags is None else words[flags])
        try:
            if kind == "mode":
                if words[value] & _SET_ID_BITS:
                    raise PermissionError(errno.EPERM, "")
                os.chmod(f"/proc/self/fd/{descriptor}", words[value] & 0o7777)
            elif kind == "owner":
                user, group = (ctypes.c_uint(each & 0xFFFFFFFF) for each in words[value : value + 2])
                checked(_LIBC.fchownat(descriptor, b"", user, group, _AT_EMPTY_PATH))
            else:
                times = self._read(pid, words[value], 16 if kind == "seconds" else 32) if words[value] else None
                checked(_LIBC.utimensat(descriptor, b"", times and _nanoseconds(kind, times), _AT_EMPTY_PATH))
        finally:
            os.close(descriptor)

    def _open(self, id: int, pid: int, folder: int, pointer: int, flags: int) -> int:
        """A descriptor of the file that these arguments name, found inside a folder that may be written."""
        if not pointer:
            return self._open_descriptor(id, pid, folder)
        path = self._read_path(pid, pointer)
        if not path:
            if flags & _AT_EMPTY_PATH:
                return self._open_descriptor(id, pid, folder)
            raise FileNotFoundError(errno.ENOENT, "")
        return self._inside(self._writable, self._lookup(id, pid, folder, path, bool(flags & _AT_SYMLINK_NOFOLLOW)))

    def _open_descriptor(self, id: int, pid: int, number: int) -> int:
        number = _signed(number)
        where = f"/proc/{pid}/cwd" if number == _AT_FDCWD else f"/proc/{pid}/fd/{number}"
        try:
            descriptor = os.open(where, os.O_PATH)
        except FileNotFoundError:
            raise OSError(errno.EBADF, "") from None
        self._check_alive(id, descriptor)
        return self._inside(self._writable, descriptor)

    def _lookup(self, id: int, pid: int, folder: int, path: bytes, is_link: bool) -> int:
        folder = _signed(folder)
        for own in (b"/proc/self/", b"/proc/thread-self/"):
            if path.startswith(own):
                path = b"/proc/%d/" % pid + path[len(own) :]
        if path.startswith(b"/dev/fd/"):
            path = b"/proc/%d/fd/" % pid + path[8:]
        start = os.open(f"/proc/{pid}/cwd" if folder == _AT_FDCWD else f"/proc/{pid}/fd/{folder}", os.O_PATH)
        try:
            descriptor = os.open(path, os.O_PATH | (os.O_NOFOLLOW if is_link else 0), dir_fd=start)
        finally:
            os.close(start)
        self._check_alive(id, descriptor)
        return descriptor

    def _check_alive(self, id: int, descriptor: int) -> None:
        """The process that waits is still the one that was looked at, not a later one with its pid."""
        try:
            fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", id))
        except OSError:
            os.close(descriptor)
            raise

    def _inside(self, roots: list[int], descriptor: int, *more: str) -> int:
        """This descriptor, if its file is in one of these folders. What it refers to cannot change any more."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        tops = [*(os.readlink(f"/proc/self/fd/{root}") for root in roots), *more]
        if not any(path == top or path.startswith(f"{top}/") for top in tops):
            os.close(descriptor)
            raise PermissionError(errno.EACCES, "")
        return descriptor

    def _watch(self, id: int, pid: int, words: list[int]) -> int:
        mask = words[2] & 0xFFFFFFFF
        path = self._read_path(pid, words[1])
        descriptor = self._lookup(id, pid, _AT_FDCWD, path, bool(mask & _IN_DONT_FOLLOW))
        descriptor = self._inside(self._readable, descriptor, *self._system)
        try:
            path_inside = os.readlink(f"/proc/self/fd/{descriptor}")
            if not any(self._contains(root, path_inside) for root in self._writable) and self._is_hidden(path_inside):
                raise PermissionError(errno.EACCES, "")
            process = os.pidfd_open(thread_group(pid))
            try:
                watcher = syscall(_PIDFD_GETFD, process, _signed(words[0]), 0)
            finally:
                os.close(process)
            try:
                target = f"/proc/self/fd/{descriptor}".encode()
                return checked(_LIBC.inotify_add_watch(watcher, target, ctypes.c_uint(mask & ~_IN_DONT_FOLLOW)))
            finally:
                os.close(watcher)
        finally:
            os.close(descriptor)

    def _contains(self, root: int, path_inside: str) -> bool:
        top = os.readlink(f"/proc/self/fd/{root}")
        return path_inside == top or path_inside.startswith(f"{top}/")

    def _is_hidden(self, path_inside: str) -> bool:
        return any(
            path_inside == each or path_inside.startswith(f"{each}/") or each.startswith(f"{path_inside}/")
            for each in self._hidden
        )

    def _check_signal(self, target: int) -> int:
        """`kill` reaches the command's own processes, by pid or group. Killing all of the account is refused."""
        if target == -1:
            raise PermissionError(errno.EPERM, "")
        if target > 0:
            return self._check_process(target)
        members = [pid for pid, row in process_rows() if int(row[2]) == -target] if target else []
        for pid in members:
            if pid != os.getpid():
                self._check_process(pid)
        return 0

    def _check_process(self, pid: int) -> int:
        """Raises PermissionError for a process or thread that does not descend from the command."""
        while pid not in (0, 1, os.getpid()):
            try:
                parent = int(read_stat(pid)[1])
            except OSError:
                raise ProcessLookupError(errno.ESRCH, "") from None
            if parent == os.getpid():
                return 0
            pid = parent
        raise PermissionError(errno.EPERM, "")

    def _read(self, pid: int, pointer: int, size: int) -> bytes:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        try:
            content = os.pread(memory, size, pointer)
        except (OSError, OverflowError):
            raise OSError(errno.EFAULT, "") from None
        finally:
            os.close(memory)
        if len(content) < size:
            raise OSError(errno.EFAULT, "")
        return content

    def _read_path(self, pid: int, pointer: int) -> bytes:
        path = b""
        while len(path) < _PAGE:
            path += self._read(pid, pointer + len(path), _PAGE - (pointer + len(path)) % _PAGE)
            if b"\0" in path:
                return path.partition(b"\0")[0]
        raise OSError(errno.ENAMETOOLONG, "")


def _signed(word: int) -> int:
    return ctypes.c_int(word & 0xFFFFFFFF).value


def _nanoseconds(kind: str, times: bytes) -> bytes:
    """Times of access and change as `utimensat` takes them."""
    if kind == "nanoseconds":
        return times
    if kind == "seconds":
        accessed, modified = struct.unpack("=qq", times)
        return struct.pack("=qqqq", accessed, 0, modified, 0)
    words = struct.unpack("=qqqq", times)
    if not all(0 <= each < 1_000_000 for each in words[1::2]):
        raise OSError(errno.EINVAL, "")
    return struct.pack("=qqqq", words[0], words[1] * 1000, words[2], words[3] * 1000)


# Processes


def read_stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session …"""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    if len(fields) < 18:
        raise ProcessLookupError(errno.ESRCH, "")  # it ended between opening and reading
    return fields


def thread_group(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    raise ProcessLookupError(errno.ESRCH, "")


def process_rows() -> list[tuple[int, list[bytes]]]:
    rows: list[tuple[int, list[bytes]]] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                rows.append((int(name), read_stat(int(name))))
            except OSError:
                continue  # it has ended
    return rows


def descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, row in process_rows():
        children.setdefault(int(row[1]), []).append(pid)
    all_below, waiting = list[int](), [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        all_below += below
        waiting += below
    return all_below


def signal_descendants(number: int) -> None:
    for pid in descendants():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_descendants() -> None:
    """End every process below this one. All that lose their parent become its children, so none is missed."""
    until = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        signal_descendants(signal.SIGKILL)
        select.select([], [], [], 0.002)
    report("some processes of the command could not be ended")


def replace_streams() -> None:
    """Let go of the command's input and output. Standard error stays open, for messages."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.close(nothing)


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


# The three processes


def run_first(options: Options) -> int:
    """Start the monitor and wait for it. A signal ends the command in order; the death of this process at once."""
    account = options.number("account")
    scratch = make_scratch(options.one("scratch"), account)
    if settings := options.one("gitconfig"):
        write_settings(f"{scratch}/home/.gitconfig", settings, account)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reads, writes = os.pipe()
    monitor = os.fork()
    if not monitor:
        os.close(writes)
        os._exit(run_guarded(lambda: run_monitor(options, scratch, reads)))
    os.close(reads)

    def end(number: int, frame: object) -> None:
        del number, frame
        try:
            os.write(writes, b"t")
        except BrokenPipeError:
            return  # it is ending already

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, end)
    replace_streams()
    _, status = os.waitpid(monitor, 0)
    kill_descendants()  # there are some only if the monitor was killed
    if os.path.exists(scratch):
        discard(scratch)
    return exit_code(status)


def run_monitor(options: Options, scratch: str, lifeline: int) -> int:
    """Start the command, answer its calls, and end everything when it has ended, or when the first process has."""
    os.setsid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if options.is_confined:
        drop_privileges()
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    command = os.fork()
    if not command:
        run_guarded(lambda: run_command(options, scratch, theirs))
        os._exit(_NOT_STARTED)
    theirs.close()
    polling = select.poll()
    for descriptor in (lifeline, woken):
        polling.register(descriptor, select.POLLIN)
    monitor = None
    if options.is_confined and (listener := receive_descriptor(ours)) >= 0:
        monitor = Monitor(options, listener, os.open(scratch, os.O_PATH))
        polling.register(listener, select.POLLIN)
    replace_streams()
    code = wait_for_command(command, polling, monitor, lifeline, woken)
    kill_descendants()
    discard(scratch)
    return code


def wait_for_command(command: int, polling: select.poll, monitor: Monitor | None, lifeline: int, woken: int) -> int:
    deadline = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        for descriptor, event in polling.poll(left):
            if descriptor == woken:
                os.read(woken, 4096)
            elif descriptor == lifeline:
                if not os.read(lifeline, 1):
                    return 128 + signal.SIGKILL
                if deadline is None:
                    deadline = time.monotonic() + _GRACE
                    signal_descendants(signal.SIGTERM)
            elif monitor and event & select.POLLIN:
                monitor.answer()
            else:
                polling.unregister(descriptor)  # no process is left that could ask
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command:
                return exit_code(ended[1])
        if deadline is not None and time.monotonic() >= deadline:
            return 128 + signal.SIGKILL


def receive_descriptor(channel: _socket.socket) -> int:
    """The listener; -1 when the command could not be started."""
    _, extra, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(4))
    channel.close()
    return struct.unpack("=i", extra[0][2][:4])[0] if extra else -1


def run_command(options: Options, scratch: str, channel: _socket.socket) -> None:
    """Become the command. Returns only by raising OSError."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.fchdir(options.number("cwd"))
    if account := options.number("account"):
        become_account(account, os.getcwd())
    limit_resources(options)
    if options.is_confined:
        programs = [read_program(path) for path in options.all("filter")]
        restrict_files(options, scratch)
        for program in programs:
            load_filter(program)
        listener = load_filter(bytes.fromhex(options.one("notify")), _NEW_LISTENER)
        channel.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", listener))])
    environ = {word.partition("=")[0]: word.partition("=")[2] for word in options.all("env")}
    environ |= {"HOME": f"{scratch}/home", "TMPDIR": f"{scratch}/tmp"}
    syscall(_CLOSE_RANGE, 3, 0x7FFFFFFF, 0)
    name = options.argv[0]
    # Without `os.execvpe`, which imports modules that cannot be read any more.
    for folder in [""] if "/" in name else environ.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder}/{name}" if folder else name, options.argv, environ)
        except (FileNotFoundError, NotADirectoryError):
            continue
    report(f"{name}: not found")
    os._exit(127)


def read_program(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def run_guarded(run: Callable[[], int | None]) -> int:
    """Nothing runs unconfined: whatever goes wrong ends this process."""
    try:
        return run() or 0
    except OSError as error:
        report(f"the command was not started: {error.strerror or error}")
    return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: run_first(Options(sys.argv[1:]))))
