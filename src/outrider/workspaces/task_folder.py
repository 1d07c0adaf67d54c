"""The folder of a task: its record, output, stdin and exit status.

The folder is all that is needed to follow a task, from any process. Output is read in parts, and writing to stdin never
waits for the command to read.
"""

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from threading import Event
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.tasks import ProcessIdentity
from outrider.system.processes import UNKNOWN_PROCESS, boot_id, is_alive, process_table


def recorded_supervisor(folder: Path) -> ProcessIdentity | None:
    """The supervisor as it recorded itself; None before it did."""
    files = TaskFiles(folder)
    if not files.started.is_file():
        return None
    record = read_record(folder)
    try:
        row = process_table.parse_process(record.supervisor)
    except ValueError:
        return UNKNOWN_PROCESS
    if process_table.starts_by_clock and row.started > files.started.stat().st_mtime + 1:
        return UNKNOWN_PROCESS
    return ProcessIdentity(row.pid, row.started, record.boot or boot_id())


ExitReason = Literal["exit", "signal", "output", "killed", "lost"]


class CommandSpec(Struct, frozen=True):
    """A complete command. It inherits nothing from the process that starts it except the umask."""

    argv: tuple[str, ...]
    folder: Path
    """The folder of this task, created at its start and never used for another."""
    cwd: Path
    environ: Mapping[str, str]
    """The complete environment; OUTRIDER_TASK is added. Names that no shell accepts are dropped."""
    stdin: Literal["closed", "open"] | bytes = "closed"
    max_output: int = 10 * 1024 * 1024
    """The most bytes of output, rounded to 512. A command that writes more is killed."""
    rlimits: Mapping[str, int] = {}
    """Resource limits by the names of `LIMITS`, sizes in bytes."""
    descriptors: tuple[int, ...] = ()
    """Open descriptors that the command inherits, with numbers above 9, which no shell uses for itself."""


class Exit(Struct, frozen=True):
    """How a task ended."""

    code: int | None
    """The status as a shell reports it, 128 + n for signal n; None when unknown."""
    reason: ExitReason
    """`output`: it wrote more than the limit, or the disk was full. `killed`: by `kill`.
    `lost`: the supervisor was killed, or the machine went down."""
    signal: int = 0
    at: int = 0
    """Milliseconds since 1970; for `lost`, when that was noticed."""


TASK_VARIABLE = "OUTRIDER_TASK"
"""The environment variable that marks the processes of a task. Its value is the folder."""


class TaskFiles:
    """The files of a task. There are few, since creating them is most of the cost of starting a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.record = folder / "record"
        """Facts about the task, one on each line. It has content from the start, and so a disk block: on a full disk,
        the exit status can still be recorded."""
        self.started = folder / "started"
        """A file created by the supervisor: the command runs, and the shell's message about its death is in here.
        A folder created by `adopt`: the command will never run."""
        self.full = folder / "full"
        """Exists when there was more output than the limit."""
        self.killed = folder / "killed"
        """Exists when a kill began, from before the first signal."""
        self.stdin = folder / "stdin"
        self.hold = folder / "hold"
        """Opening this for writing ends the process that keeps `stdin` open."""
        self.stdin_text = folder / "given"
        """Text for stdin, until the command is started."""


class TaskRecord(Struct, frozen=True):
    """The facts in a task's record; empty where not recorded yet."""

    pipe: str = ""
    """The name of the pipe from the command to the copier."""
    supervisor: bytes = b""
    """Its line of the process table. This and `boot` are complete before `started` exists."""
    boot: str = ""
    first_process: bytes = b""
    """The line of the command's first process."""
    exit: str = ""
    """The exit status, and `silent` if the shell prints no message when a signal ends a command."""


def read_record(folder: Path) -> TaskRecord:
    """Read a task's record. An incomplete line is ignored."""
    lines = (line.partition(b" ") for line in read_or_empty(TaskFiles(folder).record).split(b"\n")[:-1])
    facts = {name: fact for name, _, fact in lines}
    return TaskRecord(
        pipe=_decode_fact(facts.get(b"pipe")),
        supervisor=facts.get(b"supervisor", b""),
        boot=_decode_fact(facts.get(b"boot")),
        first_process=facts.get(b"first", b""),
        exit=_decode_fact(facts.get(b"exit")),
    )


def read_or_empty(path: Path) -> bytes:
    """The content of a small file; empty when it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _decode_fact(fact: bytes | None) -> str:
    return (fact or b"").decode("ascii", "replace").strip()


def read_output(folder: Path, start: int, max_bytes: int) -> bytes:
    """A part of the output; empty at its end."""
    if not _stat_output(folder):
        return b""
    parts: list[bytes] = []
    with open(TaskFiles(folder).output, "rb", buffering=0) as file:
        while max_bytes > 0 and (part := os.pread(file.fileno(), max_bytes, start)):
            parts.append(part)
            start, max_bytes = start + len(part), max_bytes - len(part)
    return b"".join(parts)


def output_size(folder: Path) -> int:
    status = _stat_output(folder)
    return status.st_size if status else 0


def last_output_time(folder: Path) -> float:
    """When it last wrote output, in seconds since 1970; when it was started, if it wrote none."""
    return (_stat_output(folder) or os.stat(folder)).st_mtime


def last_input_time(folder: Path) -> float:
    """When something was last written to its stdin, or when that was opened; infinity when it is closed.

    Output that was written in response is never older.
    """
    try:
        return os.stat(TaskFiles(folder).stdin).st_mtime
    except FileNotFoundError:
        return inf


def _stat_output(folder: Path) -> os.stat_result | None:
    """None before the supervisor has created the file."""
    try:
        return os.stat(TaskFiles(folder).output)
    except FileNotFoundError:
        if not folder.exists():
            raise Refused(f"the output of task {folder.name} has been removed") from None
        return None


MAX_WRITE = 64 * 1024
_ATOMIC = 4096
"""Bytes that a pipe takes whole or not at all on Linux and macOS; the standard promises 512."""
_PIPE_SIZE = 1024 * 1024
_CLOCK_TICK = 10_000_000
"""Nanoseconds by which the times of files may be behind the clock."""
_OPEN_ATTEMPTS = 400
_OPEN_PAUSE = 0.005


def write_stdin(folder: Path, content: bytes) -> None:
    """Write to stdin. Raises Refused when the command does not read, or has not read what was written before."""
    if len(content) > MAX_WRITE:
        raise Refused(f"{len(content):,} bytes are too many at once; the limit is {MAX_WRITE:,}; use a file for more")
    descriptor = _open_pipe(folder, TaskFiles(folder).stdin)
    try:
        _enlarge_pipe(descriptor)
        for start in range(0, len(content), _ATOMIC):
            try:
                before = time.time_ns() - _CLOCK_TICK
                os.write(descriptor, content[start : start + _ATOMIC])
                # The kernel sets the time after the command may have answered, and some file systems not at all.
                os.utime(descriptor, ns=(before, before))
            except BlockingIOError:
                part = f"only the first {start:,} bytes of this were" if start else "nothing of this was"
                raise Refused(f"the command has not read what was written before; {part} written") from None
            except BrokenPipeError:
                raise Refused(f"the command of task {folder.name} no longer reads its stdin") from None
    finally:
        os.close(descriptor)


def close_stdin(folder: Path) -> None:
    """Close stdin, if it is open."""
    files = TaskFiles(folder)
    if not files.hold.exists():
        return
    # The process that keeps `stdin` open waits for this file to be opened.
    with suppress(Refused):
        os.close(_open_pipe(folder, files.hold))
    files.stdin.unlink(missing_ok=True)
    files.hold.unlink(missing_ok=True)


def _open_pipe(folder: Path, path: Path) -> int:
    """Open a named pipe for writing. A supervisor that has just started needs a moment to open the other end."""
    for _ in range(_OPEN_ATTEMPTS):
        is_running = bool(read_record(folder).first_process)
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise Refused(f"the stdin of task {folder.name} is closed") from None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if (is_running and path.name == "stdin") or poll_exit(folder, None):
            break
        Event().wait(_OPEN_PAUSE)
    raise Refused(f"the command of task {folder.name} no longer reads its stdin")


def _enlarge_pipe(descriptor: int) -> None:
    if sys.platform == "linux":
        # Optional: an unprivileged user may have reached the limit for pipes.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


_SIGNALS = {int(number) for number in signal.Signals}
_CONVENTIONAL_SIGNALS = {int(number) for number in (signal.SIGINT, signal.SIGKILL, signal.SIGPIPE, signal.SIGTERM)}
"""Signals whose statuses are never used as plain statuses. For others, e.g. 129, the shell's message about the death
decides, in shells that print one."""


def poll_exit(folder: Path, identity: ProcessIdentity | None) -> Exit | None:
    """How it ended; None while its supervisor runs. Without an identity, the one in the record is used.

    A supervisor that has left no record may still start: see `adopt`.
    """
    identity = identity or recorded_supervisor(folder)
    if identity is None:
        return _read_exit(folder) if TaskFiles(folder).started.is_dir() or not folder.exists() else None
    # In this order: once the supervisor is gone, the files are final.
    return None if is_alive(identity) else _read_exit(folder)


def _read_exit(folder: Path) -> Exit:
    """How it ended, by the files, when its supervisor is gone."""
    files = TaskFiles(folder)
    status, _, how = read_record(folder).exit.partition(" ")
    killed = _modified_ns(files.killed)
    if not status.isdecimal():
        # The supervisor itself was killed, or the machine went down.
        return Exit(None, "killed" if killed else "lost", at=time.time_ns() // 1_000_000)
    code, at = int(status), _modified_ns(files.record)
    is_signal = how == "silent" or code - 128 in _CONVENTIONAL_SIGNALS or bool(read_or_empty(files.started))
    number = code - 128 if code - 128 in _SIGNALS and is_signal else 0
    reason: ExitReason = "signal" if number else "exit"
    if killed and killed <= at:
        reason = "killed"
    if files.full.exists():
        reason = "output"
    return Exit(code, reason, number, at // 1_000_000)


def _modified_ns(path: Path) -> int:
    """Modification time in nanoseconds since 1970; 0 when the file does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
