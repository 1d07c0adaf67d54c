"""How a command runs on disk: detached, under a supervisor of a few lines of sh, all there is to know in its folder.

No other part of a workspace starts, watches or ends processes.
"""

from outrider.workspaces.process.end import first_pid, interrupt, kill, poll_exit, remove_folder, wait_for_exit
from outrider.workspaces.process.identity import boot_id
from outrider.workspaces.process.output import last_output_time, output_size, read_output, tail_output
from outrider.workspaces.process.spec import CommandSpec, Exit, ProcessIdentity
from outrider.workspaces.process.start import adopt, start_detached
from outrider.workspaces.process.stdin import close_stdin, write_stdin

__all__ = [
    "Exit",
    "ProcessIdentity",
    "CommandSpec",
    "adopt",
    "boot_id",
    "last_output_time",
    "close_stdin",
    "wait_for_exit",
    "first_pid",
    "interrupt",
    "kill",
    "poll_exit",
    "read_output",
    "remove_folder",
    "output_size",
    "start_detached",
    "tail_output",
    "write_stdin",
]
