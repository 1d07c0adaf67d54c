"""Output of commands: lines, JSON and tables on stdout, warnings on stderr.

Text that came from elsewhere reaches a terminal without control characters.
"""

import os
import sys
import time
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from outrider.core.errors import Refused
from outrider.core.events import Json
from outrider.core.store_port import Session, session_status
from outrider.core.text import clip
from outrider.core.turn_result import TurnResult

_ALLOWED_CONTROLS = {"\n", "\t"}


def printable(text: str) -> str:
    """The text without control characters, which a terminal would obey, and lone surrogates, which no encoding has."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in _ALLOWED_CONTROLS or unicodedata.category(c) not in ("Cc", "Cs"))


def one_line(text: str, longest: int = 0) -> str:
    """The text on one line, clipped to `longest` characters unless that is 0."""
    clean = printable(text)
    return clip(clean, longest or len(clean))


@contextmanager
def checked_stdout() -> Generator[None]:
    """Raise Refused when stdout cannot be written to, and BrokenPipeError when its reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # The rest of the buffer would fail again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Refused(f"standard output cannot be written to: {error.strerror}") from error


def print_line(text: str) -> None:
    """Write one line to stdout and flush it."""
    with checked_stdout():
        sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")
        sys.stdout.flush()


def print_json(value: object, *, is_pretty: bool = False) -> None:
    """Print a value as JSON: one line for a stream of them, indented for a single document."""
    print_line(encode_json(value, is_pretty=is_pretty))


def encode_json(value: object, *, is_pretty: bool = False) -> str:
    content = msgspec.json.encode(value)
    return (msgspec.json.format(content, indent=2) if is_pretty else content).decode()


def warn(text: str) -> None:
    """Write one line to stderr."""
    with suppress(OSError):  # Nobody reads a stderr that cannot be written to.
        sys.stderr.write(f"outrider: {one_line(text)}\n")
        sys.stderr.flush()


def check_text(text: str, what: str) -> str:
    """Return the text. Raises Refused when it is not valid UTF-8, as a command-line argument may not be."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused(f"{what} is not valid UTF-8 text") from None
    return text


def render_turn_result(result: TurnResult, session: Session, tasks: Sequence[str] = ()) -> Json:
    """The last JSON line of a turn. `tasks` are the ids of tasks that still run."""
    return {"type": "finished", "name": session.name, **msgspec.to_builtins(result), "tasks": list(tasks)}


def render_session(session: Session) -> Json:
    return {**msgspec.to_builtins(session), "state": session_status(session)}


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def format_time(at: int) -> str:
    """Local time of a moment in milliseconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def time_ago(at: int, now: int) -> str:
    """The time between two moments in milliseconds, in the largest unit that fits."""
    seconds = max(0, (now - at) // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def format_table(rows: Sequence[Sequence[str]], *, indent: str = "", width: int = 0) -> list[str]:
    """Rows as lines with aligned columns.

    With `width`, the last column is clipped to fit, or left out where fewer than ten characters remain for it.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    if width:
        room = width - len(indent) - sum(widths[:-1]) - 2 * (len(widths) - 1)
        rows = [(*row[:-1], one_line(row[-1], room) if room > 10 else "") for row in rows]
    return [
        indent + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
