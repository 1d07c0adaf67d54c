"""What this machine has beyond Python. A test that needs more is skipped where it is missing, with the reason."""

import os
import shutil
from functools import cache

from outrider.workspaces.sandbox import NoSandbox, detect


@cache
def missing(need: str) -> str:
    """Why this machine cannot provide what a test needs; empty when it can."""
    match need:
        case "sandbox":
            sandbox = detect()
            return f"needs a sandbox: {sandbox.why}" if isinstance(sandbox, NoSandbox) else ""
        case "bubblewrap":
            sandbox = detect(mode="bubblewrap")
            return f"needs bubblewrap: {sandbox.why}" if isinstance(sandbox, NoSandbox) else ""
        case "terminal":
            try:
                descriptors = os.openpty()
            except OSError as error:
                return f"needs pseudo-terminals: {error.strerror}"
            for descriptor in descriptors:
                os.close(descriptor)
            return ""
        case "tmux":
            return missing("terminal") or _missing_program("tmux")
        case "node":
            return _missing_program("node") or _missing_program("npm")
        case "git" | "ps" | "mount":
            return _missing_program(need)
        case _:
            raise ValueError(f"no test can need {need!r}; see tests/support/machine.py")


def _missing_program(name: str) -> str:
    return "" if shutil.which(name) else f"needs {name}, which is not installed"
