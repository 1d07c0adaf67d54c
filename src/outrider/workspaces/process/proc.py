"""Processes as /proc shows them."""

import os
from collections.abc import Iterator

from outrider.workspaces.process.row import Row

STAT = "/proc/self/stat"
_GONE = (FileNotFoundError, ProcessLookupError)


def boot() -> str:
    """Which run of this machine this is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def row(pid: int) -> Row | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse(file.read())
    except _GONE:
        return None


def rows() -> Iterator[Row]:
    """Every process that can be seen."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (found := row(int(name))):
            yield found


def parse(line: bytes) -> Row:
    """A line of /proc/*/stat. Raises ValueError when it is not one."""
    pid, _, rest = line.partition(b" (")
    # The name may hold anything, also parentheses and newlines: the last one closes it.
    fields = rest.rpartition(b") ")[2].split()
    if len(fields) < 20:
        raise ValueError("not a line of stat")
    return Row(
        pid=int(pid),
        parent=int(fields[1]),
        session=int(fields[3]),
        group=int(fields[2]),
        started=int(fields[19]),
        is_dead=fields[0] in (b"Z", b"X", b"x"),
    )


def has_variable(pid: int, variable: bytes) -> bool:
    """Whether it was started with this `NAME=value`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + variable + b"\0" in b"\0" + file.read()
    except (*_GONE, PermissionError):
        return False


def writes_to(pid: int, pipe: str) -> bool:
    """Whether its output or its errors go into this pipe."""
    return any(_link(f"/proc/{pid}/fd/{number}") == pipe for number in (1, 2))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except (*_GONE, PermissionError):
        return ""
