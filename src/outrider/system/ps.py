"""Processes as `ps` shows them, for systems without /proc. Slower, and blind to variables and pipes."""

import subprocess
import time
from collections.abc import Iterator

from outrider.system.proc import ProcessRow

_COLUMNS = "pid=,ppid=,pgid=,stat=,lstart="


def boot_id() -> str:
    """Which run of this machine this is."""
    return _run_program("sysctl", "-n", "kern.bootsessionuuid").strip()


def find_process(pid: int) -> ProcessRow | None:
    return next(_parse_table(_run_program("ps", "-o", _COLUMNS, "-p", str(pid))), None)


def list_processes() -> Iterator[ProcessRow]:
    return _parse_table(_run_program("ps", "-A", "-o", _COLUMNS))


def parse_process(line: bytes) -> ProcessRow:
    """What the supervisor wrote of itself: its number. Raises ValueError when that is no process now."""
    found = find_process(int(line))
    if found is None:
        raise ValueError("no such process")
    return found


def has_variable(pid: int, variable: bytes) -> bool:
    del pid, variable
    return False


def writes_to(pid: int, pipe: str) -> bool:
    del pid, pipe
    return False


def _run_program(*argv: str) -> str:
    path = "/usr/bin:/bin:/usr/sbin:/sbin"
    try:
        return subprocess.run(
            argv,
            env={"PATH": path, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout
    except FileNotFoundError:
        return ""


def _parse_table(table: str) -> Iterator[ProcessRow]:
    for line in table.splitlines():
        pid, parent, group, state, *day = line.split()
        yield ProcessRow(
            pid=int(pid),
            parent=int(parent),
            # Sessions are not told everywhere; a group is the next best thing, and every command leads one.
            session=int(group),
            group=int(group),
            started=int(time.mktime(time.strptime(" ".join(day), "%a %b %d %H:%M:%S %Y"))),
            is_zombie=state.startswith("Z"),
        )
