"""Child process with line-based pipes: started in a session of its own, and ended with everything it started.

The child is not reaped before everything it started is ended, so that its pid cannot belong to another process
meanwhile. For this reason it is started with `subprocess.Popen`: asyncio would reap it at once.
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
from outrider.system.task_groups import background_group

PIPE_SIZE = 1024 * 1024
"""The most that a pipe can hold."""
_CHUNK = 256 * 1024
_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_SIGKILL_TIMEOUT = 5.0
_LINGER = 2.0
"""Seconds in which a child that closed a pipe may exit, so that its exit is reported and not the closed pipe."""
_log = logging.getLogger("outrider.jsonrpc")


async def read_some(descriptor: int) -> bytes:
    """The next bytes, as soon as there are some; empty at the end."""
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)


def read_nowait(descriptor: int, most: int) -> bytes:
    """The bytes that can be read now, about `most` at most."""
    content = bytearray()
    while len(content) < most:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            break
        if not chunk:
            break
        content += chunk
    return bytes(content)


async def write_all(descriptor: int, content: bytes, stall: float) -> None:
    """Raises TimeoutError when nothing is read for `stall` seconds, BrokenPipeError when the pipe is closed."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            with anyio.fail_after(stall):
                await anyio.wait_writable(descriptor)


class Program(Struct, frozen=True):
    """What to start, completely: nothing is inherited from our own environment."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    """Every variable, except `OUTRIDER_CHILD`, whose value is the marker."""
    marker: str = field(default_factory=new_marker)
    """By which everything it starts is found; see `terminate_marked`."""
    max_line: int = 64 * 1024 * 1024
    """Most bytes of one line; a child that writes more is given up."""
    max_stderr: int = 64 * 1024
    """Most bytes of stderr that are kept; the last ones are."""
    write_timeout: float = 30.0
    """Seconds in which it must read some of its input, or it is given up."""
    stdin_close_timeout: float = 6.0
    """Seconds in which it may exit after its stdin was closed, before it gets SIGTERM."""
    sigterm_timeout: float = 3.0
    """Seconds in which it may exit after SIGTERM, before it gets SIGKILL."""


class SpawnedProcess(Struct, frozen=True):
    """A process and our ends of its pipes, which are non-blocking."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int


def spawn(program: Program) -> SpawnedProcess:
    """Start the program in a session of its own. Raises Refused or Unavailable when nothing was started."""
    if not program.argv:
        raise Refused("no program to start")
    pipes: list[int] = []
    try:
        for _ in range(3):
            pipes += os.pipe()
        child_stdin, stdin, stdout, child_stdout, stderr, child_stderr = pipes
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        process = subprocess.Popen(
            program.argv,
            stdin=child_stdin,
            stdout=child_stdout,
            stderr=child_stderr,
            cwd=program.cwd,
            env={**program.environ, MARKER_VARIABLE: program.marker},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        for descriptor in pipes:
            os.close(descriptor)
        raise _spawn_error(error, program) from error
    for descriptor in (child_stdin, child_stdout, child_stderr):
        os.close(descriptor)
    return SpawnedProcess(process, stdin, stdout, stderr)


def _spawn_error(error: OSError | ValueError, program: Program) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this program cannot be started: {error}")
    if error.errno in _BUSY:
        return Unavailable(f"the system cannot start more processes now: {error.strerror}")
    if not program.cwd.is_dir():
        return Refused(f"there is no folder {program.cwd} to start {program.argv[0]} in")
    return Refused(f"{program.argv[0]} was not started: {error.strerror}")


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait for its exit; the status, negative for a signal. It is not reaped, so that its pid is not reused."""
    if sys.platform == "linux":
        # The pid cannot belong to another process: this one has not been reaped.
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


async def terminate(spawned: SpawnedProcess, tree: ProcessTree, program: Program) -> None:
    """Close its stdin, wait, send SIGTERM, wait, send SIGKILL; then end what it started. The caller shields this.

    What cannot be ended is logged.
    """
    process = spawned.process
    try:
        async with background_group() as group:
            # A process that cannot write its last output does not exit.
            group.start_soon(_discard, spawned.stdout)
            group.start_soon(_discard, spawned.stderr)
            if not await _stop_in_steps(spawned, tree, program):
                _log.error("process %d does not exit", process.pid)
            await tree.terminate()
    except (Unavailable, OSError) as error:
        _log.error("what process %d started was not ended: %s", process.pid, error)
    finally:
        # Without /proc, only its process group can be ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(spawned.stdout)
        os.close(spawned.stderr)
        process.poll()


async def _stop_in_steps(spawned: SpawnedProcess, tree: ProcessTree, program: Program) -> bool:
    process = spawned.process
    steps = (
        (0, program.stdin_close_timeout),
        (signal.SIGTERM, program.sigterm_timeout),
        (signal.SIGKILL, _SIGKILL_TIMEOUT),
    )
    for number, seconds in steps:
        # Before each step, since its descendants can be recognized only while it is running.
        try:
            await anyio.to_thread.run_sync(tree.scan)
        finally:
            if not number:
                os.close(spawned.stdin)
        if number and process.returncode is None:
            os.kill(process.pid, number)
            # A stopped process handles no signal.
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
    exited = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if exited is None:
        return None
    return exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status


class Child:
    """A running child. One task reads its lines; any number of tasks may send lines."""

    def __init__(self, program: Program, spawned: SpawnedProcess) -> None:
        self.pid = spawned.process.pid
        self.marker = program.marker
        self.name = Path(program.argv[0]).name
        self._program = program
        self._process = spawned
        self._lines: deque[bytes] = deque()
        self._partial_line: list[bytes] = []
        """The parts of the incomplete line."""
        self._stderr = bytearray()
        self._sender, self._outgoing = anyio.create_memory_object_stream[bytes](0)
        self._reading = anyio.CancelScope()
        self._closed = anyio.Event()
        self._reason = ""
        self._exit: int | None = None

    async def read_line(self) -> bytes:
        """The next line, without its end. Raises ProcessExited when it is closed and every line was read."""
        while not self._lines:
            if self._closed.is_set():
                raise self.exit_error()
            await self._read()
        return self._lines.popleft()

    async def send(self, line: bytes) -> None:
        """Write a line that includes its end, after all lines before it. Raises ProcessExited when it is closed.

        A line is written whole or not at all, also when this call is cancelled. The call may return before the last
        byte is in the pipe; the next call then waits.
        """
        if self._closed.is_set():
            raise self.exit_error()
        try:
            await self._sender.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self.exit_error() from None

    @property
    def is_closed(self) -> bool:
        """Whether it has exited or was given up; some lines may not have been read yet."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Wait until it has exited or was given up."""
        await self._closed.wait()

    def exit_error(self) -> ProcessExited:
        """Why it is closed, with its exit status and the end of its stderr."""
        code = self._exit
        is_killed = code is not None and code < 0
        return ProcessExited(
            self.name,
            None if is_killed else code,
            -code if code is not None and is_killed else 0,
            self.stderr_tail(),
            self._reason or ("" if self.is_closed else "was closed"),
        )

    def stderr_tail(self) -> str:
        return self._stderr.decode(errors="replace")

    def close(self) -> None:
        """Send and receive nothing any more."""
        self._finish("was closed")
        self._sender.close()

    async def watch_exit(self) -> None:
        """Wait for its exit, and close this."""
        self._exit = await wait_for_exit(self._process.process)
        # Its last output is in the pipes. Their end is not awaited: another process may hold them open.
        self._keep_stderr(read_nowait(self._process.stderr, PIPE_SIZE))
        self._split_lines(read_nowait(self._process.stdout, PIPE_SIZE))
        self._finish("")

    async def drain_stderr(self) -> None:
        """Read stderr until it ends: a full pipe would block the child."""
        while chunk := await read_some(self._process.stderr):
            self._keep_stderr(chunk)

    async def write_lines(self) -> None:
        """Write the lines that are sent."""
        try:
            while not self._closed.is_set():
                await write_all(self._process.stdin, await self._outgoing.receive(), self._program.write_timeout)
        except TimeoutError:
            self._finish(f"has not read its input for {self._program.write_timeout:g} s")
        except BrokenPipeError:
            await self._close_after_linger("closed its input")
        except (anyio.ClosedResourceError, anyio.EndOfStream):
            # `_finish` closed the stream, so that waiting senders get an error.
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
        """Close it for this reason, unless it is closed already."""
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
            *complete, partial = rest
            self._lines.extend(complete)
            self._partial_line = [partial]
        if sum(map(len, self._partial_line)) > self._program.max_line:
            self._partial_line = []
            self._finish(f"wrote a line of more than {self._program.max_line:,} bytes")


@asynccontextmanager
async def open_child(program: Program) -> AsyncGenerator[Child]:
    """Start it in a session of its own, and end it with everything that it started when the context is left.

    First its stdin is closed, then it gets SIGTERM, then SIGKILL, each after its timeout. What it started is found by
    descent, by its session and by the marker; all of it has exited when the context is left, and no other process is
    touched. Without /proc, only its process group is ended. Raises Refused when it cannot be started, and Unavailable
    when the system has no resources for it now.
    """
    check_marker(program.marker)
    spawned = spawn(program)
    tree = ProcessTree(program.marker, spawned.process.pid)
    child = Child(program, spawned)
    try:
        async with background_group() as group:
            group.start_soon(child.watch_exit)
            group.start_soon(child.drain_stderr)
            group.start_soon(child.write_lines)
            yield child
    finally:
        child.close()
        with anyio.CancelScope(shield=True):
            await terminate(spawned, tree, program)
