"""The commands of tasks on this machine, each in a folder of its own, confined where that is possible."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import anyio.to_thread
from msgspec import Struct

from outrider.core.approve import HOST, NETWORK
from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import CommandEnd
from outrider.core.tasks import ProcessIdentity, Task, TaskSpec
from outrider.workspaces import process
from outrider.workspaces.sandbox import Grant, NoSandbox, Sandbox, inner_group

KEPT = 500
"""Tasks whose output is kept after their end, the latest first."""
KEPT_BYTES = 1024**3
"""Output that is kept of all of them together."""


class Means(Struct, frozen=True):
    """What commands are run with."""

    folder: Path
    """Where every task gets a folder of its own."""
    detect: Callable[[], Sandbox | NoSandbox]
    environ: Mapping[str, str]
    """What a command outside any sandbox gets as its environment."""
    output: int
    """Most bytes of output kept of one command."""
    network: bool = False
    read: tuple[str, ...] = ()
    """Folders every command may read besides the system's."""


class LocalCommands:
    """Starts, watches and ends the commands of one home."""

    def __init__(self, means: Means) -> None:
        self._means = means
        # Control groups of all homes lie side by side.
        self._tag = blake2b(os.fsencode(means.folder), digest_size=5).hexdigest()
        self._alive: Sequence[str] | None = None

    @cached_property
    def sandbox(self) -> Sandbox | NoSandbox:
        """Found out when it is first asked for, by trying; takes a moment."""
        found = self._means.detect()
        if isinstance(found, Sandbox) and found.cgroups and self._alive is not None:
            alive = [self._group(task) for task in self._alive]
            for group in found.cgroups.left(alive):
                if group.startswith(self._tag):
                    found.cgroups.clean(group)
        return found

    def prune(self, alive: Sequence[str]) -> None:
        self._alive = alive
        kept = room = 0
        for folder, size in _latest_first(self._means.folder):
            if folder.name in alive:
                continue
            kept, room = kept + 1, room + size
            if kept > KEPT or room > KEPT_BYTES:
                process.remove(folder)

    def start(self, task: Task) -> ProcessIdentity:
        wish, folder = task.spec, self._folder(task)
        root = Path(task.workspace)
        cwd = _below(root, wish.workdir)
        argv: tuple[str, ...] = ("/bin/sh", "-c", wish.command)
        environ, rlimits = self._means.environ, dict[str, int]()
        if HOST not in wish.grants:
            wrapped = self._confined().wrap(argv, root, cwd, {}, self._grant(wish.grants))
            argv = (*self._bounds(task), *wrapped.argv)
            environ, rlimits = wrapped.environ, dict(wrapped.rlimits)
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            started = process.start(
                process.Spec(
                    argv=argv,
                    folder=folder,
                    cwd=cwd,
                    environ=environ,
                    stdin=_stdin(wish),
                    output=self._means.output,
                    rlimits=rlimits,
                )
            )
        except (Refused, Unavailable):
            self._clean(task)
            raise
        except OSError as error:
            self._clean(task)
            raise Unavailable(f"the command was not started: {error.strerror}") from error
        return ProcessIdentity(started.pid, started.started, started.boot)

    def check_grants(self, workspace: str, needs: Sequence[str]) -> None:
        root = Path(workspace)
        self._confined().wrap(("true",), root, root, {}, self._grant(tuple(needs)))

    def adopt(self, task: Task) -> ProcessIdentity | None:
        found = process.adopt(self._folder(task))
        return ProcessIdentity(found.pid, found.started, found.boot) if found else None

    def boot_time(self) -> int:
        since = time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)
        return int((time.time() - since) * 1000)

    def has_ended(self, task: Task) -> bool:
        return process.look(self._folder(task), _mark(task)) is not None

    async def wait_for_end(self, task: Task) -> CommandEnd:
        end = await process.ended(self._folder(task), _mark(task))
        return await self._seen_off(task, end)

    async def kill(self, task: Task) -> CommandEnd:
        end = await process.kill(self._folder(task), _mark(task))
        return await self._seen_off(task, end)

    def interrupt(self, task: Task) -> None:
        """What Ctrl-C does, to the command itself: a signal to the sandbox would end it unasked."""
        first = process.first(self._folder(task))
        group = inner_group(first) if first and HOST not in task.spec.grants else None
        if group:
            os.killpg(group, signal.SIGINT)
        else:
            process.interrupt(self._folder(task), _mark(task))

    def output_file(self, task: Task) -> str:
        return str(self._folder(task) / "output")

    def size(self, task: Task) -> int:
        return process.size(self._folder(task))

    def read(self, task: Task, start: int, most: int) -> bytes:
        folder = self._folder(task)
        if start >= 0:
            return process.read(folder, start, most)
        return process.read(folder, max(0, process.size(folder) + start), most)

    def idle_seconds(self, task: Task) -> float:
        return time.time() - process.changed(self._folder(task))

    def write(self, task: Task, content: bytes, *, close: bool = False) -> None:
        if not task.spec.keeps_stdin_open:
            raise Refused("its stdin is closed; run it with interactive=true to write to it")
        folder = self._folder(task)
        if content:
            process.write(folder, content)
        if close:
            process.close_stdin(folder)

    def save_number(self, task: Task, name: str, value: int) -> None:
        path = self._folder(task) / name
        path.with_suffix(".new").write_text(str(value))
        os.replace(path.with_suffix(".new"), path)

    def load_number(self, task: Task, name: str) -> int:
        try:
            return int((self._folder(task) / name).read_text())
        except FileNotFoundError:
            return 0

    def forget(self, task: Task) -> None:
        """Remove what is left of a task that is over."""
        process.remove(self._folder(task))

    def _folder(self, task: Task) -> Path:
        return self._means.folder / task.id

    def _group(self, task: str) -> str:
        return f"{self._tag}-{task}"

    def _confined(self) -> Sandbox:
        if isinstance(self.sandbox, NoSandbox):
            why = self.sandbox.why
            raise Refused(f"there is no sandbox here ({why}), so every command has to be allowed by a person")
        return self.sandbox

    def _grant(self, grants: tuple[str, ...]) -> Grant:
        named = [grant.partition(":") for grant in grants]
        return Grant(
            network=self._means.network or NETWORK in grants,
            write=tuple(path for kind, _, path in named if kind == "write"),
            read=(*self._means.read, *(path for kind, _, path in named if kind == "read")),
        )

    def _bounds(self, task: Task) -> tuple[str, ...]:
        sandbox = self._confined()
        return sandbox.cgroups.prepare(self._group(task.id), sandbox.limits) if sandbox.cgroups else ()

    async def _seen_off(self, task: Task, end: process.Exit) -> CommandEnd:
        # The kernel may take its time over a group, and nobody else should have to wait for that.
        ran_out = await anyio.to_thread.run_sync(self._clean, task)
        reason = "memory" if ran_out and end.reason in ("exit", "signal") and end.code else end.reason
        return CommandEnd(end.code, reason, end.signal, end.at)

    def _clean(self, task: Task) -> bool:
        """Removes what bounded the task; whether its memory had run out."""
        if HOST in task.spec.grants or isinstance(self.sandbox, NoSandbox) or not self.sandbox.cgroups:
            return False
        ran_out = self.sandbox.cgroups.ran_out(self._group(task.id))
        self.sandbox.cgroups.clean(self._group(task.id))
        return ran_out


def _below(root: Path, workdir: str) -> Path:
    """A folder of the workspace. Raises Refused for any other."""
    cwd = (root / workdir).resolve()
    if not cwd.is_relative_to(root.resolve()):
        raise Refused(f"{workdir} is not in the workspace")
    if not cwd.is_dir():
        raise Refused(f"there is no folder {workdir or root}")
    return cwd


def _mark(task: Task) -> process.Mark:
    if task.process is None:
        raise Refused(f"task {task.id} has not started")
    return process.Mark(task.process.pid, task.process.started, task.process.boot)


def _stdin(wish: TaskSpec) -> Literal["closed", "open"] | bytes:
    if wish.keeps_stdin_open:
        return "open"
    return "closed" if wish.stdin is None else wish.stdin.encode()


def _latest_first(folder: Path) -> list[tuple[Path, int]]:
    """The folders of tasks with the size of their output."""
    found: list[tuple[float, Path, int]] = []
    for each in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # one that goes away meanwhile
            output = (each / "output").stat()
            found.append((output.st_mtime, each, output.st_size))
    return [(each, size) for _, each, size in sorted(found, reverse=True)]
