"""The seccomp filter of a sandboxed command: system calls that namespaces do not confine.

It refuses the kernel's keyrings, socket families without network namespaces (vsock reaches the host of a virtual
machine), and injecting input into a terminal. The compiled filters are files, since bubblewrap reads them from a
descriptor; running this module writes them.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
_FAMILIES = (1, 2, 10, 16)
"""unix, inet, inet6, netlink."""
_TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""
_ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register")
"""Refused as if the kernel were too old, so that programs use other calls. A ring could open sockets unfiltered."""


class Architecture(Struct, frozen=True):
    """A processor architecture: the kernel's number for it, and the numbers of its system calls."""

    arch: int
    calls: Mapping[str, int]
    foreign: int | None = None
    """From this number on, calls belong to another ABI."""


_X86 = (
    "ioctl 16 socket 41 syslog 103 pivot_root 155 acct 163 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 "
    "init_module 175 delete_module 176 quotactl 179 kexec_load 246 add_key 248 request_key 249 keyctl 250 "
    "perf_event_open 298 open_by_handle_at 304 setns 308 finit_module 313 kexec_file_load 320 bpf 321 userfaultfd 323"
)
_ARM = (
    "ioctl 29 umount2 39 mount 40 pivot_root 41 quotactl 60 acct 89 kexec_load 104 init_module 105 delete_module 106 "
    "syslog 116 reboot 142 socket 198 add_key 217 request_key 218 keyctl 219 swapon 224 swapoff 225 "
    "perf_event_open 241 open_by_handle_at 265 setns 268 finit_module 273 bpf 280 userfaultfd 282 kexec_file_load 294"
)
_NEW = (
    "io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431 "
    "fsmount 432 fspick 433 mount_setattr 442 quotactl_fd 443"
)


def _table(*texts: str) -> Mapping[str, int]:
    words = " ".join(texts).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(0xC000003E, _table(_X86, _NEW), 0x40000000),
    "aarch64": Architecture(0xC00000B7, _table(_ARM, _NEW)),
}


def seccomp_file(machine: str) -> Path | None:
    """The file with the filter for this architecture; None where there is none."""
    return Path(__file__).parent / f"filter.{machine}" if machine in ARCHITECTURES else None


def assemble_program(architecture: Architecture) -> bytes:
    """The filter program: refuse other ABIs, then calls by name, then two calls by their argument."""
    refused = _ERRNO | _EPERM
    absent = _ERRNO | _ENOSYS
    lines = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, architecture.arch, 1, 0),
        _instruction(_RETURN, absent),
        _instruction(_LOAD, _NUMBER),
    ]
    if architecture.foreign is not None:
        lines += [_instruction(_AT_LEAST, architecture.foreign, 0, 1), _instruction(_RETURN, absent)]
    for name, number in architecture.calls.items():
        if name not in ("ioctl", "socket"):
            answer = absent if name in _ABSENT else refused
            lines += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, answer)]
    typing = [_instruction(_LOAD, _SECOND)]
    for request in _TYPING:
        typing += [_instruction(_EQUAL, request, 0, 1), _instruction(_RETURN, refused)]
    typing.append(_instruction(_RETURN, _ALLOW))
    opening = [_instruction(_LOAD, _FIRST)]
    for family in _FAMILIES:
        opening += [_instruction(_EQUAL, family, 0, 1), _instruction(_RETURN, _ALLOW)]
    opening.append(_instruction(_RETURN, _ERRNO | _EAFNOSUPPORT))
    lines += [_instruction(_EQUAL, architecture.calls["ioctl"], 0, len(typing)), *typing]
    lines += [_instruction(_EQUAL, architecture.calls["socket"], 0, len(opening)), *opening]
    return b"".join([*lines, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


if __name__ == "__main__":
    for name, architecture in ARCHITECTURES.items():
        (Path(__file__).parent / f"filter.{name}").write_bytes(assemble_program(architecture))
