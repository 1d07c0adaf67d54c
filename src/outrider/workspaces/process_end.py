"""Which processes belong to a task, also those that left its group.

Seeing a task end, and ending it.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import ProcessIdentity
from outrider.system.files import write_private
from outrider.system.processes import (
    ProcessRow,
    boot_id,
    end_process,
    is_alive,
    living_processes,
    process_table,
    send_signal,
    with_relatives,
)
from outrider.workspaces.task_folder import TASK_VARIABLE, Exit, TaskFiles, poll_exit, read_record


def command_processes(folder: Path, mark: ProcessIdentity) -> list[ProcessRow]:
    """The living processes of the command, the supervisor's own not among them."""
    return [row for row in all_processes(folder, mark) if row.session != mark.pid]


def all_processes(folder: Path, mark: ProcessIdentity) -> list[ProcessRow]:
    """All of them, the supervisor with those it keeps beside the command included: these share its session.

    They are known by what they carry: the marker, the task's pipe, descent from the supervisor, a session with one.
    A number alone proves nothing: it may have been given to a stranger.
    """
    if mark.boot != boot_id():
        return []
    rows = living_processes()
    variable = os.fsencode(f"{TASK_VARIABLE}={folder}")
    facts = read_record(folder)
    found = {
        row.pid
        for row in rows
        if process_table.has_variable(row.pid, variable)
        or (facts.pipe and process_table.writes_to(row.pid, facts.pipe))
    }
    if is_alive(mark):
        found.add(mark.pid)
    if first := _find_first(facts.first_process, rows):
        found.add(first.pid)
    return with_relatives(rows, found)


def _find_first(line: bytes, rows: list[ProcessRow]) -> ProcessRow | None:
    """The command's first process, if it still runs."""
    try:
        then = process_table.parse_process(line)
    except ValueError:
        return None
    return next((row for row in rows if (row.pid, row.started) == (then.pid, then.started)), None)


_KILL_PAUSE = 0.03
_MAX_KILL_PAUSE = 0.3
_KILL_TIMEOUT = 10.0


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
            write_private(TaskFiles(folder).killed, b"")
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
            end_process(row, number)
    asked.update((row.pid, row.started) for row in rest)
    return rest


def _kill_everything(folder: Path, mark: ProcessIdentity) -> None:
    for row in all_processes(folder, mark):
        send_signal(row, signal.SIGKILL)


def _process_numbers(rows: list[ProcessRow]) -> str:
    return ", ".join(f"process {row.pid}" for row in rows[:5])
