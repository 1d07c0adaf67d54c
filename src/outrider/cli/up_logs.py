"""The log of a home, as people read it: its last lines, and those that are added."""

import os
from pathlib import Path
from typing import BinaryIO

import anyio
import msgspec
from msgspec import Struct

from outrider.cli.logs import format_log_line, log_path
from outrider.cli.plain import print_line
from outrider.cli.root import DONE
from outrider.core.errors import Refused

_MAX_TAIL_BYTES = 4_000_000
"""Bytes looked at for the last lines: more than a whole file of the log has."""
_LOG_POLL_INTERVAL = 0.2


class _LogLine(Struct):
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
        anyio.run(_print_lines, path, lines, is_followed, is_json)
    except KeyboardInterrupt:
        if not is_followed:
            raise
    return DONE


async def _print_lines(path: Path, lines: int, is_followed: bool, is_json: bool) -> None:
    file = _open_log(path)
    if file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        for line in file.read(size).splitlines()[-lines:] if lines else ():
            print_line(_render_log_line(line, is_json))
    while is_followed:
        file = _reopen_if_rotated(file, path, is_json)
        for line in _read_new_lines(file) if file else ():
            print_line(_render_log_line(line, is_json))
        await anyio.sleep(_LOG_POLL_INTERVAL)


def _reopen_if_rotated(file: BinaryIO | None, path: Path, is_json: bool) -> BinaryIO | None:
    """The file to go on with: a full one is moved aside and a new one begun. What is left in the old one is printed."""
    try:
        if file and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    except FileNotFoundError:
        return file
    for line in _read_new_lines(file) if file else ():
        print_line(_render_log_line(line, is_json))
    return _open_log(path)


def _read_new_lines(file: BinaryIO) -> list[bytes]:
    """Whole lines only; half of one is read again when its rest is there."""
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    file.seek(len(whole) - len(content), os.SEEK_CUR)
    return whole.splitlines()


def _open_log(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _render_log_line(line: bytes, is_json: bool) -> str:
    text = line.decode("utf-8", "replace")
    if is_json:
        return text
    try:
        found = msgspec.json.decode(line, type=_LogLine)
    except ValueError:
        return text
    last = found.traceback.rstrip().rpartition("\n")[2]
    message = f"{found.message} ({last})" if last else found.message
    return format_log_line(found.at.replace("T", " ").partition(".")[0], found.level, found.logger, message)
