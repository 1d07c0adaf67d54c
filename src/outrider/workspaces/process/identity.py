"""Telling one process from another that has its number."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import Refused
from outrider.workspaces.process import proc, ps
from outrider.workspaces.process.folder import TaskFiles, read_record
from outrider.workspaces.process.row import ProcessRow
from outrider.workspaces.process.spec import ProcessIdentity

process_table = proc if os.path.exists(proc.STAT) else ps
boot_id = process_table.boot_id
UNKNOWN_PROCESS = ProcessIdentity(0, 0, "")
"""A supervisor that did start, and of which nothing else is known: it is not running."""


def identity_of(pid: int) -> ProcessIdentity:
    row = process_table.find_process(pid)
    return ProcessIdentity(pid, row.started, boot_id()) if row else UNKNOWN_PROCESS


def recorded_supervisor(folder: Path) -> ProcessIdentity | None:
    """The supervisor as it described itself; None when it has not come so far."""
    files = TaskFiles(folder)
    if not files.started.is_file():
        return None
    facts = read_record(folder)
    try:
        row = process_table.parse_process(facts.supervisor)
    except ValueError:
        return UNKNOWN_PROCESS
    if process_table is ps and row.started > files.started.stat().st_mtime + 1:
        return UNKNOWN_PROCESS
    return ProcessIdentity(row.pid, row.started, facts.boot or boot_id())


def is_alive(mark: ProcessIdentity) -> bool:
    """Whether this very process runs. One that has ended and is our child is let go."""
    row = process_table.find_process(mark.pid) if mark.pid else None
    if row is None or row.started != mark.started or mark.boot != boot_id():
        return False
    if row.is_zombie:
        # Only a child that is certainly ours: others may be waiting for theirs.
        with suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)
    return not row.is_zombie


def send_signal(row: ProcessRow, number: int) -> None:
    """A signal to this very process, or to none."""
    try:
        if sys.platform != "linux":
            os.kill(row.pid, number)
            return
        descriptor = os.pidfd_open(row.pid)
        try:
            now = process_table.find_process(row.pid)
            if now and now.started == row.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Refused(f"process {row.pid} runs as somebody else and cannot be signalled from here") from error
