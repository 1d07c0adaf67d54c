"""Which processes belong to a task, also those that left its group."""

import os
from pathlib import Path

from outrider.workspaces.process.folder import TASK_VARIABLE, read_record
from outrider.workspaces.process.identity import boot_id, is_alive, process_table
from outrider.workspaces.process.row import ProcessRow
from outrider.workspaces.process.spec import ProcessIdentity


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
    everyone = [row for row in process_table.list_processes() if not row.is_zombie and row.pid not in (1, os.getpid())]
    variable = os.fsencode(f"{TASK_VARIABLE}={folder}")
    facts = read_record(folder)
    found = {
        row.pid
        for row in everyone
        if process_table.has_variable(row.pid, variable)
        or (facts.pipe and process_table.writes_to(row.pid, facts.pipe))
    }
    if is_alive(mark):
        found.add(mark.pid)
    if first := _find_first(facts.first_process, everyone):
        found.add(first.pid)
    return _with_descendants(found, everyone)


def _find_first(line: bytes, everyone: list[ProcessRow]) -> ProcessRow | None:
    """The command's first process, if it still runs."""
    try:
        then = process_table.parse_process(line)
    except ValueError:
        return None
    return next((row for row in everyone if (row.pid, row.started) == (then.pid, then.started)), None)


def _with_descendants(found: set[int], everyone: list[ProcessRow]) -> list[ProcessRow]:
    while True:
        # Never the session of the kernel's threads, nor the one we live in, whoever else has found a way into them.
        sessions = {row.session for row in everyone if row.pid in found} - {0, os.getsid(0)}
        kin = {row.pid for row in everyone if row.parent in found or row.session in sessions}
        if kin <= found:
            return [row for row in everyone if row.pid in found]
        found = found | kin
