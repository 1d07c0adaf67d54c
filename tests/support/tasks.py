"""Commands for tests, each in its own folder, and killed after the test."""

import os
import pickle
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from msgspec import Struct

from outrider.core.tasks import ProcessIdentity
from outrider.workspaces.process_end import kill, wait_for_exit
from outrider.workspaces.supervisor import adopt, start_detached
from outrider.workspaces.task_folder import CommandSpec, Exit, output_size, poll_exit, read_output

LONG = 60.0
"""Seconds after which a wait fails."""

_STARTER = """
import os, pickle, sys
from outrider.workspaces.supervisor import start_detached
sys.stdout.buffer.write(pickle.dumps(start_detached(pickle.load(sys.stdin.buffer))))
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


class StartedTask(Struct, frozen=True):
    """A started command."""

    folder: Path
    identity: ProcessIdentity

    async def wait(self) -> Exit:
        """Wait for its end; the exit without its time."""
        with anyio.fail_after(LONG):
            return msgspec.structs.replace(await wait_for_exit(self.folder, self.identity), at=0)

    async def kill(self, grace: float = 2.0) -> Exit:
        with anyio.fail_after(LONG):
            return msgspec.structs.replace(await kill(self.folder, self.identity, grace), at=0)

    def poll(self) -> Exit | None:
        end = poll_exit(self.folder, self.identity)
        return msgspec.structs.replace(end, at=0) if end else None

    async def wait_for_output(self, words: bytes) -> None:
        with anyio.fail_after(LONG):
            while True:
                if words in tail_output(self.folder):
                    return
                await anyio.sleep(0.005)

    def fact(self, name: str) -> str:
        """A line of its record."""
        lines = (self.folder / "record").read_text().splitlines()
        return next(line.partition(" ")[2] for line in lines if line.startswith(f"{name} "))

    def group(self) -> int:
        return int(self.fact("first").split()[0])

    def output(self) -> bytes:
        return tail_output(self.folder, output_size(self.folder))


def tail_output(folder: Path, max_bytes: int = 4000) -> bytes:
    """The last bytes of the output of a task."""
    return read_output(folder, max(0, output_size(folder) - max_bytes), max_bytes)


class StartedTasks:
    """Starts commands in one folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[Path] = []

    def spec(
        self,
        text: str,
        *,
        stdin: Literal["closed", "open"] | bytes = "closed",
        output: int = 1 << 20,
        environ: Mapping[str, str] | None = None,
        rlimits: Mapping[str, int] | None = None,
    ) -> CommandSpec:
        folder = self.home / f"t{len(self.started)}"
        self.started.append(folder)
        environ = {"PATH": os.defpath} if environ is None else environ
        return CommandSpec(("/bin/sh", "-c", text), folder, self.home, environ, stdin, output, rlimits or {})

    def run(self, text: str, stdin: Literal["closed", "open"] | bytes = "closed", output: int = 1 << 20) -> StartedTask:
        spec = self.spec(text, stdin=stdin, output=output)
        return StartedTask(spec.folder, start_detached(spec))

    def run_from_another(self, text: str, stdin: Literal["closed", "open"] = "closed") -> StartedTask:
        """Start a command from a process that is killed with SIGKILL right after."""
        spec = self.spec(text, stdin=stdin)
        starter = subprocess.run(
            [sys.executable, "-c", _STARTER],
            input=pickle.dumps(spec),
            capture_output=True,
            timeout=LONG,
            check=False,
        )
        assert (starter.returncode, starter.stderr) == (-9, b"")
        return StartedTask(spec.folder, pickle.loads(starter.stdout))


@asynccontextmanager
async def open_tasks(home: Path) -> AsyncGenerator[StartedTasks]:
    tasks = StartedTasks(home)
    try:
        yield tasks
    finally:
        for folder in tasks.started:
            if folder.exists() and (identity := adopt(folder)):
                with anyio.fail_after(LONG):
                    await kill(folder, identity, 0)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"Z")
    except (ProcessLookupError, FileNotFoundError):
        return True


async def until_gone(pid: int) -> None:
    with anyio.fail_after(LONG):
        while True:
            if is_gone(pid):
                return
            await anyio.sleep(0.005)
