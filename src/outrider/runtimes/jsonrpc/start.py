"""Starting a child exactly as told, with three pipes to it."""

import errno
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.jsonrpc.orphans import MARKER_VARIABLE, new_marker

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
