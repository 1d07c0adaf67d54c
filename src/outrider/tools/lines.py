"""Some lines of a file of any length, read without loading the rest."""

import codecs
import os
from typing import BinaryIO

from msgspec import Struct

from outrider.core.errors import Refused

_CHUNK = 1 << 20
_MAX_LINE = 8_000
"""Bytes of one line that are shown."""
_MAX_SKIPPED = 1 << 30
"""Bytes that are skipped to come to a line."""
_MAX_COUNTED = 64 << 20
"""Bytes after the part that are read to tell how many lines there are."""


class LineRange(Struct, frozen=True):
    """Consecutive lines of a file."""

    lines: list[str]
    first: int
    total: int | None
    """Lines of the whole file; None when it is too long to count them."""
    remark: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


def read_lines(file: BinaryIO, first: int, limit: int, room: int) -> LineRange:
    """Up to `limit` lines from line `first` on, ending early where they would take more than `room` characters."""
    skipped = _skip(file, first - 1)
    if skipped < first - 1:
        return LineRange([], first, skipped + (1 if _ends_open(file) else 0))
    raws: list[tuple[bytes, int]] = []
    while len(raws) < limit and room > 0:
        raw, more = _read_line(file)
        if not raw:
            return _decode_range(raws, first, first - 1 + len(raws))
        room -= len(raw)
        if room < 0 and raws:
            file.seek(-len(raw) - more, os.SEEK_CUR)
            break
        raws.append((raw, more))
    rest = _count_lines(file)
    return _decode_range(raws, first, None if rest is None else first - 1 + len(raws) + rest)


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
    # A line that was cut may end in the middle of a character: that much is left out.
    return codecs.getincrementaldecoder(encoding)().decode(raw, final=not more)


def _skip(file: BinaryIO, lines: int) -> int:
    skipped, read = 0, 0
    while skipped < lines:
        chunk = file.read(_CHUNK)
        if not chunk:
            return skipped
        read += len(chunk)
        if read > _MAX_SKIPPED:
            raise Refused(f"line {lines + 1} is further in than the first {_MAX_SKIPPED >> 30} GiB of this file")
        found = chunk.count(b"\n")
        if skipped + found >= lines:
            at = -1
            for _ in range(lines - skipped):
                at = chunk.index(b"\n", at + 1)
            file.seek(at + 1 - len(chunk), os.SEEK_CUR)
            return lines
        skipped += found
    return skipped


def _read_line(file: BinaryIO) -> tuple[bytes, int]:
    """The next line, or its beginning and how many bytes of it follow."""
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
    """Whether the file's last line lacks its line end."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
