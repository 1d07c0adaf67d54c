"""The processor time and disk space that running commands use, measured only as often as a limit could be reached.

A command cannot use more processor time in a second than there are processors, so one that has used little is not
measured for a long time. While it is quiet, all that is checked is the free space of the disk.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from outrider.core.errors import Unavailable
from outrider.core.text import duration, size
from outrider.system.processes import process_table

_MIN_SECONDS = 1.0
_MAX_SECONDS = 30.0
"""Seconds between two checks of the disk."""
_FASTEST_DISK = 4 << 30
"""Bytes that a command may write in a second, at most."""
_RESERVE_SHARE = 0.1
"""The largest share of a disk that is kept free."""
_MIN_WRITTEN = 1 << 20
"""A command that has written less is not the reason why a disk is full."""
_TICKS = os.sysconf("SC_CLK_TCK")


class UsageLimits(Struct, frozen=True):
    """What the running commands may use."""

    cpu: int
    """Seconds of processor time of one command, all its processes together."""
    reserve: int
    """Bytes that stay free on the disk of a workspace, but at most a tenth of the disk."""


class RunningCommand(Struct, frozen=True):
    """A command to check."""

    id: str
    workspace: str
    first_pid: Callable[[], int | None]
    """Its first process, whose descendants are all it consists of; None before it has one. Called when it is due."""
    group_cpu: Callable[[], float | None] = lambda: None
    """Seconds of processor time as its control group counts them; None without one."""


class CommandUsage(Struct, frozen=True):
    """What a command has used so far."""

    cpu: float
    written: int
    """Bytes written to disk."""


def require_free_space(folder: int, reserve: int) -> None:
    """Raises Unavailable when the disk of this open folder has less free space than is to be kept."""
    free, kept = _free_space(os.fstatvfs(folder), reserve)
    if free < kept:
        raise Unavailable(
            f"the disk of the workspace has {size(free)} left, and sandbox.reserve keeps {size(kept)} free; "
            "delete something first"
        )


class UsageMonitor:
    """Finds the commands that use more than they may. Not thread-safe: one check at a time."""

    def __init__(self, limits: UsageLimits, processors: int | None = None) -> None:
        self._limits = limits
        self._processors = processors or os.cpu_count() or 1
        self._due: dict[str, float] = {}
        """When the processor time of a command is measured next, by the monotonic clock."""

    def check(self, commands: Sequence[RunningCommand]) -> tuple[Mapping[str, str], float]:
        """The commands to stop, each with the reason, and the seconds until the next check."""
        now, disks = time.monotonic(), _disks(commands, self._limits.reserve)
        self._due = {each.id: self._due.get(each.id, self._first_due(now)) for each in commands}
        low = [each for each in commands if disks[each.workspace] < 0]
        due = [each for each in commands if self._due[each.id] <= now]
        usage = measure_usage([*due, *(each for each in low if each not in due)]) if due or low else {}
        exceeded: dict[str, str] = {}
        for command in due:
            used = usage[command.id].cpu
            self._due[command.id] = now + max(_MIN_SECONDS, (self._limits.cpu - used) / self._processors)
            if used > self._limits.cpu:
                limit = duration(self._limits.cpu * 1000)
                exceeded[command.id] = f"it used more processor time than sandbox.cpu allows ({limit})"
        if low:
            writer = max(low, key=lambda each: usage[each.id].written)
            if usage[writer.id].written >= _MIN_WRITTEN:
                written = size(usage[writer.id].written)
                reason = f"the disk has less free space than sandbox.reserve keeps, and it wrote the most ({written})"
                exceeded.setdefault(writer.id, reason)
        waits = [
            *(free / _FASTEST_DISK for free in disks.values()),
            *(due - now for due in self._due.values()),
            self._limits.cpu / self._processors,  # a command that starts meanwhile
        ]
        return exceeded, min(_MAX_SECONDS, max(_MIN_SECONDS, min(waits)))

    def _first_due(self, now: float) -> float:
        """It may have been running since the last check."""
        return now + max(0.0, self._limits.cpu / self._processors - _MAX_SECONDS)


def measure_usage(commands: Sequence[RunningCommand]) -> dict[str, CommandUsage]:
    """What these commands have used so far, their ended processes included.

    Without a control group, processes that a command has not waited for when they ended are missing.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for row in process_table.list_processes():
        children[row.parent].append(row.pid)
    return {command.id: _usage_of(command, children) for command in commands}


def _usage_of(command: RunningCommand, children: Mapping[int, Sequence[int]]) -> CommandUsage:
    pids = _descendants(command.first_pid(), children)
    cpu = sum(map(_processor_seconds, pids))
    return CommandUsage(max(cpu, command.group_cpu() or 0.0), sum(map(_written_bytes, pids)))


def _descendants(first: int | None, children: Mapping[int, Sequence[int]]) -> list[int]:
    found = [first] if first else []
    for pid in found:
        found += children.get(pid, ())
    return found


def _processor_seconds(pid: int) -> float:
    """Of the process and of the children that it has waited for."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return sum(map(int, file.read().rpartition(b") ")[2].split()[11:15])) / _TICKS
    return 0.0


def _written_bytes(pid: int) -> int:
    """By the process and by the children that it has waited for. On a disk in memory, all that they wrote anywhere."""
    with suppress(OSError, ValueError, KeyError), open(f"/proc/{pid}/io", "rb") as file:
        facts = dict(line.split(b": ") for line in file.read().splitlines())
        return max(0, int(facts[b"write_bytes"]) - int(facts[b"cancelled_write_bytes"])) or int(facts[b"wchar"])
    return 0


def _disks(commands: Sequence[RunningCommand], reserve: int) -> dict[str, int]:
    """The bytes that can still be written to the disk of each workspace; negative when it should have more."""
    disks: dict[str, int] = {}
    for workspace in {each.workspace for each in commands}:
        try:
            free, kept = _free_space(os.statvfs(workspace), reserve)
            disks[workspace] = free - kept
        except OSError:  # the workspace is gone
            disks[workspace] = _FASTEST_DISK * int(_MAX_SECONDS)
    return disks


def _free_space(disk: os.statvfs_result, reserve: int) -> tuple[int, int]:
    """The free bytes of a disk, and how many of them are kept."""
    return disk.f_bavail * disk.f_frsize, min(reserve, int(disk.f_blocks * disk.f_frsize * _RESERVE_SHARE))
