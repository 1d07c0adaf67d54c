"""The end of a task's command: waiting for it, and killing all its processes, including those that left its group."""

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


def all_processes(folder: Path, identity: ProcessIdentity) -> list[ProcessRow]:
    """The running processes of the command and of the supervisor, which has its own session.

    They are recognised by the task's variable, the task's pipe, descent from the supervisor, or a shared session. A pid
    alone proves nothing, since another process may have it by now.
    """
    if identity.boot != boot_id():
        return []
    rows = living_processes()
    variable = os.fsencode(f"{TASK_VARIABLE}={folder}")
    record = read_record(folder)
    members = {
        row.pid
        for row in rows
        if process_table.has_variable(row.pid, variable)
        or (record.pipe and process_table.writes_to(row.pid, record.pipe))
    }
    if is_alive(identity):
        members.add(identity.pid)
    if first := _find_first(record.first_process, rows):
        members.add(first.pid)
    return with_relatives(rows, members)


def _find_first(line: bytes, rows: list[ProcessRow]) -> ProcessRow | None:
    """The command's first process, if it still runs."""
    try:
        recorded = process_table.parse_process(line)
    except ValueError:
        return None
    return next((row for row in rows if (row.pid, row.started) == (recorded.pid, recorded.started)), None)


_KILL_PAUSE = 0.03
_MAX_KILL_PAUSE = 0.3
_KILL_TIMEOUT = 10.0


async def wait_for_exit(folder: Path, identity: ProcessIdentity) -> Exit:
    """Wait for its end, without polling where the kernel can notify us. Can be cancelled and repeated."""
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(identity.pid)
        except (OSError, ValueError):
            # It has ended, or no descriptor is free, or the kernel is older than 5.3: poll.
            return await _poll_until_exit(folder, identity)
        try:
            # Checked after it was opened, so that the descriptor is this process's and not a later one's.
            if is_alive(identity):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    return await _poll_until_exit(folder, identity)


async def kill(folder: Path, identity: ProcessIdentity, grace: float = 2.0) -> Exit:
    """End all its processes, also those that left its group: SIGTERM first, SIGKILL after `grace` seconds.

    They are gone when this returns, also those that a task which ended by itself left behind. Raises Unavailable when
    a process does not die, and Refused when one belongs to another user.
    """
    if poll_exit(folder, identity) is None:
        with suppress(FileExistsError):
            write_private(TaskFiles(folder).killed, b"")
    signalled: set[tuple[int, int]] = set()
    begin, pause = time.monotonic(), _KILL_PAUSE
    while True:
        number = signal.SIGTERM if time.monotonic() < begin + grace else signal.SIGKILL
        remaining = await anyio.to_thread.run_sync(_signal_remaining, folder, identity, number, signalled)
        end = poll_exit(folder, identity)
        if end and not remaining:
            return end
        if not remaining and time.monotonic() > begin + grace + _KILL_TIMEOUT / 2:
            # The command is gone and its supervisor is not, e.g. because it was stopped with SIGSTOP.
            await anyio.to_thread.run_sync(_kill_everything, folder, identity)
        if time.monotonic() > begin + grace + _KILL_TIMEOUT:
            pids = ", ".join(f"process {row.pid}" for row in remaining[:5]) or "its supervisor"
            raise Unavailable(f"task {folder.name} could not be killed: {pids}", retry_after=5)
        # Reading the process table is expensive when many tasks are killed at once.
        pause = min(pause * 1.5, _MAX_KILL_PAUSE)
        with anyio.move_on_after(pause):
            await (anyio.sleep_forever() if end else wait_for_exit(folder, identity))


def first_pid(folder: Path) -> int | None:
    """The pid of the command's first process, as its supervisor recorded it; None before that."""
    pid = read_record(folder).first_process.partition(b" ")[0]
    return int(pid) if pid.isdigit() else None


def interrupt(folder: Path, identity: ProcessIdentity) -> None:
    """Send SIGINT, like Ctrl-C. Raises Refused when there is no running command."""
    leader = first_pid(folder)
    # A process in the session of the supervisor is not the command's.
    rows = [row for row in all_processes(folder, identity) if row.session != identity.pid]
    targets = [row for row in rows if row.group == leader]
    if not targets:
        raise Refused(f"task {folder.name} has no running command to interrupt")
    for row in targets:
        send_signal(row, signal.SIGINT)


def remove_folder(folder: Path) -> None:
    """Remove the folder of a task that has ended. Raises Refused while it runs."""
    if folder.exists() and poll_exit(folder, None) is None:
        raise Refused(f"task {folder.name} is still running; kill it first")
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


async def _poll_until_exit(folder: Path, identity: ProcessIdentity) -> Exit:
    pause = 0.01
    while (end := poll_exit(folder, identity)) is None:
        await anyio.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    return end


def _signal_remaining(
    folder: Path, identity: ProcessIdentity, number: int, signalled: set[tuple[int, int]]
) -> list[ProcessRow]:
    """Signal every remaining process, with SIGTERM only once; return them."""
    has_ended = poll_exit(folder, identity) is not None
    # Spare the supervisor as long as it may still record how the command ended.
    remaining = [row for row in all_processes(folder, identity) if has_ended or row.session != identity.pid]
    for row in remaining:
        if number == signal.SIGKILL or (row.pid, row.started) not in signalled:
            end_process(row, number)
    signalled.update((row.pid, row.started) for row in remaining)
    return remaining


def _kill_everything(folder: Path, identity: ProcessIdentity) -> None:
    for row in all_processes(folder, identity):
        send_signal(row, signal.SIGKILL)
