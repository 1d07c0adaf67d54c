"""Sanitizing of text for the terminal: removes escape sequences and control characters of models and tools. Pure."""

import re
import unicodedata

from outrider.core.text import one_line

_SEQUENCES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # OSC … BEL or ST: titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c|$)"  # DCS, SOS, PM, APC … ST
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, the cursor, modes
    r"|\x1b[ -/]*[0-~]?"  # every other escape
)
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def sanitize(text: str) -> str:
    """The text without escape sequences, control characters and direction overrides; line ends become `\\n`."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCES.sub("", text)
    text = _LINE_ENDS.sub("\n", text)
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def sanitize_line(text: str, longest: int = 100) -> str:
    """The sanitized text on one line that is at most `longest` cells wide."""
    flat = one_line(sanitize(text[: longest * 8]))
    if cell_width(flat) <= longest and len(text) <= longest * 8:
        return flat
    return split_at_width(flat, longest - 1)[0] + "…"


def cell_width(text: str) -> int:
    """The width of a text in terminal cells."""
    return len(text) if text.isascii() else sum(_char_width(char) for char in text)


def split_at_width(text: str, cells: int) -> tuple[str, str]:
    """The beginning that fits into this many cells, and the rest."""
    if text.isascii():
        return text[:cells], text[cells:]
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > cells:
            return text[:index], text[index:]
    return text, ""


def wrap(text: str, cells: int) -> list[str]:
    """The lines of a text, wrapped to this many cells, between words if possible."""
    lines: list[str] = []
    for line in text.expandtabs(4).split("\n"):
        part, rest = _break_line(line, max(2, cells))
        lines.append(part)
        while rest:
            part, rest = _break_line(rest, max(2, cells))
            lines.append(part)
    return lines


def _break_line(line: str, cells: int) -> tuple[str, str]:
    part, rest = split_at_width(line, cells)
    space = part.rfind(" ")
    if not rest or rest[0] == " " or space < len(part) // 2:
        return part, rest.removeprefix(" ")
    return part[:space], part[space + 1 :] + rest


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
