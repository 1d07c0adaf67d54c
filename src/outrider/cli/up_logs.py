"""The log of a home, as people read it: its last lines, and those that are added."""

import os
from pathlib import Path
from typing import BinaryIO

import anyio
import msgspec
from msgspec import Struct

from outrider.cli.logs import human_line, log_path
from outrider.cli.plain import say
from outrider.cli.root import DONE
from outrider.core.errors import Refused

_TAIL = 4_000_000
"""Bytes looked at for the last lines: more than a whole file of the log has."""
_LOOK = 0.2


class _Line(Struct):
    at: str = ""
    level: str = ""
    logger: str = ""
    message: str = ""
    session: str = ""
    traceback: str = ""


def print_logs(home: Path, lines: int, *, is_followed: bool, is_json: bool) -> int:
    path = log_path(home)
    if not path.is_file() and not is_followed:
        raise Refused(f"there is no log yet at {path}")
    try:
        anyio.run(_print, path, lines, is_followed, is_json)
    except KeyboardInterrupt:
        if not is_followed:
            raise
    return DONE


async def _print(path: Path, lines: int, is_followed: bool, is_json: bool) -> None:
    file = _open(path)
    if file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        for line in file.read(size).splitlines()[-lines:] if lines else ():
            say(_shown(line, is_json))
    while is_followed:
        file = _newest(file, path, is_json)
        for line in _added(file) if file else ():
            say(_shown(line, is_json))
        await anyio.sleep(_LOOK)


def _newest(file: BinaryIO | None, path: Path, is_json: bool) -> BinaryIO | None:
    """The file to go on with: a full one is moved aside and a new one begun. What is left in the old one is printed."""
    try:
        if file and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    except FileNotFoundError:
        return file
    for line in _added(file) if file else ():
        say(_shown(line, is_json))
    return _open(path)


def _added(file: BinaryIO) -> list[bytes]:
    """Whole lines only; half of one is read again when its rest is there."""
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    file.seek(len(whole) - len(content), os.SEEK_CUR)
    return whole.splitlines()


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _shown(line: bytes, is_json: bool) -> str:
    text = line.decode("utf-8", "replace")
    if is_json:
        return text
    try:
        found = msgspec.json.decode(line, type=_Line)
    except ValueError:
        return text
    last = found.traceback.rstrip().rpartition("\n")[2]
    message = f"{found.message} ({last})" if last else found.message
    return human_line(found.at.replace("T", " ").partition(".")[0], found.level, found.logger, message)
