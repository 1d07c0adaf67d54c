"""Runs commands where they reach their workspace and little else: what to start in a command's stead."""

from outrider.workspaces.sandbox.bubblewrap import Sandbox
from outrider.workspaces.sandbox.cgroups import Cgroups, find_cgroups
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.inner import inner_group
from outrider.workspaces.sandbox.terms import Grant, Limits, NoSandbox, Wrapped

__all__ = ["Cgroups", "Grant", "Limits", "NoSandbox", "Sandbox", "Wrapped", "detect", "find_cgroups", "inner_group"]
