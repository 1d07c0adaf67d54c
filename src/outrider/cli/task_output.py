"""What a task's command wrote, passed on to stdout: byte by byte into a pipe, harmless on a terminal."""

import codecs
import sys
from collections.abc import Callable

from outrider.cli.plain import printable
from outrider.core.errors import Refused
from outrider.core.ports import Commands
from outrider.core.tasks import Task

_CHUNK_BYTES = 64 * 1024
_MAX_TAIL_BYTES = 1024 * 1024
"""Bytes looked through for the last lines."""


def stdout_writer() -> Callable[[bytes], None]:
    """Something that passes output on. A terminal gets no control character; a letter may come in two pieces."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    is_terminal = sys.stdout.isatty()

    def write(content: bytes) -> None:
        try:
            if is_terminal:
                sys.stdout.write(printable(decode(content).replace("\r\n", "\n")))
            else:
                sys.stdout.buffer.write(content)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Refused(f"standard output cannot be written to: {error.strerror}") from error

    return write


def last_lines(commands: Commands, task: Task, lines: int) -> tuple[bytes, int]:
    """The last lines of an output, and where it ended when they were read."""
    end = commands.size(task)
    start = max(0, end - _MAX_TAIL_BYTES)
    content = commands.read(task, start, end - start)
    return b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b"", start + len(content)


def copy_output(commands: Commands, task: Task, start: int, write: Callable[[bytes], None]) -> int:
    """Pass on all that was written since; where that ends."""
    while part := commands.read(task, start, _CHUNK_BYTES):
        write(part)
        start += len(part)
    return start
