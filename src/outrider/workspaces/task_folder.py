"""What is to be run, who runs it, and how it ended.

The files in a task's folder. Whoever holds the folder can take the task up.

What a command has said so far: read from its file, never held whole.

Writing to a command that waits for words. Works from any process, and never waits for the command to read.
"""

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.tasks import ProcessIdentity
from outrider.system.processes import UNKNOWN_PROCESS, boot_id, is_alive, process_table


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
    if process_table.starts_by_clock and row.started > files.started.stat().st_mtime + 1:
        return UNKNOWN_PROCESS
    return ProcessIdentity(row.pid, row.started, facts.boot or boot_id())


ExitReason = Literal["exit", "signal", "output", "killed", "lost"]


class CommandSpec(Struct, frozen=True):
    """A command, complete: nothing is taken from the process that starts it but its umask."""

    argv: tuple[str, ...]
    folder: Path
    """Of this task alone; made by `start`, and never used for a second task."""
    cwd: Path
    environ: Mapping[str, str]
    """All of it, besides OUTRIDER_TASK, which names the folder. Names that no shell accepts are dropped."""
    stdin: Literal["closed", "open"] | bytes = "closed"
    max_output: int = 10 * 1024 * 1024
    """Most bytes of output that are kept, in steps of 512; a command that says more is ended."""
    rlimits: Mapping[str, int] = {}
    """Of the command, by the names of `LIMITS`; sizes in bytes."""


class Exit(Struct, frozen=True):
    """How a task ended."""

    code: int | None
    """As a shell would say it, so 128 + n for signal n; None when nobody can know."""
    reason: ExitReason
    """`output`: there was more of it than may be kept, or the disk took no more.
    `killed`: by `kill`. `lost`: the supervisor was killed, or the machine went down."""
    signal: int = 0
    at: int = 0
    """Milliseconds of the clock; when it was noticed, if `lost`."""


TASK_VARIABLE = "OUTRIDER_TASK"
"""The variable by which the processes of a task are found; its value is the folder."""


class TaskFiles:
    """By what they tell. Few, since to make one is most of what it costs to start a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.record = folder / "record"
        """What is known of the task, a line for each fact. It has content from the start, and so a block of the disk:
        a full one cannot hide how a command ended."""
        self.started = folder / "started"
        """A file: taken by the supervisor, the command runs; it holds what the shell remarked on the command's death.
        A folder: taken by `adopt`, it never will."""
        self.full = folder / "full"
        """There was more output than could be kept."""
        self.killed = folder / "killed"
        """Someone set out to kill it; written before the first signal."""
        self.stdin = folder / "stdin"
        self.hold = folder / "hold"
        """Whoever opens this to write ends the process that holds `stdin` open."""
        self.stdin_text = folder / "given"
        """Text for stdin, until the command has it."""


class TaskRecord(Struct, frozen=True):
    """The lines of a task's record, as far as they were written."""

    pipe: str = ""
    """The name of the pipe that takes the output to the copier."""
    supervisor: bytes = b""
    """As the system describes it. This and `boot` are complete before there is `started`."""
    boot: str = ""
    first_process: bytes = b""
    """The command's first process, as the system describes it."""
    exit: str = ""
    """Its status, and `silent` if the shell does not remark on deaths."""


def read_record(folder: Path) -> TaskRecord:
    """Half a line counts as none."""
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
    """Of a small file; empty when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _decode_fact(fact: bytes | None) -> str:
    return (fact or b"").decode("ascii", "replace").strip()


def tail_output(folder: Path, most: int = 4000) -> bytes:
    """The last bytes."""
    return _read_range(folder, max(0, output_size(folder) - most), most)


def read_output(folder: Path, start: int, most: int) -> bytes:
    """At most so many bytes from there on; empty at the end."""
    return _read_range(folder, start, most)


def output_size(folder: Path) -> int:
    found = _stat_output(folder)
    return found.st_size if found else 0


def last_output_time(folder: Path) -> float:
    """When it last said something, in seconds of the clock; when it was started, if it has said nothing."""
    return (_stat_output(folder) or os.stat(folder)).st_mtime


def _read_range(folder: Path, start: int, most: int) -> bytes:
    if not _stat_output(folder):
        return b""
    parts: list[bytes] = []
    with open(TaskFiles(folder).output, "rb", buffering=0) as file:
        while most > 0 and (part := os.pread(file.fileno(), most, start)):
            parts.append(part)
            start, most = start + len(part), most - len(part)
    return b"".join(parts)


def _stat_output(folder: Path) -> os.stat_result | None:
    """None when the supervisor has not come so far."""
    try:
        return os.stat(TaskFiles(folder).output)
    except FileNotFoundError:
        if not folder.exists():
            raise Refused(f"the output of task {folder.name} is no longer kept") from None
        return None


MAX_WRITE = 64 * 1024
_ATOMIC = 4096
"""What a pipe takes whole or not at all on every system we know; the standard promises 512."""
_PIPE_SIZE = 1024 * 1024
_OPEN_ATTEMPTS = 400
_OPEN_PAUSE = 0.005


def write_stdin(folder: Path, content: bytes) -> None:
    """Hand it over. Raises Refused when nobody reads, and when what was written before still waits to be read."""
    if len(content) > MAX_WRITE:
        raise Refused(f"{len(content):,} bytes are too many at once; {MAX_WRITE:,} are the limit, or use a file")
    descriptor = _open_pipe(folder, TaskFiles(folder).stdin)
    try:
        _enlarge_pipe(descriptor)
        for start in range(0, len(content), _ATOMIC):
            try:
                os.write(descriptor, content[start : start + _ATOMIC])
            except BlockingIOError:
                raise Refused(_pipe_full_message(start)) from None
            except BrokenPipeError:
                raise Refused(f"the command of task {folder.name} does not read its input any more") from None
    finally:
        os.close(descriptor)


def close_stdin(folder: Path) -> None:
    """Let the command see the end of its input. Where that is closed already, nothing happens."""
    files = TaskFiles(folder)
    if not files.hold.exists():
        return
    # To open it is the message: the holder of `stdin` waits for nothing else.
    with suppress(Refused):
        os.close(_open_pipe(folder, files.hold))
    files.stdin.unlink(missing_ok=True)
    files.hold.unlink(missing_ok=True)


def _open_pipe(folder: Path, path: Path) -> int:
    """A named pipe, once its reader is there: a supervisor needs a moment to come so far."""
    for _ in range(_OPEN_ATTEMPTS):
        is_running = bool(read_record(folder).first_process)
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise Refused(f"the input of task {folder.name} is closed; nothing can be written to it") from None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if (is_running and path.name == "stdin") or poll_exit(folder, None):
            break
        Event().wait(_OPEN_PAUSE)
    raise Refused(f"the command of task {folder.name} does not read its input any more")


def _enlarge_pipe(descriptor: int) -> None:
    if sys.platform == "linux":
        # Nice to have; an unprivileged process may have used up its share.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _pipe_full_message(taken: int) -> str:
    fate = f"the first {taken:,} bytes were taken, the rest was not" if taken else "nothing of this was taken"
    return f"the command has not read what was written before; {fate}"


_SIGNALS = {int(number) for number in signal.Signals}
_CONVENTIONAL_SIGNALS = {int(number) for number in (signal.SIGINT, signal.SIGKILL, signal.SIGPIPE, signal.SIGTERM)}
"""Whose statuses mean a signal wherever they are seen. Others, say 129, are also in use as plain statuses: for those
the shell's remark on the death decides, in shells that make one."""


def poll_exit(folder: Path, mark: ProcessIdentity | None) -> Exit | None:
    """How it ended; None while its supervisor runs. Without a mark the supervisor's own record is believed.

    A supervisor that has not come as far as to leave a record may still come: see `adopt`.
    """
    mark = mark or recorded_supervisor(folder)
    if mark is None:
        return _read_exit(folder) if TaskFiles(folder).started.is_dir() or not folder.exists() else None
    # In this order: what stands in the folder when the supervisor is gone is final.
    return None if is_alive(mark) else _read_exit(folder)


def _read_exit(folder: Path) -> Exit:
    """What the folder says, its supervisor being gone."""
    files = TaskFiles(folder)
    status, _, how = read_record(folder).exit.partition(" ")
    killed = _modified_ns(files.killed)
    if not status.isdecimal():
        # Cut off before it could write: killed itself, or the machine went down.
        return Exit(None, "killed" if killed else "lost", at=time.time_ns() // 1_000_000)
    code, at = int(status), _modified_ns(files.record)
    is_told = how == "silent" or code - 128 in _CONVENTIONAL_SIGNALS or bool(read_or_empty(files.started))
    number = code - 128 if code - 128 in _SIGNALS and is_told else 0
    reason: ExitReason = "signal" if number else "exit"
    if killed and killed <= at:
        reason = "killed"
    if files.full.exists():
        reason = "output"
    return Exit(code, reason, number, at // 1_000_000)


def _modified_ns(path: Path) -> int:
    """Nanoseconds of the clock; 0 when there is no such file."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
