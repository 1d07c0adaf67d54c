"""The process table, the identity of a process, and signals to whole process trees.

A pid alone proves nothing, since the system gives it to another process later: a process is recognised by its pid,
start time and boot. A signal reaches exactly the process it was meant for, or none.
"""

import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import anyio
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import ProcessIdentity

MARKER_VARIABLE = "OUTRIDER_CHILD"
"""The environment variable whose value marks everything a child starts. A child that builds a new environment for its
commands must be configured to include it."""
_SIGTERM_GRACE = 1.0
_SIGKILL_TIMEOUT = 10.0
_FIRST_PAUSE = 0.02
_MAX_PAUSE = 0.3
_MARKER = re.compile(r"[0-9a-zA-Z_-]{16,128}")
_STAT = "/proc/self/stat"
_GONE = (FileNotFoundError, ProcessLookupError)
_log = logging.getLogger("outrider.processes")


class ProcessRow(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    group: int
    started: int
    """Ticks since boot where there is /proc, seconds since 1970 elsewhere."""
    is_zombie: bool


class ProcessTable(Protocol):
    """The running processes of this machine."""

    starts_by_clock: bool
    """Whether `started` is wall-clock time in whole seconds, and so not exact."""

    def boot_id(self) -> str:
        """An id that changes with every start of the machine."""
        ...

    def find_process(self, pid: int) -> ProcessRow | None: ...
    def list_processes(self) -> Iterator[ProcessRow]: ...

    def parse_process(self, line: bytes) -> ProcessRow:
        """The process that described itself with this line. Raises ValueError when the line describes none."""
        ...

    def has_variable(self, pid: int, variable: bytes) -> bool:
        """Whether the process was started with this `NAME=value`."""
        ...

    def writes_to(self, pid: int, pipe: str) -> bool:
        """Whether its stdout or stderr is this pipe."""
        ...


class ProcFilesystem:
    """The process table in /proc."""

    starts_by_clock = False

    def boot_id(self) -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

    def find_process(self, pid: int) -> ProcessRow | None:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                return self.parse_process(file.read())
        except _GONE:
            return None

    def list_processes(self) -> Iterator[ProcessRow]:
        for name in os.listdir("/proc"):
            if name.isdecimal() and (row := self.find_process(int(name))):
                yield row

    def parse_process(self, line: bytes) -> ProcessRow:
        """Parse a line of /proc/*/stat."""
        pid, _, remainder = line.partition(b" (")
        # The program's name may contain anything, including parentheses and newlines: the last one closes it.
        fields = remainder.rpartition(b") ")[2].split()
        if len(fields) < 20:
            raise ValueError("not a line of /proc/*/stat")
        return ProcessRow(
            pid=int(pid),
            parent=int(fields[1]),
            session=int(fields[3]),
            group=int(fields[2]),
            started=int(fields[19]),
            is_zombie=fields[0] in (b"Z", b"X", b"x"),
        )

    def has_variable(self, pid: int, variable: bytes) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return b"\0" + variable + b"\0" in b"\0" + file.read()
        except (*_GONE, PermissionError):
            return False

    def writes_to(self, pid: int, pipe: str) -> bool:
        for number in (1, 2):
            with suppress(*_GONE, PermissionError):
                if os.readlink(f"/proc/{pid}/fd/{number}") == pipe:
                    return True
        return False


class PsCommand:
    """The process table as `ps` prints it, for systems without /proc. Slower, and without variables and pipes."""

    starts_by_clock = True
    _columns = "pid=,ppid=,pgid=,stat=,lstart="

    def boot_id(self) -> str:
        return _run_program("sysctl", "-n", "kern.bootsessionuuid").strip()

    def find_process(self, pid: int) -> ProcessRow | None:
        return next(_parse_ps(_run_program("ps", "-o", self._columns, "-p", str(pid))), None)

    def list_processes(self) -> Iterator[ProcessRow]:
        return _parse_ps(_run_program("ps", "-A", "-o", self._columns))

    def parse_process(self, line: bytes) -> ProcessRow:
        """Look up a pid: all that a process without /proc can write about itself."""
        row = self.find_process(int(line))
        if row is None:
            raise ValueError("no such process")
        return row

    def has_variable(self, pid: int, variable: bytes) -> bool:
        del pid, variable
        return False

    def writes_to(self, pid: int, pipe: str) -> bool:
        del pid, pipe
        return False


def _run_program(*argv: str) -> str:
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
        ).stdout
    except FileNotFoundError:
        return ""


def _parse_ps(table: str) -> Iterator[ProcessRow]:
    for line in table.splitlines():
        pid, parent, group, state, *day = line.split()
        yield ProcessRow(
            pid=int(pid),
            parent=int(parent),
            # Not every ps prints sessions. The group is the best substitute: every command leads one.
            session=int(group),
            group=int(group),
            started=int(time.mktime(time.strptime(" ".join(day), "%a %b %d %H:%M:%S %Y"))),
            is_zombie=state.startswith("Z"),
        )


process_table: ProcessTable = ProcFilesystem() if os.path.exists(_STAT) else PsCommand()
boot_id = process_table.boot_id
UNKNOWN_PROCESS = ProcessIdentity(0, 0, "")
"""A process that did start and has ended, with nothing else known about it."""


def identity_of(pid: int) -> ProcessIdentity:
    row = process_table.find_process(pid)
    return ProcessIdentity(pid, row.started, boot_id()) if row else UNKNOWN_PROCESS


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process runs. A child of ours that has ended is reaped."""
    row = process_table.find_process(identity.pid) if identity.pid else None
    if row is None or row.started != identity.started or identity.boot != boot_id():
        return False
    if row.is_zombie:
        # Only this pid: other code may be waiting for its own children.
        with suppress(ChildProcessError):
            os.waitpid(identity.pid, os.WNOHANG)
    return not row.is_zombie


def send_signal(row: ProcessRow, number: int) -> None:
    """Signal exactly this process, or none. Raises Refused when it belongs to another user."""
    try:
        if sys.platform != "linux":
            os.kill(row.pid, number)
            return
        descriptor = os.pidfd_open(row.pid)
        try:
            # Looked up after the descriptor was opened, so that the descriptor is this process's and not a later one's.
            now = process_table.find_process(row.pid)
            if now and now.started == row.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Refused(f"process {row.pid} runs as another user and cannot be signalled") from error


def end_process(row: ProcessRow, number: int) -> None:
    """Send SIGTERM or SIGKILL so that a stopped process notices it too."""
    send_signal(row, number)
    send_signal(row, signal.SIGCONT)


def living_processes() -> list[ProcessRow]:
    """Every process but this one, the first one and zombies."""
    return [row for row in process_table.list_processes() if not row.is_zombie and row.pid not in (1, os.getpid())]


def with_relatives(rows: Sequence[ProcessRow], pids: set[int], leader_pid: int = 0) -> list[ProcessRow]:
    """The rows of these processes, their descendants, and all that share a session with one of them.

    Descendants and session of `leader_pid` belong to them, the leader itself does not.
    """
    # Never the kernel's session, nor the one this process is in, whatever else has got into them.
    never = {0, os.getsid(0), os.getpgrp()}
    leader = {leader_pid} - {0}
    members = pids | leader
    while True:
        sessions = ({row.session for row in rows if row.pid in members} | leader) - never
        relatives = {row.pid for row in rows if row.parent in members or row.session in sessions}
        if relatives <= members:
            return [row for row in rows if row.pid in members - leader]
        members |= relatives


def new_marker() -> str:
    """A unique value for `OUTRIDER_CHILD`. Record it before the child starts."""
    return secrets.token_hex(16)


def check_marker(marker: str) -> None:
    """Raises Refused for a marker that is too short to tell processes apart."""
    if not _MARKER.fullmatch(marker):
        raise Refused(f"a marker of at least 16 letters and digits tells processes apart; {marker!r} does not")


async def terminate_marked(marker: str) -> int:
    """End every process with this marker, its descendants and sessions; return how many there were.

    For processes that a child left behind when this process was killed. They are gone when this returns. Raises
    Unavailable when one does not die, and Refused for an invalid marker. Without /proc it finds none.
    """
    return await ProcessTree(marker).terminate()


class ProcessTree:
    """Everything one child started, as far as it was seen. The child itself is not part of it."""

    def __init__(self, marker: str, leader_pid: int = 0) -> None:
        """`leader_pid`: the child, if it leads its session. It must not be reaped while this is in use."""
        check_marker(marker)
        self._variable = os.fsencode(f"{MARKER_VARIABLE}={marker}")
        self._leader_pid = leader_pid
        self._seen: set[tuple[int, int]] = set()

    def scan(self) -> list[ProcessRow]:
        """The members that are alive, oldest first. A process that was seen once stays a member."""
        rows = living_processes()
        members = {
            row.pid
            for row in rows
            if (row.pid, row.started) in self._seen or process_table.has_variable(row.pid, self._variable)
        }
        tree = with_relatives(rows, members, self._leader_pid)
        self._seen |= {(row.pid, row.started) for row in tree}
        return sorted(tree, key=lambda row: (row.started, row.pid))

    async def terminate(self) -> int:
        """End every member, with SIGTERM first; the number there were. Raises Unavailable when one does not die."""
        signalled: set[tuple[int, int]] = set()
        begin, pause = anyio.current_time(), _FIRST_PAUSE
        while remaining := await anyio.to_thread.run_sync(self.scan):
            is_grace = anyio.current_time() < begin + _SIGTERM_GRACE
            # Oldest first: a parent that sees its child die gets no time to start another, which could not be traced.
            for row in remaining:
                if is_grace and (row.pid, row.started) in signalled:
                    continue
                try:
                    end_process(row, signal.SIGTERM if is_grace else signal.SIGKILL)
                except Refused as error:
                    _log.warning("a process that a child started was not ended: %s", error)
            signalled |= {(row.pid, row.started) for row in remaining}
            if anyio.current_time() > begin + _SIGTERM_GRACE + _SIGKILL_TIMEOUT:
                pids = ", ".join(str(row.pid) for row in remaining[:5])
                raise Unavailable(f"processes that a child left behind do not die: {pids}", retry_after=5)
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE)
        return len(signalled)
