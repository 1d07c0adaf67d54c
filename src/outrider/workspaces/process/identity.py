"""Telling one process from another that has its number."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import Refused
from outrider.workspaces.process import proc, ps
from outrider.workspaces.process.folder import Files, record
from outrider.workspaces.process.row import Row
from outrider.workspaces.process.spec import Mark

system = proc if os.path.exists(proc.STAT) else ps
boot = system.boot
UNKNOWN = Mark(0, 0, "")
"""A supervisor that did start, and of which nothing else is known: it is not running."""


def mark_of(pid: int) -> Mark:
    row = system.row(pid)
    return Mark(pid, row.started, boot()) if row else UNKNOWN


def recorded(folder: Path) -> Mark | None:
    """The supervisor as it described itself; None when it has not come so far."""
    files = Files(folder)
    if not files.started.is_file():
        return None
    facts = record(folder)
    try:
        row = system.parse(facts.supervisor)
    except ValueError:
        return UNKNOWN
    if system is ps and row.started > files.started.stat().st_mtime + 1:
        return UNKNOWN
    return Mark(row.pid, row.started, facts.boot or boot())


def is_alive(mark: Mark) -> bool:
    """Whether this very process runs. One that has ended and is our child is let go."""
    row = system.row(mark.pid) if mark.pid else None
    if row is None or row.started != mark.started or mark.boot != boot():
        return False
    if row.is_dead:
        # Only a child that is certainly ours: others may be waiting for theirs.
        with suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)
    return not row.is_dead


def send(row: Row, number: int) -> None:
    """A signal to this very process, or to none."""
    try:
        if sys.platform != "linux":
            os.kill(row.pid, number)
            return
        descriptor = os.pidfd_open(row.pid)
        try:
            now = system.row(row.pid)
            if now and now.started == row.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Refused(f"process {row.pid} runs as somebody else and cannot be signalled from here") from error
