"""Texts for people and models: cut to a length, the closest of several names, and numbers with their units."""

import re
from collections.abc import Iterable


def one_line(text: str) -> str:
    """The text with every run of white space replaced by one space."""
    return " ".join(text.split())


def clip(text: str, max_length: int) -> str:
    """The text on one line of at most this many characters."""
    line = one_line(text)
    return line if len(line) <= max_length else line[: max(0, max_length - 1)].rstrip() + "…"


def head_and_tail(text: str, head: int, tail: int, hint: str = "") -> str:
    """The text, or its beginning and end with a line between them that says how much is missing."""
    if len(text) <= head + tail:
        return text
    how = f"; {hint}" if hint else ""
    gap = f"[… {len(text) - head - tail:,} of {len(text):,} characters left out{how} …]"
    return f"{text[:head]}\n{gap}\n{text[len(text) - tail :]}"


def closest_match(word: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """The name that was probably meant, or an empty string."""
    import difflib  # Slow to import, and only needed after a mistake.

    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=likeness)), "")


def replace_lone_surrogates(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


# Printable for Python, but drawn as nothing or as a blank: fillers, joiners and variation selectors.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def escape_invisible(text: str, keep: str = "\n\t") -> str:
    """The text with every character that cannot be seen, or that a terminal would obey, as an escape like `\\u202e`.

    Characters in `keep` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or is_visible(char) else _escape(char) for char in text)


def is_visible(char: str) -> bool:
    return char.isprintable() and not _BLANK.match(char)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_line(text: str, max_length: int) -> str:
    """The text on one line of at most this many characters, with what cannot be seen as escapes."""
    return clip(escape_invisible(text), max_length)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 line`, `2 lines`, `1,200 matches`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def size(count: int) -> str:
    """A number of bytes: `12 bytes`, `4.0 KiB`, `1.5 MiB`."""
    if count < 1_024:
        return plural(count, "byte")
    return f"{count / 1_024:.1f} KiB" if count < 1_048_576 else f"{count / 1_048_576:.1f} MiB"


def duration(milliseconds: int) -> str:
    """A length of time: `1.5 s`, `40 s`, `3 min`, `2 h 5 min`."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
