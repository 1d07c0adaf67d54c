"""What a child started and left behind: found by descent, session and mark in /proc, and ended.

Where there is no /proc nothing is found here, and only the child's own process group is ended with it.

Telling one process from another that has its number.
"""

import logging
import os
import re
import secrets
import signal
import sys
from contextlib import suppress

import anyio
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.system import proc, ps
from outrider.system.proc import ProcessIdentity, ProcessRow

MARKER_VARIABLE = "OUTRIDER_CHILD"
"""The variable whose value marks what a child started. A child that gives its commands an environment of their own
must be told to put it there."""
_SIGTERM_GRACE = 1.0
_SIGKILL_TIMEOUT = 10.0
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.3
_MARKER = re.compile(r"[0-9a-zA-Z_-]{16,128}")
_processes_log = logging.getLogger("outrider.jsonrpc")


class ProcessKey(Struct, frozen=True, order=True):
    """One process, never mistaken for a later one with its number. The oldest is the least."""

    started: int
    """Ticks since boot."""
    pid: int


class _TreeRow(Struct, frozen=True):
    process: ProcessKey
    parent: int
    session: int


def new_marker() -> str:
    """A value for `OUTRIDER_CHILD` that no other process carries. Write it down before the child is started."""
    return secrets.token_hex(16)


def check_marker(marker: str) -> None:
    """Raises Refused for a marker that other processes could have."""
    if not _MARKER.fullmatch(marker):
        raise Refused(f"a mark of at least 16 letters and digits tells processes apart; {marker!r} does not")


async def terminate_marked(mark: str) -> int:
    """End all that carries this mark, with its descendants and sessions; how many there were.

    For what a child left behind when we were killed. They are gone when it returns. Raises Unavailable when the system
    does not let go of one, and Refused for a mark that is none of ours. Without /proc it finds nothing.
    """
    return await ProcessTree(mark).terminate()


class ProcessTree:
    """All that one child started, as far as it was seen; the child itself is not among it."""

    def __init__(self, marker: str, leader_pid: int = 0) -> None:
        """`leader_pid`: the child, if it leads its session. It must not be reaped while this is in use."""
        check_marker(marker)
        self._variable = os.fsencode(f"{MARKER_VARIABLE}={marker}")
        self._leader_pid = leader_pid
        self._seen: set[ProcessKey] = set()

    def scan(self) -> set[ProcessKey]:
        """Those that live now. Whoever was seen once is remembered, whatever it does to get lost."""
        rows = {row.process.pid: row for row in _read_table() if row.process.pid not in (1, os.getpid())}
        child = {self._leader_pid} - {0}
        found = {pid for pid, row in rows.items() if row.process in self._seen or _has_marker(pid, self._variable)}
        # Never the session we live in, nor that of the kernel's threads, whoever else found a way into them.
        never = {0, os.getsid(0)}
        while True:
            sessions = ({rows[pid].session for pid in found} | child) - never
            more = {pid for pid, row in rows.items() if row.parent in found | child or row.session in sessions}
            if more <= found:
                break
            found |= more
        living = {rows[pid].process for pid in found - child}
        self._seen |= living
        return living

    async def terminate(self) -> int:
        """Ask each to end, then make it; how many there were. Raises Unavailable when one does not go."""
        asked: set[ProcessKey] = set()
        begun, pause = anyio.current_time(), _FIRST_PAUSE
        while rest := await anyio.to_thread.run_sync(self.scan):
            is_asked = anyio.current_time() < begun + _SIGTERM_GRACE
            # The oldest first: whoever sees its child die has no time to start another, which nobody could trace.
            for process in sorted(rest if not is_asked else rest - asked):
                _send_signal(process, signal.SIGTERM if is_asked else signal.SIGKILL)
                # One that is stopped would never notice.
                _send_signal(process, signal.SIGCONT)
            asked |= rest
            if anyio.current_time() > begun + _SIGTERM_GRACE + _SIGKILL_TIMEOUT:
                named = ", ".join(str(process.pid) for process in list(rest)[:5])
                raise Unavailable(f"processes that a child left behind do not die: {named}", retry_after=5)
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return len(asked)


def _send_signal(process: ProcessKey, number: int) -> None:
    """To this very process, or to none."""
    if sys.platform != "linux":
        return
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at after it was opened, so that the descriptor is of this process and not of a later one.
        row = _read_process(process.pid)
        if row and row.process == process:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    except PermissionError:
        _processes_log.warning(
            "process %d was started by a child, runs as somebody else and cannot be ended", process.pid
        )
    finally:
        os.close(descriptor)


def _read_table() -> list[_TreeRow]:
    if not os.path.exists("/proc/self/stat"):
        return []
    numbers = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [row for number in numbers if (row := _read_process(number))]


def _read_process(pid: int) -> _TreeRow | None:
    """None when it is gone or dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything: the last one closes it.
            fields = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, _, session = fields[:4]
    return None if state in b"ZXx" else _TreeRow(ProcessKey(int(fields[19]), pid), int(parent), int(session))


def _has_marker(pid: int, variable: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


process_table = proc if os.path.exists(proc.STAT) else ps
boot_id = process_table.boot_id
UNKNOWN_PROCESS = ProcessIdentity(0, 0, "")
"""A supervisor that did start, and of which nothing else is known: it is not running."""


def identity_of(pid: int) -> ProcessIdentity:
    row = process_table.find_process(pid)
    return ProcessIdentity(pid, row.started, boot_id()) if row else UNKNOWN_PROCESS


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
