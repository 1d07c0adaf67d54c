"""Runs commands where they reach their workspace and little else: what to start in a command's stead."""

from outrider.workspaces.sandbox.bubblewrap import Sandbox, command_group
from outrider.workspaces.sandbox.cgroups import Cgroups, find_cgroups
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand, SandboxGrant, SandboxLimits

__all__ = [
    "Cgroups",
    "NoSandbox",
    "Sandbox",
    "SandboxGrant",
    "SandboxLimits",
    "SandboxedCommand",
    "command_group",
    "detect",
    "find_cgroups",
]
