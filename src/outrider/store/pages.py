"""Reads rows straight from the pages of a SQLite file, for when the tree that leads to them is torn.

Only what a salvage needs: records in the b-trees of tables without rowid, as in https://sqlite.org/fileformat2.html.
"""

from collections.abc import Iterator
from os import SEEK_END
from typing import BinaryIO

from msgspec import Struct

PAGE_SIZE = 4096
_LEAF, _INNER = 0x0A, 0x02
_MAX_LOCAL = (PAGE_SIZE - 12) * 64 // 255 - 23
_MIN_LOCAL = (PAGE_SIZE - 12) * 32 // 255 - 23
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)

PageValue = None | int | str | bytes


class PageEntry(Struct, frozen=True):
    """A row of `entries` as it lies in its page."""

    session: str
    seq: int
    at: int
    key: str | None
    body: bytes


def raw_entries(file: BinaryIO) -> Iterator[PageEntry]:
    """Every row that looks like an entry, in no order. Pages that were given up may repeat one."""
    for row in raw_rows(file):
        match row:
            case [str(session), int(seq), int(at), str(), str() | None as key, bytes(body)]:
                yield PageEntry(session, seq, at, key, body)
            case _:
                pass


def raw_rows(file: BinaryIO) -> Iterator[list[PageValue]]:
    """Every row of every table and index, in no order, those in pages that were given up among them."""
    number = 0
    while True:
        number += 1
        file.seek((number - 1) * PAGE_SIZE)
        page = file.read(PAGE_SIZE)
        if len(page) < PAGE_SIZE:
            return
        for start in _cells(page):
            if row := _record(file, page, start):
                yield row


def _cells(page: bytes) -> list[int]:
    """Where the payloads of a page begin; none when it is no page of such a tree."""
    if page[0] not in (_LEAF, _INNER):
        return []
    header, before = (8, 0) if page[0] == _LEAF else (12, 4)
    count = int.from_bytes(page[3:5], "big")
    if header + 2 * count > PAGE_SIZE:
        return []
    places = (header + 2 * index for index in range(count))
    return [int.from_bytes(page[place : place + 2], "big") + before for place in places]


def _record(file: BinaryIO, page: bytes, start: int) -> list[PageValue]:
    try:
        size, start = _varint(page, start)
        return _values(_payload(file, page, start, size))
    except (IndexError, ValueError):
        return []


def _payload(file: BinaryIO, page: bytes, start: int, size: int) -> bytes:
    if size > file.seek(0, SEEK_END):
        raise ValueError("this is larger than its file")
    if size <= _MAX_LOCAL:
        return _exactly(page[start : start + size], size)
    local = _MIN_LOCAL + (size - _MIN_LOCAL) % (PAGE_SIZE - 4)
    local = local if local <= _MAX_LOCAL else _MIN_LOCAL
    payload = bytearray(_exactly(page[start : start + local], local))
    following = int.from_bytes(_exactly(page[start + local : start + local + 4], 4), "big")
    while len(payload) < size:
        if not following:
            raise ValueError("this payload has no end")
        file.seek((following - 1) * PAGE_SIZE)
        piece = _exactly(file.read(PAGE_SIZE), PAGE_SIZE)
        following = int.from_bytes(piece[:4], "big")
        payload += piece[4 : 4 + size - len(payload)]
    return bytes(payload)


def _values(payload: bytes) -> list[PageValue]:
    end, place = _varint(payload, 0)
    kinds: list[int] = []
    while place < end:
        kind, place = _varint(payload, place)
        kinds.append(kind)
    values: list[PageValue] = []
    for kind in kinds:
        width = _width(kind)
        values.append(_value(kind, _exactly(payload[place : place + width], width)))
        place += width
    return values


def _width(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return _WIDTHS[kind] if kind < 7 else 0


def _value(kind: int, content: bytes) -> PageValue:
    if kind == 0:
        return None
    if kind < 7:
        return int.from_bytes(content, "big", signed=True)
    if kind in (8, 9):
        return kind - 8
    if kind < 12:
        raise ValueError("no such kind of value in a store of ours")
    return content.decode() if kind % 2 else content


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number of up to eight groups of seven bits, and where it ends; a ninth would be larger than any file."""
    value = 0
    for offset in range(8):
        byte = content[place + offset]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + offset + 1
    raise ValueError("this number is too large to be a size")


def _exactly(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ValueError("this ends too early")
    return content
