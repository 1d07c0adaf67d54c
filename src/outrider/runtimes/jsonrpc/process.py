"""Reading and writing the pipes of a child without ever blocking anybody else.

Starting a child exactly as told, with three pipes to it.

Seeing a child end, and ending it in order with all that it started.

A child process that is spoken with in lines over its stdin and stdout: started exactly as told, ended in order.
"""

import errno
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from msgspec import Struct, field

from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.jsonrpc.errors import ProcessExited
from outrider.system.processes import MARKER_VARIABLE, ProcessTree, check_marker, new_marker
from outrider.system.tasks import background_group

PIPE_SIZE = 1024 * 1024
"""The most that a pipe holds, whoever enlarged it."""
_CHUNK = 256 * 1024


async def read_some(descriptor: int) -> bytes:
    """What there is, once there is something; empty at the end."""
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)


def read_nowait(descriptor: int, most: int) -> bytes:
    """What there is at this moment, up to about this much."""
    found = bytearray()
    while len(found) < most:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            break
        if not chunk:
            break
        found += chunk
    return bytes(found)


async def write_all(descriptor: int, content: bytes, stall: float) -> None:
    """Raises TimeoutError when nothing is taken for `stall` seconds, BrokenPipeError when nobody reads any more."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            with anyio.fail_after(stall):
                await anyio.wait_writable(descriptor)


_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Program(Struct, frozen=True):
    """What to start, complete: nothing is taken from our own environment."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    """All of it, besides `OUTRIDER_CHILD`, whose value is the mark."""
    marker: str = field(default_factory=new_marker)
    """By which all that it starts is found; see `end_marked`."""
    max_line: int = 64 * 1024 * 1024
    """Most bytes of one line; a child that says more is given up."""
    max_stderr: int = 64 * 1024
    """Most bytes of stderr that are kept: the last ones."""
    write_timeout: float = 30.0
    """Seconds in which it must read some of what is written to it, or it is given up."""
    stdin_close_timeout: float = 6.0
    """Seconds it has to end after its stdin was closed, before it gets SIGTERM."""
    sigterm_timeout: float = 3.0
    """Seconds it has to end after SIGTERM, before it gets SIGKILL."""


class SpawnedProcess(Struct, frozen=True):
    """A process, and our ends of its pipes, none of which blocks."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int


def spawn(program: Program) -> SpawnedProcess:
    """In a session of its own. Raises Refused or Unavailable, and then there is nothing to end."""
    if not program.argv:
        raise Refused("there is no program to start")
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe()
        theirs, in_, out, their_out, err, their_err = opened
        for descriptor in (in_, out, err):
            os.set_blocking(descriptor, False)
        process = subprocess.Popen(
            program.argv,
            stdin=theirs,
            stdout=their_out,
            stderr=their_err,
            cwd=program.cwd,
            env={**program.environ, MARKER_VARIABLE: program.marker},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        for descriptor in opened:
            os.close(descriptor)
        raise _spawn_error(error, program) from error
    for descriptor in (theirs, their_out, their_err):
        os.close(descriptor)
    return SpawnedProcess(process, in_, out, err)


def _spawn_error(error: OSError | ValueError, program: Program) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this cannot be started: {error}")
    if error.errno in _BUSY:
        return Unavailable(f"the system can start no more processes now: {error.strerror}")
    if not program.cwd.is_dir():
        return Refused(f"there is no folder {program.cwd} to start {program.argv[0]} in")
    return Refused(f"{program.argv[0]} was not started: {error.strerror}")


_SIGKILL_TIMEOUT = 5.0
_log = logging.getLogger("outrider.jsonrpc")


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; its status, below zero for a signal. It is not reaped, so that its number stays its own."""
    if sys.platform == "linux":
        # It cannot be another one's number: whoever was not waited for keeps it.
        with suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    pause = 0.01
    while (status := _exit_status(process)) is None:
        await anyio.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    return status


async def terminate(started: SpawnedProcess, kin: ProcessTree, grace: float, patience: float) -> None:
    """Close its stdin, wait, send SIGTERM, wait, send SIGKILL; then end what it started. To be shielded by its caller.

    What cannot be ended is said in the log.
    """
    process = started.process
    try:
        async with background_group() as group:
            # One that cannot write its last words does not come to its end.
            group.start_soon(_discard, started.stdout)
            group.start_soon(_discard, started.stderr)
            if not await _stop_in_steps(started, kin, grace, patience):
                _log.error("process %d does not die", process.pid)
            await kin.terminate()
    except (Unavailable, OSError) as error:
        _log.error("what process %d started was not ended: %s", process.pid, error)
    finally:
        # Where nothing else can be found, its group can.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(started.stdout)
        os.close(started.stderr)
        process.poll()


async def _stop_in_steps(started: SpawnedProcess, kin: ProcessTree, grace: float, patience: float) -> bool:
    process = started.process
    for number, seconds in ((0, grace), (signal.SIGTERM, patience), (signal.SIGKILL, _SIGKILL_TIMEOUT)):
        # Before each step: what it started can be told from others by descent only as long as it lives.
        try:
            await anyio.to_thread.run_sync(kin.scan)
        finally:
            if not number:
                os.close(started.stdin)
        if number and process.returncode is None:
            os.kill(process.pid, number)
            # One that is stopped would never notice.
            os.kill(process.pid, signal.SIGCONT)
        with anyio.move_on_after(seconds):
            await wait_for_exit(process)
            return True
    return False


async def _discard(descriptor: int) -> None:
    while await read_some(descriptor):
        pass


def _exit_status(process: subprocess.Popen[bytes]) -> int | None:
    if sys.platform != "linux":
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


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
    check_marker(program.marker)
    started = spawn(program)
    kin = ProcessTree(program.marker, started.process.pid)
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
