"""Bounds on all processes of a task together, by the kernel's control groups, where this process may make some.

The groups are made below the one this process is in, so that what bounds Outrider bounds its tasks as well.
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
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_REMOVE_TIMEOUT = 1.0
_POLL_MS = 10
"""Milliseconds."""
_ENTER = 'for group do shift; [ "$group" = -- ] && break; echo $$ >"$group/cgroup.procs" || exit 125; done; exec "$@"'


class Cgroups(Struct, frozen=True):
    """Folders in which a group per task can be made: one (version 2), or one for each controller (version 1)."""

    folders: tuple[str, ...]
    version: int

    def prepare(self, task: str, limits: SandboxLimits) -> tuple[str, ...]:
        """Makes the task's groups; what to put before the argv so that it starts within them.

        Raises Unavailable when the kernel does not let us. Then nothing is left behind.
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
        """Whether the kernel ended a process of the task because its memory was used up."""
        for group in self._groups(task):
            for name in ("memory.oom_control", "memory.events"):
                with suppress(OSError):
                    facts = dict(line.split() for line in (group / name).read_text().splitlines())
                    if int(facts.get("oom_kill", 0)):
                        return True
        return False

    def clean(self, task: str) -> bool:
        """Ends what still runs in the task's groups and removes them; False when that takes the kernel a while yet.

        Usually a matter of milliseconds; waits a second for each group at the most.
        """
        return all([_remove(group) for group in self._groups(task)])

    def leftover_tasks(self, alive: Collection[str] = ()) -> list[str]:
        """Tasks that have groups and are not alive: to be cleaned after a crash."""
        found = {entry.name for folder in self.folders for entry in _entries(Path(folder))}
        return sorted(found - set(alive))

    def _groups(self, task: str) -> list[Path]:
        if not _NAME.fullmatch(task):
            raise Refused(f"{task!r} cannot be the name of a group")
        return [Path(folder) / task for folder in self.folders]


def find_cgroups(proc: Path = Path("/proc"), top: Path = Path("/sys/fs/cgroup")) -> Cgroups | None:
    """Where groups for tasks can be made, tried for real; None when nowhere."""
    try:
        own = _own_groups((proc / "self" / "cgroup").read_text(encoding="utf-8"))
    except OSError:
        return None
    if all(name in own for name in _NEEDED):
        folders = [top / name / own[name].lstrip("/") / _OURS for name in _NEEDED]
        found = Cgroups(tuple(map(str, folders)), 1)
        return found if _works(found) else None
    if "" not in own:
        return None
    here = top / own[""].lstrip("/")
    for folder in (here, *([here.parent] if here != top else [])):
        found = Cgroups((str(folder / _OURS),), 2)
        if _enable(folder) and _enable_below(folder / _OURS) and _works(found):
            return found
    return None


def _own_groups(text: str) -> dict[str, str]:
    """The group of this process by controller; version 2 has no name."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in rows for name in names.split(",")}


def _settings(version: int, limits: SandboxLimits) -> list[tuple[str, int]]:
    """Each is set where the folder has such a file: with version 1 every folder has its own controller's only."""
    if version == 1:
        memory = [("memory.limit_in_bytes", limits.memory), ("memory.memsw.limit_in_bytes", limits.memory)]
    else:
        memory = [("memory.max", limits.memory), ("memory.swap.max", 0), ("memory.oom.group", 1)]
    return [*memory, ("pids.max", limits.processes)]


def _works(cgroups: Cgroups) -> bool:
    probe = f"probe-{os.getpid()}"
    try:
        cgroups.prepare(probe, SandboxLimits())
        found = {name for group in cgroups.folders for name in os.listdir(Path(group) / probe)}
    except (OSError, Unavailable):
        return False
    finally:
        cgroups.clean(probe)
    return "pids.max" in found and bool(found & {"memory.max", "memory.limit_in_bytes"})


def _enable(folder: Path) -> bool:
    """Whether groups below this one are bounded. A group that holds processes cannot be asked to, save the first."""
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
    with suppress(FileNotFoundError):  # a controller of another folder, or one this kernel does without
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)


def _make(group: Path) -> None:
    for _ in range(3):  # whoever cleans the last of other tasks takes the folder above away
        with suppress(FileNotFoundError):
            group.mkdir(parents=True, exist_ok=True)
            return
    group.mkdir(parents=True, exist_ok=True)


def _remove(group: Path) -> bool:
    """bubblewrap's end is a moment before that of the last process within, which the kernel is still ending."""
    until = time.monotonic() + _REMOVE_TIMEOUT
    while True:
        with suppress(OSError):
            group.rmdir()
        if not group.exists():
            break
        if time.monotonic() > until:
            return False
        _kill_members(group)
    with suppress(OSError):  # others' tasks are still in it
        group.parent.rmdir()
    return True


def _kill_members(group: Path) -> None:
    """Kills what is in the group and waits, not for long, until the first of them is gone."""
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
