"""How a command runs on disk: detached, under a supervisor of a few lines of sh, all there is to know in its folder.

No other part of a workspace starts, watches or ends processes.
"""

from outrider.workspaces.process.end import ended, first, interrupt, kill, look, remove
from outrider.workspaces.process.identity import boot
from outrider.workspaces.process.output import changed, read, size, tail
from outrider.workspaces.process.spec import Exit, Mark, Spec
from outrider.workspaces.process.start import adopt, start
from outrider.workspaces.process.stdin import close_stdin, write

__all__ = [
    "Exit",
    "Mark",
    "Spec",
    "adopt",
    "boot",
    "changed",
    "close_stdin",
    "ended",
    "first",
    "interrupt",
    "kill",
    "look",
    "read",
    "remove",
    "size",
    "start",
    "tail",
    "write",
]
