"""What a sandboxed command may have: what an approval widens, what is bounded, and what comes of both."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

MIB = 1024 * 1024
GIB = 1024 * MIB


class SandboxGrant(Struct, frozen=True):
    """What an approval widens, for one call. Paths are absolute and must exist."""

    network: bool = False
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


class SandboxLimits(Struct, frozen=True):
    """The most a command may use."""

    processes: int = 512
    memory: int = 2 * GIB
    """Of all its processes together where there are cgroups, of each one where there are none."""
    cpu: int = 3600
    """Seconds of processor time, of each process."""
    file_size: int = 2 * GIB
    open_files: int = 4096
    scratch: int = 512 * MIB
    """Of /tmp, which holds the home as well."""


class SandboxedCommand(Struct, frozen=True):
    """What to start instead of a command: exactly this, with exactly this environment."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = MappingProxyType({})
    rlimits: Mapping[str, int] = MappingProxyType({})
    """By the names of the resource module, in small letters and without RLIMIT_: "cpu", "nofile" …"""


class NoSandbox(Struct, frozen=True):
    """There is none here, so every command has to be asked for."""

    why: str
    hint: str
