"""Writing to a command that waits for words. Works from any process, and never waits for the command to read."""

import errno
import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

from outrider.core.errors import Refused
from outrider.workspaces.process.end import poll_exit
from outrider.workspaces.process.folder import TaskFiles, read_record

MAX_WRITE = 64 * 1024
_ATOMIC = 4096
"""What a pipe takes whole or not at all on every system we know; the standard promises 512."""
_PIPE_SIZE = 1024 * 1024
_OPEN_ATTEMPTS = 400
_OPEN_PAUSE = 0.005


def write_stdin(folder: Path, content: bytes) -> None:
    """Hand it over. Raises Refused when nobody reads, and when what was written before still waits to be read."""
    if len(content) > MAX_WRITE:
        raise Refused(f"{len(content):,} bytes are too many at once; {MAX_WRITE:,} are the limit, or use a file")
    descriptor = _open_pipe(folder, TaskFiles(folder).stdin)
    try:
        _enlarge_pipe(descriptor)
        for start in range(0, len(content), _ATOMIC):
            try:
                os.write(descriptor, content[start : start + _ATOMIC])
            except BlockingIOError:
                raise Refused(_pipe_full_message(start)) from None
            except BrokenPipeError:
                raise Refused(f"the command of task {folder.name} does not read its input any more") from None
    finally:
        os.close(descriptor)


def close_stdin(folder: Path) -> None:
    """Let the command see the end of its input. Where that is closed already, nothing happens."""
    files = TaskFiles(folder)
    if not files.hold.exists():
        return
    # To open it is the message: the holder of `stdin` waits for nothing else.
    with suppress(Refused):
        os.close(_open_pipe(folder, files.hold))
    files.stdin.unlink(missing_ok=True)
    files.hold.unlink(missing_ok=True)


def _open_pipe(folder: Path, path: Path) -> int:
    """A named pipe, once its reader is there: a supervisor needs a moment to come so far."""
    for _ in range(_OPEN_ATTEMPTS):
        is_running = bool(read_record(folder).first_process)
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise Refused(f"the input of task {folder.name} is closed; nothing can be written to it") from None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if (is_running and path.name == "stdin") or poll_exit(folder, None):
            break
        Event().wait(_OPEN_PAUSE)
    raise Refused(f"the command of task {folder.name} does not read its input any more")


def _enlarge_pipe(descriptor: int) -> None:
    if sys.platform == "linux":
        # Nice to have; an unprivileged process may have used up its share.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _pipe_full_message(taken: int) -> str:
    fate = f"the first {taken:,} bytes were taken, the rest was not" if taken else "nothing of this was taken"
    return f"the command has not read what was written before; {fate}"
