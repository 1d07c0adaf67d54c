"""Words for a terminal or a pipe: one line where one is due, never a control character that came from elsewhere."""

import os
import sys
import unicodedata
from contextlib import suppress

from outrider.core.errors import Refused

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
