"""Text files: lossless decoding and encoding, replacing a passage, and reading some lines of a long file."""

import codecs
import os
from collections.abc import Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.text import closest_match

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAX_COMPARED = 3_000
"""Lines of a file that are compared to find one that is similar to a passage."""
_EXCERPT_LINES = 12


class TextFile(Struct, frozen=True):
    """A decoded file. `render_text` returns exactly the bytes it came from."""

    body: str
    encoding: str = "utf-8"
    bom: bytes = b""

    @property
    def remark(self) -> str:
        """What is unusual about its encoding; usually empty."""
        if self.encoding == "latin-1":
            return "not UTF-8, read as Latin-1"
        return "" if self.encoding == "utf-8" else self.encoding.upper()


def bom_of(raw: bytes) -> tuple[bytes, str]:
    """The byte order mark at the beginning, and its encoding; empty and `utf-8` without one."""
    return next(((bom, encoding) for bom, encoding in _BOMS if raw.startswith(bom)), (b"", "utf-8"))


def parse_text(raw: bytes) -> TextFile:
    """Decode by the byte order mark, as UTF-8, or as Latin-1, which can decode any bytes."""
    bom, encoding = bom_of(raw)
    try:
        return TextFile(raw[len(bom) :].decode(encoding), encoding, bom)
    except UnicodeDecodeError:
        return TextFile(raw.decode("latin-1"), "latin-1")


def render_text(text: TextFile) -> bytes:
    """Encode a file. Raises Refused when its encoding lacks a character."""
    try:
        return text.bom + text.body.encode(text.encoding)
    except UnicodeEncodeError as error:
        bad = text.body[error.start : error.start + 1].encode("utf-8", "backslashreplace").decode()
        raise Refused(f"the character {bad} cannot be written in this file's encoding, {text.encoding}") from None


def replace_passage(text: TextFile, old: str, new: str, every: bool) -> tuple[TextFile, int]:
    """The text with one passage replaced (or every one), and how many. Line ends stay as they are in the file.

    Raises Refused, with the most similar lines, when the passage does not occur exactly once.
    """
    if not old:
        raise Refused("old is empty; to create a file or replace all of it, use write")
    body, old, new, crlf = _with_same_line_ends(text.body, old, new)
    if old == new:
        raise Refused("old and new are the same; nothing would change")
    count = body.count(old)
    if not count:
        raise Refused(_missing_message(body, old))
    if count > 1 and not every:
        raise Refused(
            f"old occurs {count} times, at lines {_line_numbers(body, old)}; "
            "include more context to select one of them, or set all"
        )
    body = body.replace(old, new)
    return msgspec.structs.replace(text, body=body.replace("\n", "\r\n") if crlf else body), count


def is_already_replaced(text: TextFile, old: str, new: str) -> bool:
    """Whether the replacement seems to be done: the text has the new passage and not the old one."""
    body, old, new, _ = _with_same_line_ends(text.body, old, new)
    if old and old in new:
        return new in body and all(old not in part for part in body.split(new))
    return bool(old) and new in body and old not in body


def _with_same_line_ends(body: str, old: str, new: str) -> tuple[str, str, str, bool]:
    """Body, old and new with the same line ends, and whether to change the body's back to CRLF."""
    ends, crlf = body.count("\n"), body.count("\r\n")
    if crlf and crlf < ends:  # mixed line ends: use those of the passage
        windows = _unix(old).replace("\n", "\r\n")
        if old not in body and windows in body:
            return body, windows, _unix(new).replace("\n", "\r\n"), False
        return body, old, new, False
    return _unix(body) if crlf else body, _unix(old), _unix(new), bool(crlf)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _line_numbers(body: str, old: str) -> str:
    lines: list[str] = []
    at = body.find(old)
    while at >= 0 and len(lines) < 5:
        lines.append(str(body.count("\n", 0, at) + 1))
        at = body.find(old, at + len(old))
    return ", ".join(lines) + (" …" if at >= 0 else "")


def _missing_message(body: str, old: str) -> str:
    lines, passage = body.split("\n"), old.strip("\n").split("\n")
    bare = [line.strip() for line in passage]
    stripped = [line.strip() for line in lines]
    for at in range(len(lines) - len(passage) + 1):
        if stripped[at] == bare[0] and stripped[at : at + len(bare)] == bare:
            return "old is not in the file; only its white space differs from\n" + _excerpt(lines, at, len(passage))
    first = next((line for line in bare if line), "")[:200]
    near = closest_match(first, [line[:200] for line in stripped[:_MAX_COMPARED] if line], 0.5)
    if not near:
        return "old is not in the file, nor anything similar; read the file again"
    at = next(number for number, line in enumerate(stripped) if line[:200] == near)
    return "old is not in the file; the closest is\n" + _excerpt(lines, at, len(passage))


def _excerpt(lines: Sequence[str], at: int, count: int) -> str:
    chosen = lines[at : at + min(count + 2, _EXCERPT_LINES)]
    head = f"lines {at + 1}–{at + len(chosen)}:"
    return "\n".join([head, *(line.rstrip("\r")[:300] for line in chosen)])


_CHUNK = 1 << 20
_MAX_LINE = 8_000
"""Bytes of one line that are returned."""
_MAX_SKIPPED = 1 << 30
"""Bytes that are skipped to reach a line."""
_MAX_COUNTED = 64 << 20
"""Bytes after the range that are read to count the lines."""


class LineRange(Struct, frozen=True):
    """Consecutive lines of a file."""

    lines: list[str]
    first: int
    total: int | None
    """Lines of the file; None when it is too long to count."""
    remark: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


def read_lines(file: BinaryIO, first: int, limit: int, max_bytes: int) -> LineRange:
    """Up to `limit` lines from line `first` on, and up to about `max_bytes` bytes."""
    skipped = _skip(file, first - 1)
    if skipped < first - 1:
        return LineRange([], first, skipped + (1 if _ends_open(file) else 0))
    raws: list[tuple[bytes, int]] = []
    while len(raws) < limit and max_bytes > 0:
        raw, more = _read_line(file)
        if not raw:
            return _decode_range(raws, first, first - 1 + len(raws))
        max_bytes -= len(raw)
        if max_bytes < 0 and raws:
            file.seek(-len(raw) - more, os.SEEK_CUR)
            break
        raws.append((raw, more))
    following = _count_lines(file)
    return _decode_range(raws, first, None if following is None else first - 1 + len(raws) + following)


def _decode_range(raws: list[tuple[bytes, int]], first: int, total: int | None) -> LineRange:
    remark, encoding = "", "utf-8"
    try:
        for raw, more in raws:
            _decode(raw, more, encoding)
    except UnicodeDecodeError:
        remark, encoding = "not UTF-8, read as Latin-1", "latin-1"
    lines: list[str] = []
    for raw, more in raws:
        text = _decode(raw, more, encoding)
        if text.endswith("\r\n"):
            remark = remark or "CRLF line ends"
        text = text.rstrip("\r\n") if not more else text
        lines.append(f"{text} [… {more:,} more bytes in this line]" if more else text)
    return LineRange(lines, first, total, remark)


def _decode(raw: bytes, more: int, encoding: str) -> str:
    # A line that was cut may end in the middle of a character, which is dropped.
    return codecs.getincrementaldecoder(encoding)().decode(raw, final=not more)


def _skip(file: BinaryIO, lines: int) -> int:
    skipped, read = 0, 0
    while skipped < lines:
        chunk = file.read(_CHUNK)
        if not chunk:
            return skipped
        read += len(chunk)
        if read > _MAX_SKIPPED:
            raise Refused(f"line {lines + 1} is beyond the first {_MAX_SKIPPED >> 30} GiB of this file")
        count = chunk.count(b"\n")
        if skipped + count >= lines:
            at = -1
            for _ in range(lines - skipped):
                at = chunk.index(b"\n", at + 1)
            file.seek(at + 1 - len(chunk), os.SEEK_CUR)
            return lines
        skipped += count
    return skipped


def _read_line(file: BinaryIO) -> tuple[bytes, int]:
    """The next line, or its beginning and the number of bytes that follow in it."""
    raw = file.readline(_MAX_LINE)
    if len(raw) < _MAX_LINE or raw.endswith(b"\n"):
        return raw, 0
    more = 0
    while piece := file.readline(_CHUNK):
        more += len(piece)
        if piece.endswith(b"\n") or more > _MAX_SKIPPED:
            break
    return raw, more


def _count_lines(file: BinaryIO) -> int | None:
    count, read, last = 0, 0, b""
    while chunk := file.read(_CHUNK):
        read += len(chunk)
        if read > _MAX_COUNTED:
            return None
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last not in (b"", b"\n"))


def _ends_open(file: BinaryIO) -> bool:
    """Whether the last line of the file has no line end."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
