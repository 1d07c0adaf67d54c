"""A child process that is spoken with in lines over its stdin and stdout: started exactly as told, ended in order."""

import errno
import os
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio.abc import ObjectReceiveStream
from msgspec import Struct, field

from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.jsonrpc.errors import ChildGone
from outrider.runtimes.jsonrpc.group import open_group
from outrider.runtimes.jsonrpc.leave import leave
from outrider.runtimes.jsonrpc.orphans import VARIABLE, Kin, new_mark
from outrider.runtimes.jsonrpc.pipes import PIPE, read_now, read_some, write_all
from outrider.runtimes.jsonrpc.watch import exit_of, until_exit

_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_LINGER = 2.0
"""Seconds that a child which closed a pipe has to end by itself, so that its end is told and not the pipe's."""


class Program(Struct, frozen=True):
    """What to start, complete: nothing is taken from our own environment."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    """All of it, besides `OUTRIDER_CHILD`, whose value is the mark."""
    mark: str = field(default_factory=new_mark)
    """By which all that it starts is found; see `end_marked`."""
    longest: int = 64 * 1024 * 1024
    """Most bytes of one line; a child that says more is given up."""
    stderr: int = 64 * 1024
    """Most bytes of stderr that are kept: the last ones."""
    stall: float = 30.0
    """Seconds in which it must read some of what is written to it, or it is given up."""
    grace: float = 6.0
    """Seconds it has to end after its stdin was closed, before it gets SIGTERM."""
    patience: float = 3.0
    """Seconds it has to end after SIGTERM, before it gets SIGKILL."""


class Child:
    """A running child. One task reads its lines; any number may send some."""

    def __init__(self, program: Program, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.pid = process.pid
        self.mark = program.mark
        self.name = Path(program.argv[0]).name
        self._program = program
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []
        """The parts of the line that is not complete yet."""
        self._tail = bytearray()
        self._sender, self._outgoing = anyio.create_memory_object_stream[bytes](0)
        self._reading = anyio.CancelScope()
        self._over = anyio.Event()
        self._reason = ""
        self._exit: int | None = None

    async def line(self) -> bytes:
        """The next line, without its end. Raises ChildGone once it is over and every line that it wrote was read."""
        while not self._lines:
            if self._over.is_set():
                raise self.gone()
            await self._read()
        return self._lines.popleft()

    async def send(self, line: bytes) -> None:
        """Write a line, its end included, when all before it are written. Raises ChildGone when it is over.

        A line is written whole or not at all, also when this call is cancelled. It may return before the last byte is
        in the pipe; the next one then waits.
        """
        if self._over.is_set():
            raise self.gone()
        try:
            await self._sender.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self.gone() from None

    async def over(self) -> None:
        """Wait until it has ended or was given up. May be cancelled, and asked by several."""
        await self._over.wait()

    def gone(self) -> ChildGone:
        """Why it can be spoken with no more, with the evidence there is."""
        code = self._exit
        is_killed = code is not None and code < 0
        return ChildGone(
            self.name,
            None if is_killed else code,
            -code if code is not None and is_killed else 0,
            self.stderr_tail(),
            self._reason or ("" if code is not None else "was let go"),
        )

    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace")

    async def watch(self) -> None:
        """Notice its end, at once."""
        await until_exit(self._process)
        self._exit = exit_of(self._process)
        # What it said last is in the pipes: whoever holds their other end now, it is not awaited.
        self._keep(read_now(self._stderr, PIPE))
        self._split(read_now(self._stdout, PIPE))
        self._finish("")

    async def drain(self) -> None:
        """Read stderr as long as anybody writes to it: a full pipe would stop the child."""
        while chunk := await read_some(self._stderr):
            self._keep(chunk)

    async def write(self) -> None:
        """Write what is sent, line by line."""
        async with self._outgoing as outgoing:
            fault = await self._write(outgoing)
        await self._give_up(fault)

    async def _write(self, outgoing: ObjectReceiveStream[bytes]) -> str:
        async for line in outgoing:
            try:
                await write_all(self._stdin, line, self._program.stall)
            except TimeoutError:
                self._finish(f"has read nothing of its input for {self._program.stall:g} s")
                break
            except BrokenPipeError:
                break
        return "closed its input"

    async def _read(self) -> None:
        with anyio.CancelScope() as self._reading:
            chunk = await read_some(self._stdout)
            if chunk:
                self._split(chunk)
            else:
                await self._give_up("closed its output")

    async def _give_up(self, reason: str) -> None:
        with anyio.move_on_after(_LINGER):
            await self._over.wait()
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        """From now on it is over, for this reason unless there was one before."""
        if not self._over.is_set():
            self._reason = reason
            self._over.set()
            self._reading.cancel()
            self._outgoing.close()

    def _keep(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[: -self._program.stderr]

    def _split(self, chunk: bytes) -> None:
        head, *rest = chunk.split(b"\n")
        self._begun.append(head)
        if rest:
            self._lines.append(b"".join(self._begun))
            *whole, begun = rest
            self._lines.extend(whole)
            self._begun = [begun]
        if sum(map(len, self._begun)) > self._program.longest:
            self._begun = []
            self._finish(f"wrote a line of more than {self._program.longest:,} bytes")


@asynccontextmanager
async def open_child(program: Program) -> AsyncGenerator[Child]:
    """Start it in a session of its own. When this is left, it is ended in order, with everything that it started.

    In order: its stdin is closed, then it gets SIGTERM, then SIGKILL, each after its time. What it started is found as
    its descendants, by its session, and by the mark; all of it is gone when this is left, and nothing else is touched.
    Where there is no /proc, only its process group is ended. Raises Refused when it cannot be started as told, and
    Unavailable when the system has no room for it now.
    """
    kin_mark = program.mark
    process = _start(program)
    try:
        kin = Kin(kin_mark, process.pid)
        child = Child(program, process)
        async with open_group() as group:
            group.start_soon(child.watch)
            group.start_soon(child.drain)
            group.start_soon(child.write)
            yield child
    finally:
        with anyio.CancelScope(shield=True):
            await leave(process, kin, program.grace, program.patience)


def _start(program: Program) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            program.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=program.cwd,
            env={**program.environ, VARIABLE: program.mark},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _explained(error, program) from error
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe
        os.set_blocking(pipe.fileno(), False)
    return process


def _explained(error: OSError | ValueError, program: Program) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this cannot be started: {error}")
    if error.errno in _BUSY:
        return Unavailable(f"the system can start no more processes now: {error.strerror}")
    if not program.cwd.is_dir():
        return Refused(f"there is no folder {program.cwd} to start {program.argv[0]} in")
    return Refused(f"{program.argv[0]} was not started: {error.strerror}")
