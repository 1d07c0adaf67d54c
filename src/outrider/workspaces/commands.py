"""Commands of tasks on this machine, each with its own folder, sandboxed where that is possible."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import anyio.to_thread
from msgspec import Struct

from outrider.core.approvals import HOST, NETWORK
from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import CommandEnd
from outrider.core.tasks import ProcessIdentity, Task, TaskSpec
from outrider.workspaces import process_end, supervisor, task_folder
from outrider.workspaces.held_paths import hold_paths
from outrider.workspaces.sandbox.bubblewrap import command_group
from outrider.workspaces.sandbox.port import Sandbox
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand


class CommandSettings(Struct, frozen=True):
    """Settings for all commands of a home."""

    folder: Path
    """The parent of the tasks' folders."""
    detect: Callable[[], Sandbox | NoSandbox]
    environ: Mapping[str, str]
    """The environment of a command outside any sandbox."""
    max_output: int
    """The most bytes of output of one command."""
    network: bool = False
    read: tuple[str, ...] = ()
    """Folders that every command may read, in addition to the system's."""
    hidden: tuple[str, ...] = ()
    """Outrider's own files and folders, which no command may see."""
    max_ended_tasks: int = 500
    """Ended tasks whose output is kept."""
    max_ended_bytes: int = 1024**3
    """Bytes of output kept of all ended tasks together."""


class LocalCommands:
    """Starts, watches and ends the commands of a home."""

    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings
        # The control groups of all homes are in one folder.
        self._home_tag = blake2b(os.fsencode(settings.folder), digest_size=5).hexdigest()
        self._open_tasks: Sequence[str] | None = None
        """The tasks that had not ended at the last `prune`."""

    @cached_property
    def sandbox(self) -> Sandbox | NoSandbox:
        """Detected on first use, which takes a moment. Then control groups that a crash left behind are removed."""
        sandbox = self._settings.detect()
        if not isinstance(sandbox, NoSandbox) and sandbox.cgroups and self._open_tasks is not None:
            alive = [self._group_name(task) for task in self._open_tasks]
            for group in sandbox.cgroups.leftover_tasks(alive):
                if group.startswith(self._home_tag):
                    sandbox.cgroups.clean(group)
        return sandbox

    def prune(self, alive: Sequence[str]) -> None:
        self._open_tasks = alive
        count = total = 0
        for folder, size in _latest_first(self._settings.folder):
            if folder.name in alive:
                continue
            count, total = count + 1, total + size
            if count > self._settings.max_ended_tasks or total > self._settings.max_ended_bytes:
                process_end.remove_folder(folder)

    def start(self, task: Task) -> ProcessIdentity:
        spec, folder = task.spec, self._folder(task)
        root = Path(task.workspace)
        cwd = _checked_workdir(root, spec.workdir)
        argv: tuple[str, ...] = ("/bin/sh", "-c", spec.command)
        environ, rlimits = self._settings.environ, dict[str, int]()
        if HOST not in spec.grants:
            wrapped = self._wrap(argv, root, cwd, spec.grants)
            argv = (*self._cgroup_argv(task), *wrapped.argv)
            environ, rlimits = wrapped.environ, dict(wrapped.rlimits)
        else:
            wrapped = SandboxedCommand(argv)
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return supervisor.start_detached(
                task_folder.CommandSpec(
                    argv=argv,
                    folder=folder,
                    cwd=cwd,
                    environ=environ,
                    stdin=_stdin_of(spec),
                    max_output=self._settings.max_output,
                    rlimits=rlimits,
                    descriptors=wrapped.descriptors,
                )
            )
        except (Refused, Unavailable):
            self._remove_cgroups(task)
            raise
        except OSError as error:
            self._remove_cgroups(task)
            raise Unavailable(f"the command was not started: {error.strerror}") from error
        finally:
            wrapped.close()

    def check_grants(self, workspace: str, needs: Sequence[str]) -> None:
        root = Path(workspace)
        self._wrap(("true",), root, root, tuple(needs)).close()

    def adopt(self, task: Task) -> ProcessIdentity | None:
        return supervisor.adopt(self._folder(task))

    def boot_time(self) -> int:
        since = time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)
        return int((time.time() - since) * 1000)

    def has_ended(self, task: Task) -> bool:
        return task_folder.poll_exit(self._folder(task), _process_of(task)) is not None

    async def wait_for_end(self, task: Task) -> CommandEnd:
        end = await process_end.wait_for_exit(self._folder(task), _process_of(task))
        return await self._finish(task, end)

    async def kill(self, task: Task) -> CommandEnd:
        end = await process_end.kill(self._folder(task), _process_of(task))
        return await self._finish(task, end)

    def interrupt(self, task: Task) -> None:
        """Send SIGINT to the command itself: sent to the sandbox, it would end everything at once."""
        first = process_end.first_pid(self._folder(task))
        group = command_group(first) if first and HOST not in task.spec.grants else None
        if group:
            os.killpg(group, signal.SIGINT)
        else:
            process_end.interrupt(self._folder(task), _process_of(task))

    def output_file(self, task: Task) -> str:
        return str(self._folder(task) / "output")

    def size(self, task: Task) -> int:
        return task_folder.output_size(self._folder(task))

    def read(self, task: Task, start: int, max_bytes: int) -> bytes:
        folder = self._folder(task)
        if start >= 0:
            return task_folder.read_output(folder, start, max_bytes)
        return task_folder.read_output(folder, max(0, task_folder.output_size(folder) + start), max_bytes)

    def idle_seconds(self, task: Task) -> float:
        return time.time() - task_folder.last_output_time(self._folder(task))

    def write(self, task: Task, content: bytes, *, close: bool = False) -> None:
        if not task.spec.keeps_stdin_open:
            raise Refused("its stdin is closed; start it with interactive=true to write to it")
        folder = self._folder(task)
        if content:
            task_folder.write_stdin(folder, content)
        if close:
            task_folder.close_stdin(folder)

    def save_number(self, task: Task, name: str, value: int) -> None:
        path = self._folder(task) / name
        # Without fsync: a crash of the machine ends the task too.
        path.with_suffix(".new").write_text(str(value))
        os.replace(path.with_suffix(".new"), path)

    def load_number(self, task: Task, name: str) -> int:
        try:
            return int((self._folder(task) / name).read_text())
        except FileNotFoundError:
            return 0

    def _folder(self, task: Task) -> Path:
        return self._settings.folder / task.id

    def _group_name(self, task: str) -> str:
        return f"{self._home_tag}-{task}"

    def _require_sandbox(self) -> Sandbox:
        if isinstance(self.sandbox, NoSandbox):
            why = self.sandbox.why
            raise Refused(f"there is no sandbox here ({why}), so a person has to allow every command")
        return self.sandbox

    def _wrap(self, argv: Sequence[str], root: Path, cwd: Path, grants: tuple[str, ...]) -> SandboxedCommand:
        sandbox, parts = self._require_sandbox(), [grant.partition(":") for grant in grants]
        held = hold_paths(
            str(root),
            str(cwd),
            write=[path for kind, _, path in parts if kind == "write"],
            read=[*self._settings.read, *(path for kind, _, path in parts if kind == "read")],
            hidden=self._settings.hidden,
            network=self._settings.network or NETWORK in grants,
        )
        with closing(held) as paths:
            return sandbox.wrap(argv, paths, {})

    def _cgroup_argv(self, task: Task) -> tuple[str, ...]:
        sandbox = self._require_sandbox()
        return sandbox.cgroups.prepare(self._group_name(task.id), sandbox.limits) if sandbox.cgroups else ()

    async def _finish(self, task: Task, end: task_folder.Exit) -> CommandEnd:
        # The kernel may take a while to remove a group; do not block the event loop.
        ran_out = await anyio.to_thread.run_sync(self._remove_cgroups, task)
        reason = "memory" if ran_out and end.reason in ("exit", "signal") and end.code else end.reason
        return CommandEnd(end.code, reason, end.signal, end.at)

    def _remove_cgroups(self, task: Task) -> bool:
        """Remove the task's control groups; whether it had run out of memory."""
        if HOST in task.spec.grants or isinstance(self.sandbox, NoSandbox) or not self.sandbox.cgroups:
            return False
        ran_out = self.sandbox.cgroups.ran_out_of_memory(self._group_name(task.id))
        self.sandbox.cgroups.clean(self._group_name(task.id))
        return ran_out


def _checked_workdir(root: Path, workdir: str) -> Path:
    """The absolute path of a folder in the workspace. Raises Refused for any other."""
    cwd = (root / workdir).resolve()
    if not cwd.is_relative_to(root.resolve()):
        raise Refused(f"{workdir} is not in the workspace")
    if not cwd.is_dir():
        raise Refused(f"there is no folder {workdir or root}")
    return cwd


def _process_of(task: Task) -> ProcessIdentity:
    if task.process is None:
        raise Refused(f"task {task.id} has not started")
    return task.process


def _stdin_of(spec: TaskSpec) -> Literal["closed", "open"] | bytes:
    if spec.keeps_stdin_open:
        return "open"
    return "closed" if spec.stdin is None else spec.stdin.encode()


def _latest_first(folder: Path) -> list[tuple[Path, int]]:
    """The folders of tasks, latest output first, with the size of their output."""
    folders: list[tuple[float, Path, int]] = []
    for each in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # it was removed in the meantime
            output = (each / "output").stat()
            folders.append((output.st_mtime, each, output.st_size))
    return [(each, size) for _, each, size in sorted(folders, reverse=True)]
