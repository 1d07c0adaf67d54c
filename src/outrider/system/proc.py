"""One process among all, as far as it matters here.

Processes as /proc shows them.
"""

import os
from collections.abc import Iterator

from msgspec import Struct


class ProcessRow(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    group: int
    started: int
    is_zombie: bool
    """A zombie: it does nothing any more."""


STAT = "/proc/self/stat"
_GONE = (FileNotFoundError, ProcessLookupError)


def boot_id() -> str:
    """Which run of this machine this is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def find_process(pid: int) -> ProcessRow | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_process(file.read())
    except _GONE:
        return None


def list_processes() -> Iterator[ProcessRow]:
    """Every process that can be seen."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (found := find_process(int(name))):
            yield found


def parse_process(line: bytes) -> ProcessRow:
    """A line of /proc/*/stat. Raises ValueError when it is not one."""
    pid, _, rest = line.partition(b" (")
    # The name may hold anything, also parentheses and newlines: the last one closes it.
    fields = rest.rpartition(b") ")[2].split()
    if len(fields) < 20:
        raise ValueError("not a line of stat")
    return ProcessRow(
        pid=int(pid),
        parent=int(fields[1]),
        session=int(fields[3]),
        group=int(fields[2]),
        started=int(fields[19]),
        is_zombie=fields[0] in (b"Z", b"X", b"x"),
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
    return any(_read_link(f"/proc/{pid}/fd/{number}") == pipe for number in (1, 2))


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except (*_GONE, PermissionError):
        return ""


class ProcessIdentity(Struct, frozen=True):
    """The supervisor of one task, never mistaken for another process that got its number later."""

    pid: int
    started: int
    """As the system counts it: ticks since boot where there is /proc, seconds of the clock elsewhere."""
    boot: str
