"""A child process that is spoken with in lines over its stdin and stdout: started exactly as told, ended in order."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from outrider.runtimes.jsonrpc.errors import ChildGone
from outrider.runtimes.jsonrpc.exits import leave, until_exit
from outrider.runtimes.jsonrpc.group import open_group
from outrider.runtimes.jsonrpc.orphans import Kin
from outrider.runtimes.jsonrpc.pipes import PIPE, read_now, read_some, write_all
from outrider.runtimes.jsonrpc.start import Program, Started, start

_LINGER = 2.0
"""Seconds that a child which closed a pipe has to end by itself, so that its end is told and not the pipe's."""


class Child:
    """A running child. One task reads its lines; any number may send some."""

    def __init__(self, program: Program, started: Started) -> None:
        self.pid = started.process.pid
        self.mark = program.mark
        self.name = Path(program.argv[0]).name
        self._program = program
        self._started = started
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

    @property
    def is_over(self) -> bool:
        """It has ended or was given up; there may be lines to read yet."""
        return self._over.is_set()

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
            self._reason or ("" if self.is_over else "was let go"),
        )

    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self._finish("was let go")
        self._sender.close()

    async def watch(self) -> None:
        """Notice its end, at once."""
        self._exit = await until_exit(self._started.process)
        # What it said last is in the pipes: whoever holds their other end now, it is not awaited.
        self._keep(read_now(self._started.stderr, PIPE))
        self._split(read_now(self._started.stdout, PIPE))
        self._finish("")

    async def drain(self) -> None:
        """Read stderr as long as anybody writes to it: a full pipe would stop the child."""
        while chunk := await read_some(self._started.stderr):
            self._keep(chunk)

    async def write(self) -> None:
        """Write what is sent, line by line."""
        try:
            while not self._over.is_set():
                await write_all(self._started.stdin, await self._outgoing.receive(), self._program.stall)
        except TimeoutError:
            self._finish(f"has read nothing of its input for {self._program.stall:g} s")
        except BrokenPipeError:
            await self._give_up("closed its input")
        except (anyio.ClosedResourceError, anyio.EndOfStream):
            # It is over: `_finish` closed the stream, so that whoever was about to send hears of it.
            return

    async def _read(self) -> None:
        with anyio.CancelScope() as self._reading:
            chunk = await read_some(self._started.stdout)
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
        del self._tail[: max(len(self._tail) - self._program.stderr, 0)]

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
    kin = Kin(program.mark)
    started = start(program)
    kin.child = started.process.pid
    child = Child(program, started)
    try:
        async with open_group() as group:
            group.start_soon(child.watch)
            group.start_soon(child.drain)
            group.start_soon(child.write)
            yield child
    finally:
        child.close()
        with anyio.CancelScope(shield=True):
            await leave(started, kin, program.grace, program.patience)
