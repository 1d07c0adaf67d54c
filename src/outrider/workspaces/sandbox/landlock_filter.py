"""The second seccomp filter of a command without namespaces: what Landlock does not control.

It refuses sockets that lead out, new namespaces, shared memory and message queues of the machine, and extended
attributes. Calls that change the permissions, owner or times of a file, watch one, or name a process are left to the
launcher's monitor, which knows which files and processes are the command's own.
"""

import struct
from collections.abc import Mapping

_ALLOW, _NOTIFY, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_EPERM, _ENOSYS, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 38, 95, 97
_LOAD, _AND, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_NUMBER, _ARGUMENTS = 0, 16

_X86 = (
    "ioctl 16 shmget 29 shmat 30 shmctl 31 socket 41 socketpair 53 clone 56 kill 62 semget 64 semop 65 "
    "semctl 66 msgget 68 msgsnd 69 msgrcv 70 msgctl 71 fcntl 72 chmod 90 fchmod 91 chown 92 fchown 93 "
    "lchown 94 rt_sigqueueinfo 129 utime 132 setpriority 141 sched_setparam 142 sched_setscheduler 144 "
    "setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 tkill 200 "
    "sched_setaffinity 203 semtimedop 220 tgkill 234 utimes 235 mq_open 240 mq_unlink 241 ioprio_set 251 "
    "inotify_add_watch 254 fchownat 260 futimesat 261 fchmodat 268 unshare 272 utimensat 280 "
    "rt_tgsigqueueinfo 297 fanotify_init 300 prlimit64 302 sched_setattr 314"
)
_ARM = (
    "setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 fcntl 25 "
    "inotify_add_watch 27 ioctl 29 ioprio_set 30 fchmod 52 fchmodat 53 fchownat 54 fchown 55 utimensat 88 "
    "unshare 97 sched_setparam 118 sched_setscheduler 119 sched_setaffinity 122 kill 129 tkill 130 tgkill 131 "
    "rt_sigqueueinfo 138 setpriority 140 mq_open 180 mq_unlink 181 msgget 186 msgctl 187 msgrcv 188 msgsnd 189 "
    "semget 190 semctl 191 semtimedop 192 semop 193 shmget 194 shmctl 195 shmat 196 socket 198 socketpair 199 "
    "clone 220 rt_tgsigqueueinfo 240 prlimit64 261 fanotify_init 262 sched_setattr 274"
)
_NEW = "pidfd_send_signal 424 clone3 435 fchmodat2 452 setxattrat 463 removexattrat 466 file_setattr 469"


def _table(*texts: str) -> Mapping[str, int]:
    words = " ".join(texts).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


CALLS: Mapping[str, Mapping[str, int]] = {"x86_64": _table(_X86, _NEW), "aarch64": _table(_ARM, _NEW)}
"""The numbers of the calls that are decided here, by architecture."""
_FILES = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "inotify_add_watch"),
)
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_PROCESSES = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
"""Calls for the process in their first argument; 0 is the process itself."""
_PRIORITIES = {"setpriority": 0, "ioprio_set": 1}
"""Calls for the process in their second argument, and the first argument that says it is one and not a group."""
NOTIFIED = (*_FILES, *_SIGNALS, *_PROCESSES, *_PRIORITIES)

_REFUSED = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("mq_open", "mq_unlink", "fanotify_init"),
)
_UNSUPPORTED = ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr")
_ABSENT = ("clone3", "setxattrat", "removexattrat", "file_setattr")
"""Refused as if the kernel were too old, so that programs use other calls: no filter can read their arguments."""
_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_TYPE_MASK, _DATAGRAM = 0xF, 2
_FILE_FLAGS = (0x40086602, 0x401C5820, 0x40806685, 0x800C6613)
"""The ioctls that set flags, extended flags, verity and encryption of a file that is only open for reading."""
_SET_OWNER = (8, 15)
"""F_SETOWN and F_SETOWN_EX: whom a descriptor sends a signal."""
_SIGNAL_ABI = 6
"""From this version on, Landlock itself confines signals."""


def assemble_filter(machine: str, abi: int, *, network: bool) -> bytes:
    """The filter for this architecture and version of Landlock."""
    refuse, allow, notify = (_return(each) for each in (_ERRNO | _EPERM, _ALLOW, _NOTIFY))
    calls = CALLS[machine]
    checks: dict[str, list[bytes]] = {name: [notify] for name in _FILES}
    checks |= {name: [refuse] for name in _REFUSED}
    checks |= {name: [_return(_ERRNO | _EOPNOTSUPP)] for name in _UNSUPPORTED}
    checks |= {name: [_return(_ERRNO | _ENOSYS)] for name in _ABSENT}
    for name in _PROCESSES:
        checks[name] = [_argument(0), *_if_equal(0, allow), notify]
    for name, process in _PRIORITIES.items():
        is_process = [_argument(0), _line(_EQUAL, process, 1, 0), refuse]
        checks[name] = [*is_process, _argument(1), *_if_equal(0, allow), notify]
    checks["unshare"] = [_argument(0), *_if_any(_NAMESPACES | _NEW_TIME_NAMESPACE, refuse), allow]
    checks["clone"] = [_argument(0), *_if_any(_NAMESPACES, refuse), allow]
    checks["ioctl"] = [_argument(1)]
    for request in _FILE_FLAGS:
        checks["ioctl"] += _if_equal(request, _return(_ERRNO | _EOPNOTSUPP))
    checks["ioctl"].append(allow)
    families = (_INET, _INET6, _NETLINK) if network else ()
    checks["socket"] = [_argument(0), *(line for each in families for line in _if_equal(each, allow))]
    checks["socket"].append(_return(_ERRNO | _EAFNOSUPPORT))
    # A pair of connected sockets leads nowhere, except datagram sockets, which can be connected again.
    is_unix = [_argument(0), _line(_EQUAL, _UNIX, 1, 0), _return(_ERRNO | _EAFNOSUPPORT)]
    checks["socketpair"] = [*is_unix, _argument(1), _line(_AND, _TYPE_MASK), *_if_equal(_DATAGRAM, refuse), allow]
    if abi < _SIGNAL_ABI:
        checks |= {name: [notify] for name in _SIGNALS}
        checks["pidfd_send_signal"] = [_return(_ERRNO | _ENOSYS)]
        checks["fcntl"] = [_argument(1), *(line for each in _SET_OWNER for line in _if_equal(each, refuse)), allow]
    lines = [_line(_LOAD, _NUMBER)]
    for name, part in checks.items():
        if name in calls:
            lines += [_line(_EQUAL, calls[name], 0, len(part)), *part]
    return b"".join([*lines, allow])


def _if_equal(value: int, then: bytes) -> list[bytes]:
    return [_line(_EQUAL, value, 0, 1), then]


def _if_any(bits: int, then: bytes) -> list[bytes]:
    return [_line(_ANY_BIT, bits, 0, 1), then]


def _argument(number: int) -> bytes:
    """Load the low half of an argument; the kernel ignores the upper one of an `int`."""
    return _line(_LOAD, _ARGUMENTS + 8 * number)


def _return(value: int) -> bytes:
    return _line(_RETURN, value)


def _line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
