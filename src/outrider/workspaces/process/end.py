"""Seeing a task end, and ending it."""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.process.folder import TaskFiles, read_or_empty, read_record
from outrider.workspaces.process.identity import is_alive, recorded_supervisor, send_signal
from outrider.workspaces.process.members import all_processes, command_processes
from outrider.workspaces.process.row import ProcessRow
from outrider.workspaces.process.spec import Exit, ExitReason, ProcessIdentity

_SIGNALS = {int(number) for number in signal.Signals}
_CONVENTIONAL_SIGNALS = {int(number) for number in (signal.SIGINT, signal.SIGKILL, signal.SIGPIPE, signal.SIGTERM)}
"""Whose statuses mean a signal wherever they are seen. Others, say 129, are also in use as plain statuses: for those
the shell's remark on the death decides, in shells that make one."""
_KILL_PAUSE = 0.03
_MAX_KILL_PAUSE = 0.3
_KILL_TIMEOUT = 10.0


def poll_exit(folder: Path, mark: ProcessIdentity | None) -> Exit | None:
    """How it ended; None while its supervisor runs. Without a mark the supervisor's own record is believed.

    A supervisor that has not come as far as to leave a record may still come: see `adopt`.
    """
    mark = mark or recorded_supervisor(folder)
    if mark is None:
        return _read_exit(folder) if TaskFiles(folder).started.is_dir() or not folder.exists() else None
    # In this order: what stands in the folder when the supervisor is gone is final.
    return None if is_alive(mark) else _read_exit(folder)


async def wait_for_exit(folder: Path, mark: ProcessIdentity) -> Exit:
    """Wait for its end. Costs a file descriptor and nothing else; may be cancelled, and asked several times."""
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(mark.pid)
        except (OSError, ValueError):
            # Gone, or no descriptor left, or a kernel of before 5.3: the slow way finds out.
            return await _poll_until_exit(folder, mark)
        try:
            # Asked after it was opened, so that the descriptor is of this process and not of a later one.
            if is_alive(mark):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    return await _poll_until_exit(folder, mark)


async def kill(folder: Path, mark: ProcessIdentity, grace: float = 2.0) -> Exit:
    """End all its processes, also those that left its group: asked first, made to after `grace` seconds.

    They are gone when it returns. What a task that had ended by itself left behind is ended too. Raises Unavailable
    when the system does not let go of a process, and Refused when one belongs to somebody else.
    """
    if poll_exit(folder, mark) is None:
        with suppress(FileExistsError):
            os.close(os.open(TaskFiles(folder).killed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    asked: set[tuple[int, int]] = set()
    begun, pause = time.monotonic(), _KILL_PAUSE
    while True:
        number = signal.SIGTERM if time.monotonic() < begun + grace else signal.SIGKILL
        rest = await anyio.to_thread.run_sync(_signal_remaining, folder, mark, number, asked)
        end = poll_exit(folder, mark)
        if end and not rest:
            return end
        if not rest and time.monotonic() > begun + grace + _KILL_TIMEOUT / 2:
            # Nothing is left for it to supervise, and yet it stays, say because somebody stopped it.
            await anyio.to_thread.run_sync(_kill_everything, folder, mark)
        if time.monotonic() > begun + grace + _KILL_TIMEOUT:
            raise Unavailable(
                f"task {folder.name} does not die: {_process_numbers(rest) or 'its supervisor'}", retry_after=5
            )
        # Looking through all processes is dear when many tasks are killed at once.
        pause = min(pause * 1.5, _MAX_KILL_PAUSE)
        with anyio.move_on_after(pause):
            await (anyio.sleep_forever() if end else wait_for_exit(folder, mark))


def first_pid(folder: Path) -> int | None:
    """The pid of the command's first process, as its supervisor wrote it down; None before that."""
    pid = read_record(folder).first_process.partition(b" ")[0]
    return int(pid) if pid.isdigit() else None


def interrupt(folder: Path, mark: ProcessIdentity) -> None:
    """What Ctrl-C does. Raises Refused when there is nothing to interrupt."""
    leader = first_pid(folder)
    reached = [row for row in command_processes(folder, mark) if row.group == leader]
    if not reached:
        raise Refused(f"task {folder.name} has no running command to interrupt")
    for row in reached:
        send_signal(row, signal.SIGINT)


def remove_folder(folder: Path) -> None:
    """Forget a task that is over. Raises Refused while it runs."""
    if folder.exists() and poll_exit(folder, None) is None:
        raise Refused(f"task {folder.name} is still running; end it first")
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


async def _poll_until_exit(folder: Path, mark: ProcessIdentity) -> Exit:
    pause = 0.01
    while (end := poll_exit(folder, mark)) is None:
        await anyio.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    return end


def _signal_remaining(
    folder: Path, mark: ProcessIdentity, number: int, asked: set[tuple[int, int]]
) -> list[ProcessRow]:
    """Signal all that are left, asking each only once; those that were there."""
    is_over = poll_exit(folder, mark) is not None
    # The supervisor is left alone as long as it may still write down how the command ended.
    rest = [row for row in all_processes(folder, mark) if is_over or row.session != mark.pid]
    for row in rest:
        if number == signal.SIGKILL or (row.pid, row.started) not in asked:
            send_signal(row, number)
            # One that is stopped would never notice.
            send_signal(row, signal.SIGCONT)
    asked.update((row.pid, row.started) for row in rest)
    return rest


def _kill_everything(folder: Path, mark: ProcessIdentity) -> None:
    for row in all_processes(folder, mark):
        send_signal(row, signal.SIGKILL)


def _process_numbers(rows: list[ProcessRow]) -> str:
    return ", ".join(f"process {row.pid}" for row in rows[:5])


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
