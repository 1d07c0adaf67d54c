"""The sandbox: what to start in place of a command, so that it reaches its workspace and little else."""

from outrider.workspaces.sandbox.bubblewrap import BubblewrapSandbox, command_group
from outrider.workspaces.sandbox.cgroups import Cgroups, find_cgroups
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.landlock import LandlockSandbox, UnconfinedCommands
from outrider.workspaces.sandbox.port import Sandbox
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand, SandboxLimits

__all__ = [
    "BubblewrapSandbox",
    "Cgroups",
    "LandlockSandbox",
    "NoSandbox",
    "Sandbox",
    "SandboxLimits",
    "SandboxedCommand",
    "UnconfinedCommands",
    "command_group",
    "detect",
    "find_cgroups",
]
