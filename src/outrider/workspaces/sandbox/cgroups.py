"""Limits on all processes of a task together, by control groups, where this process may create them.

The groups are created below the group of this process, so that limits on Outrider apply to its tasks as well.
"""

import os
import re
import select
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.sandbox.types import SandboxLimits

_OURS = "outrider"
_NEEDED = ("memory", "pids")
_COUNTING = "cpuacct"
"""Counts processor time in version 1, where it may be used. Version 2 always counts it."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_REMOVE_TIMEOUT = 1.0
_POLL_MS = 10
"""Milliseconds."""
_ENTER = 'for group do shift; [ "$group" = -- ] && break; echo $$ >"$group/cgroup.procs" || exit 125; done; exec "$@"'


class Cgroups(Struct, frozen=True):
    """The folders for groups of tasks: one (version 2), or one for each controller (version 1)."""

    folders: tuple[str, ...]
    version: int

    def prepare(self, task: str, limits: SandboxLimits) -> tuple[str, ...]:
        """Create the task's groups; the prefix for its argv, so that it starts inside them.

        Raises Unavailable when the kernel refuses, and then leaves nothing behind.
        """
        try:
            for group in self._groups(task):
                _make(group)
                for name, value in _settings(self.version, limits):
                    _set(group / name, value)
        except OSError as error:
            self.clean(task)
            raise Unavailable(f"cannot bound the task's processes and memory: {error}") from error
        return ("/bin/sh", "-c", _ENTER, "sh", *map(str, self._groups(task)), "--")

    def ran_out_of_memory(self, task: str) -> bool:
        """Whether the kernel killed a process of the task for lack of memory."""
        for group in self._groups(task):
            for name in ("memory.oom_control", "memory.events"):
                with suppress(OSError):
                    facts = dict(line.split() for line in (group / name).read_text().splitlines())
                    if int(facts.get("oom_kill", 0)):
                        return True
        return False

    def cpu_seconds(self, task: str) -> float | None:
        """The processor time of the task, its ended processes included; None where the kernel does not count it."""
        for group in self._groups(task):
            with suppress(OSError, ValueError):
                return int((group / "cpuacct.usage").read_text()) / 1e9
            with suppress(OSError, ValueError, KeyError):
                facts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
                return int(facts["usage_usec"]) / 1e6
        return None

    def clean(self, task: str) -> bool:
        """Kill what still runs in the task's groups and remove them; False when the kernel needs longer.

        Usually takes milliseconds, and at most a second for each group.
        """
        return all([_remove(group) for group in self._groups(task)])

    def leftover_tasks(self, alive: Collection[str] = ()) -> list[str]:
        """Tasks that have groups and are not alive, for cleaning after a crash."""
        tasks = {entry.name for folder in self.folders for entry in _entries(Path(folder))}
        return sorted(tasks - set(alive))

    def _groups(self, task: str) -> list[Path]:
        if not _NAME.fullmatch(task):
            raise Refused(f"{task!r} cannot be the name of a group")
        return [Path(folder) / task for folder in self.folders]


def find_cgroups(proc: Path = Path("/proc"), top: Path = Path("/sys/fs/cgroup")) -> Cgroups | None:
    """Find where groups for tasks can be created, by trying; None when nowhere."""
    try:
        own = _own_groups((proc / "self" / "cgroup").read_text(encoding="utf-8"))
    except OSError:
        return None
    if all(name in own for name in _NEEDED):
        folders = [str(top / name / own[name].lstrip("/") / _OURS) for name in (*_NEEDED, _COUNTING) if name in own]
        candidates = (Cgroups(tuple(folders), 1), Cgroups(tuple(folders[: len(_NEEDED)]), 1))
        return next(filter(_works, candidates), None)
    if "" not in own:
        return None
    group = top / own[""].lstrip("/")
    for folder in (group, *([group.parent] if group != top else [])):
        cgroups = Cgroups((str(folder / _OURS),), 2)
        if _enable(folder) and _enable_below(folder / _OURS) and _works(cgroups):
            return cgroups
    return None


def _own_groups(text: str) -> dict[str, str]:
    """The group of this process by controller; the name of version 2 is empty."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in rows for name in names.split(",")}


def _settings(version: int, limits: SandboxLimits) -> list[tuple[str, int]]:
    """Files and values. In version 1, a folder has only the files of its own controller."""
    if version == 1:
        memory = [("memory.limit_in_bytes", limits.memory), ("memory.memsw.limit_in_bytes", limits.memory)]
    else:
        memory = [("memory.max", limits.memory), ("memory.swap.max", 0), ("memory.oom.group", 1)]
    return [*memory, ("pids.max", limits.processes)]


def _works(cgroups: Cgroups) -> bool:
    probe = f"probe-{os.getpid()}"
    try:
        cgroups.prepare(probe, SandboxLimits())
        files = {name for group in cgroups.folders for name in os.listdir(Path(group) / probe)}
    except (OSError, Unavailable):
        return False
    finally:
        cgroups.clean(probe)
    return "pids.max" in files and bool(files & {"memory.max", "memory.limit_in_bytes"})


def _enable(folder: Path) -> bool:
    """Enable the controllers for groups below this one; whether that worked. It fails for a group with processes."""
    control = folder / "cgroup.subtree_control"
    try:
        if not set(_NEEDED) <= set(control.read_text(encoding="utf-8").split()):
            control.write_text(" ".join(f"+{name}" for name in _NEEDED), encoding="utf-8")
    except OSError:
        return False
    return True


def _enable_below(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return _enable(folder)


def _set(file: Path, value: int) -> None:
    with suppress(FileNotFoundError):  # it belongs to a controller of another folder, or this kernel has none
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)


def _make(group: Path) -> None:
    for _ in range(3):  # cleaning another task may remove the parent in between
        with suppress(FileNotFoundError):
            group.mkdir(parents=True, exist_ok=True)
            return
    group.mkdir(parents=True, exist_ok=True)


def _remove(group: Path) -> bool:
    """Remove a group once it is empty: the last processes end a moment after bubblewrap."""
    until = time.monotonic() + _REMOVE_TIMEOUT
    while True:
        with suppress(OSError):
            group.rmdir()
        if not group.exists():
            break
        if time.monotonic() > until:
            return False
        _kill_members(group)
    with suppress(OSError):  # it has groups of other tasks
        group.parent.rmdir()
    return True


def _kill_members(group: Path) -> None:
    """Kill the processes in the group and wait briefly until one of them is gone."""
    waiting = select.poll()
    watched: list[int] = []
    try:
        for process in _processes(group):
            with suppress(ProcessLookupError):
                watched.append(os.pidfd_open(process))
                signal.pidfd_send_signal(watched[-1], signal.SIGKILL)
        for descriptor in watched:
            waiting.register(descriptor, select.POLLIN)
        waiting.poll(_POLL_MS)
    finally:
        for descriptor in watched:
            os.close(descriptor)


def _processes(group: Path) -> Iterable[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text(encoding="utf-8").split()]
    except FileNotFoundError:
        return []


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
