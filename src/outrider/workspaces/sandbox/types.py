"""Limits of a sandboxed command, and the command line that they result in."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

MIB = 1024 * 1024
GIB = 1024 * MIB
SandboxKind = Literal["bubblewrap", "landlock", "off"]


class SandboxLimits(Struct, frozen=True):
    """The resource limits of a command."""

    processes: int = 512
    memory: int = 2 * GIB
    """Bytes of all its processes together where there are cgroups, of each process elsewhere."""
    cpu: int = 3600
    """Seconds of processor time of each process."""
    file_size: int = 2 * GIB
    open_files: int = 4096
    scratch: int = 512 * MIB
    """Bytes in /tmp, which contains the home directory as well."""


class SandboxedCommand(Struct, frozen=True):
    """What to start in place of a command, with exactly this environment."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = MappingProxyType({})
    rlimits: Mapping[str, int] = MappingProxyType({})
    """By the names of the resource module, in lower case and without RLIMIT_: "cpu", "nofile" …"""
    descriptors: tuple[int, ...] = ()
    """Open descriptors that the command line names. The child inherits them; the caller closes them after the start."""

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class NoSandbox(Struct, frozen=True):
    """There is no sandbox here, so every command needs an approval."""

    why: str
    hint: str
