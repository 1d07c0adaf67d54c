"""The seccomp filter of a sandboxed command: system calls that namespaces do not confine.

It refuses the kernel's keyrings, socket families without network namespaces (vsock reaches the host of a virtual
machine), injecting input into a terminal, and setting the setuid and setgid bits, which would be in force outside.
`mkdir` needs no check: the kernel ignores these bits there. The compiled filters are files, since bubblewrap reads them
from a descriptor; running this module writes them.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_FAMILIES = (1, 2, 10, 16)
"""unix, inet, inet6, netlink."""
_TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""
_ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "openat2")
"""Refused as if the kernel were too old, so that programs use other calls. A ring could open sockets unfiltered, and
the mode of `openat2` is in memory, which no filter can read."""
_FIRST_UNKNOWN = 467
"""From this number on, calls are newer than this list or belong to another ABI. They are refused as if the kernel were
too old."""
_SET_ID_BITS = 0o6000
_CREATES = 0o100 | 0o20000000
"""O_CREAT and the bit of its own that O_TMPFILE has. Without them, the mode of `open` is not an argument."""
_MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
"""Calls that set a mode, and the number of that argument, from 0."""
_OPENS = {"open": (1, 2), "openat": (2, 3)}
"""Calls that set a mode when they create a file, and the numbers of the arguments flags and mode."""


class Architecture(Struct, frozen=True):
    """A processor architecture: the kernel's number for it, and the numbers of its system calls."""

    arch: int
    calls: Mapping[str, int]


_X86 = (
    "open 2 ioctl 16 socket 41 creat 85 chmod 90 fchmod 91 syslog 103 mknod 133 pivot_root 155 acct 163 mount 165 "
    "umount2 166 swapon 167 swapoff 168 reboot 169 init_module 175 delete_module 176 quotactl 179 kexec_load 246 "
    "add_key 248 request_key 249 keyctl 250 openat 257 mknodat 259 fchmodat 268 perf_event_open 298 "
    "open_by_handle_at 304 setns 308 finit_module 313 kexec_file_load 320 bpf 321 userfaultfd 323"
)
_ARM = (
    "ioctl 29 mknodat 33 umount2 39 mount 40 pivot_root 41 fchmod 52 fchmodat 53 openat 56 quotactl 60 acct 89 "
    "kexec_load 104 init_module 105 delete_module 106 syslog 116 reboot 142 socket 198 add_key 217 request_key 218 "
    "keyctl 219 swapon 224 swapoff 225 perf_event_open 241 open_by_handle_at 265 setns 268 finit_module 273 bpf 280 "
    "userfaultfd 282 kexec_file_load 294"
)
_NEW = (
    "io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431 "
    "fsmount 432 fspick 433 openat2 437 mount_setattr 442 quotactl_fd 443 fchmodat2 452"
)


def _table(*texts: str) -> Mapping[str, int]:
    words = " ".join(texts).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(0xC000003E, _table(_X86, _NEW)),
    "aarch64": Architecture(0xC00000B7, _table(_ARM, _NEW)),
}


def seccomp_file(machine: str) -> Path | None:
    """The file with the filter for this architecture; None where there is none."""
    return Path(__file__).parent / f"filter.{machine}" if machine in ARCHITECTURES else None


def assemble_program(architecture: Architecture) -> bytes:
    """The filter program: refuse other ABIs and unknown calls, then calls by number, then some by their arguments."""
    refused, absent = _ERRNO | _EPERM, _ERRNO | _ENOSYS
    by_argument = {name: part for name, part in _argument_checks().items() if name in architecture.calls}
    lines = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, architecture.arch, 1, 0),
        _instruction(_RETURN, absent),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _FIRST_UNKNOWN, 0, 1),
        _instruction(_RETURN, absent),
    ]
    for name, number in architecture.calls.items():
        if name not in by_argument:
            answer = absent if name in _ABSENT else refused
            lines += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, answer)]
    for name, part in by_argument.items():
        lines += [_instruction(_EQUAL, architecture.calls[name], 0, len(part)), *part]
    return b"".join([*lines, _instruction(_RETURN, _ALLOW)])


def _argument_checks() -> dict[str, list[bytes]]:
    """The instructions for each call that is decided by its arguments. They always return."""
    refuse, allow = _instruction(_RETURN, _ERRNO | _EPERM), _instruction(_RETURN, _ALLOW)
    checks = {"ioctl": [_load_argument(1)], "socket": [_load_argument(0)]}
    for request in _TYPING:
        checks["ioctl"] += [_instruction(_EQUAL, request, 0, 1), refuse]
    checks["ioctl"].append(allow)
    for family in _FAMILIES:
        checks["socket"] += [_instruction(_EQUAL, family, 0, 1), allow]
    checks["socket"].append(_instruction(_RETURN, _ERRNO | _EAFNOSUPPORT))
    refuse_bits = [_instruction(_ANY_BIT, _SET_ID_BITS, 0, 1), refuse, allow]
    for name, mode in _MODES.items():
        checks[name] = [_load_argument(mode), *refuse_bits]
    for name, (flags, mode) in _OPENS.items():
        does_create = [_load_argument(flags), _instruction(_ANY_BIT, _CREATES, 1, 0), allow]
        checks[name] = [*does_create, _load_argument(mode), *refuse_bits]
    return checks


def _load_argument(number: int) -> bytes:
    """The low half of an argument. The kernel ignores the upper one: these arguments are `int` or shorter."""
    return _instruction(_LOAD, _ARGUMENTS + 8 * number)


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


if __name__ == "__main__":
    for name, architecture in ARCHITECTURES.items():
        (Path(__file__).parent / f"filter.{name}").write_bytes(assemble_program(architecture))
