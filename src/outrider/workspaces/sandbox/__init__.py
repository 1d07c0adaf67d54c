"""Runs commands where they reach their workspace and little else: what to start in a command's stead."""

from outrider.workspaces.sandbox.bubblewrap import Sandbox
from outrider.workspaces.sandbox.cgroups import Cgroups, find_cgroups
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.inner import command_group
from outrider.workspaces.sandbox.terms import NoSandbox, SandboxedCommand, SandboxGrant, SandboxLimits

__all__ = [
    "Cgroups",
    "SandboxGrant",
    "SandboxLimits",
    "NoSandbox",
    "Sandbox",
    "SandboxedCommand",
    "detect",
    "find_cgroups",
    "command_group",
]
