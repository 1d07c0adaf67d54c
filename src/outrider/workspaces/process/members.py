"""Which processes belong to a task, also those that left its group."""

import os
from pathlib import Path

from outrider.workspaces.process.folder import MARKER, record
from outrider.workspaces.process.identity import boot, is_alive, system
from outrider.workspaces.process.row import Row
from outrider.workspaces.process.spec import Mark


def members(folder: Path, mark: Mark) -> list[Row]:
    """The living processes of the command, the supervisor's own not among them."""
    return [row for row in everything(folder, mark) if row.session != mark.pid]


def everything(folder: Path, mark: Mark) -> list[Row]:
    """All of them, the supervisor with those it keeps beside the command included: these share its session.

    They are known by what they carry: the marker, the task's pipe, descent from the supervisor, a session with one.
    A number alone proves nothing: it may have been given to a stranger.
    """
    if mark.boot != boot():
        return []
    everyone = [row for row in system.rows() if not row.is_dead and row.pid not in (1, os.getpid())]
    variable = os.fsencode(f"{MARKER}={folder}")
    facts = record(folder)
    found = {
        row.pid
        for row in everyone
        if system.has_variable(row.pid, variable) or (facts.pipe and system.writes_to(row.pid, facts.pipe))
    }
    if is_alive(mark):
        found.add(mark.pid)
    if first := _first(facts.first, everyone):
        found.add(first.pid)
    return _with_kin(found, everyone)


def _first(line: bytes, everyone: list[Row]) -> Row | None:
    """The command's first process, if it still runs."""
    try:
        then = system.parse(line)
    except ValueError:
        return None
    return next((row for row in everyone if (row.pid, row.started) == (then.pid, then.started)), None)


def _with_kin(found: set[int], everyone: list[Row]) -> list[Row]:
    while True:
        # Never the session of the kernel's threads, nor the one we live in, whoever else has found a way into them.
        sessions = {row.session for row in everyone if row.pid in found} - {0, os.getsid(0)}
        kin = {row.pid for row in everyone if row.parent in found or row.session in sessions}
        if kin <= found:
            return [row for row in everyone if row.pid in found]
        found = found | kin
