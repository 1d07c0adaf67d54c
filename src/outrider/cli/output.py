"""Words for a terminal or a pipe: one line where one is due, never a control character that came from elsewhere.

Events as JSON lines: what `--json` prints, the same words as in the journal.
"""

import os
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from outrider.core.errors import Refused
from outrider.core.events import Json
from outrider.core.store_port import SearchHit, Session, session_status
from outrider.core.turn_result import TurnResult

_ALLOWED_CONTROLS = {"\n", "\t"}


def printable(text: str) -> str:
    """Without control characters, which a terminal would obey, and without lone surrogates, which no pipe takes."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in _ALLOWED_CONTROLS or unicodedata.category(c) not in ("Cc", "Cs"))


def one_line(text: str, longest: int = 0) -> str:
    """On one line, cut to this many characters."""
    flat = " ".join(printable(text).split())
    return flat if not longest or len(flat) <= longest else flat[: max(1, longest - 1)].rstrip() + "…"


def print_line(text: str) -> None:
    """To stdout, at once. Raises Refused when it cannot be written, and BrokenPipeError when nobody reads any more."""
    try:
        sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still buffered would fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Refused(f"standard output cannot be written to: {error.strerror}") from error


def warn(text: str) -> None:
    """One line to stderr, beside the reply."""
    with suppress(OSError):  # a stderr that cannot be written to has nobody behind it to be told
        sys.stderr.write(f"outrider: {one_line(text)}\n")
        sys.stderr.flush()


def check_text(text: str, what: str) -> str:
    """The same text. Raises Refused when it is not valid UTF-8, as a file name or an argument may be."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused(f"{what} is not valid UTF-8 text") from None
    return text


def render_turn_result(finished: TurnResult, session: Session, tasks: Sequence[str] = ()) -> Json:
    """What a turn came to: the last line of its stream. `tasks` are those that go on without it."""
    return {"type": "finished", "name": session.name, **msgspec.to_builtins(finished), "tasks": list(tasks)}


def render_session(session: Session) -> Json:
    return {**msgspec.to_builtins(session), "state": session_status(session)}


def render_search_hit(found: SearchHit) -> Json:
    return msgspec.to_builtins(found)


def encode_json(value: Mapping[str, object] | list[Json], *, is_pretty: bool = False) -> str:
    content = msgspec.json.encode(value)
    return (msgspec.json.format(content, indent=2) if is_pretty else content).decode()


def format_time(at: int) -> str:
    """Local time, from milliseconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def time_ago(at: int, now: int) -> str:
    """How long since, in the largest unit that fits; both in milliseconds."""
    seconds = max(0, (now - at) // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
