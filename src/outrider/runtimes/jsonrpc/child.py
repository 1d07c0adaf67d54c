"""A child process that is spoken with in lines over its stdin and stdout: started exactly as told, ended in order."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from outrider.runtimes.jsonrpc.errors import ProcessExited
from outrider.runtimes.jsonrpc.exits import terminate, wait_for_exit
from outrider.runtimes.jsonrpc.group import background_group
from outrider.runtimes.jsonrpc.orphans import ProcessTree
from outrider.runtimes.jsonrpc.pipes import PIPE_SIZE, read_nowait, read_some, write_all
from outrider.runtimes.jsonrpc.start import Program, SpawnedProcess, spawn

_LINGER = 2.0
"""Seconds that a child which closed a pipe has to end by itself, so that its end is told and not the pipe's."""


class Child:
    """A running child. One task reads its lines; any number may send some."""

    def __init__(self, program: Program, started: SpawnedProcess) -> None:
        self.pid = started.process.pid
        self.marker = program.marker
        self.name = Path(program.argv[0]).name
        self._program = program
        self._process = started
        self._lines: deque[bytes] = deque()
        self._partial_line: list[bytes] = []
        """The parts of the line that is not complete yet."""
        self._stderr = bytearray()
        self._sender, self._outgoing = anyio.create_memory_object_stream[bytes](0)
        self._reading = anyio.CancelScope()
        self._closed = anyio.Event()
        self._reason = ""
        self._exit: int | None = None

    async def read_line(self) -> bytes:
        """The next line, without its end. Raises ChildGone once it is over and every line that it wrote was read."""
        while not self._lines:
            if self._closed.is_set():
                raise self.exit_error()
            await self._read()
        return self._lines.popleft()

    async def send(self, line: bytes) -> None:
        """Write a line, its end included, when all before it are written. Raises ChildGone when it is over.

        A line is written whole or not at all, also when this call is cancelled. It may return before the last byte is
        in the pipe; the next one then waits.
        """
        if self._closed.is_set():
            raise self.exit_error()
        try:
            await self._sender.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self.exit_error() from None

    @property
    def is_closed(self) -> bool:
        """It has ended or was given up; there may be lines to read yet."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Wait until it has ended or was given up. May be cancelled, and asked by several."""
        await self._closed.wait()

    def exit_error(self) -> ProcessExited:
        """Why it can be spoken with no more, with the evidence there is."""
        code = self._exit
        is_killed = code is not None and code < 0
        return ProcessExited(
            self.name,
            None if is_killed else code,
            -code if code is not None and is_killed else 0,
            self.stderr_tail(),
            self._reason or ("" if self.is_closed else "was let go"),
        )

    def stderr_tail(self) -> str:
        return self._stderr.decode(errors="replace")

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self._finish("was let go")
        self._sender.close()

    async def watch_exit(self) -> None:
        """Notice its end, at once."""
        self._exit = await wait_for_exit(self._process.process)
        # What it said last is in the pipes: whoever holds their other end now, it is not awaited.
        self._keep_stderr(read_nowait(self._process.stderr, PIPE_SIZE))
        self._split_lines(read_nowait(self._process.stdout, PIPE_SIZE))
        self._finish("")

    async def drain_stderr(self) -> None:
        """Read stderr as long as anybody writes to it: a full pipe would stop the child."""
        while chunk := await read_some(self._process.stderr):
            self._keep_stderr(chunk)

    async def write_lines(self) -> None:
        """Write what is sent, line by line."""
        try:
            while not self._closed.is_set():
                await write_all(self._process.stdin, await self._outgoing.receive(), self._program.write_timeout)
        except TimeoutError:
            self._finish(f"has read nothing of its input for {self._program.write_timeout:g} s")
        except BrokenPipeError:
            await self._close_after_linger("closed its input")
        except (anyio.ClosedResourceError, anyio.EndOfStream):
            # It is over: `_finish` closed the stream, so that whoever was about to send hears of it.
            return

    async def _read(self) -> None:
        with anyio.CancelScope() as self._reading:
            chunk = await read_some(self._process.stdout)
            if chunk:
                self._split_lines(chunk)
            else:
                await self._close_after_linger("closed its output")

    async def _close_after_linger(self, reason: str) -> None:
        with anyio.move_on_after(_LINGER):
            await self._closed.wait()
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        """From now on it is over, for this reason unless there was one before."""
        if not self._closed.is_set():
            self._reason = reason
            self._closed.set()
            self._reading.cancel()
            self._outgoing.close()

    def _keep_stderr(self, chunk: bytes) -> None:
        self._stderr += chunk
        del self._stderr[: max(len(self._stderr) - self._program.max_stderr, 0)]

    def _split_lines(self, chunk: bytes) -> None:
        head, *rest = chunk.split(b"\n")
        self._partial_line.append(head)
        if rest:
            self._lines.append(b"".join(self._partial_line))
            *whole, begun = rest
            self._lines.extend(whole)
            self._partial_line = [begun]
        if sum(map(len, self._partial_line)) > self._program.max_line:
            self._partial_line = []
            self._finish(f"wrote a line of more than {self._program.max_line:,} bytes")


@asynccontextmanager
async def open_child(program: Program) -> AsyncGenerator[Child]:
    """Start it in a session of its own. When this is left, it is ended in order, with everything that it started.

    In order: its stdin is closed, then it gets SIGTERM, then SIGKILL, each after its time. What it started is found as
    its descendants, by its session, and by the mark; all of it is gone when this is left, and nothing else is touched.
    Where there is no /proc, only its process group is ended. Raises Refused when it cannot be started as told, and
    Unavailable when the system has no room for it now.
    """
    kin = ProcessTree(program.marker)
    started = spawn(program)
    kin.leader_pid = started.process.pid
    child = Child(program, started)
    try:
        async with background_group() as group:
            group.start_soon(child.watch_exit)
            group.start_soon(child.drain_stderr)
            group.start_soon(child.write_lines)
            yield child
    finally:
        child.close()
        with anyio.CancelScope(shield=True):
            await terminate(started, kin, program.stdin_close_timeout, program.sigterm_timeout)
