"""What a command has said so far: read from its file, never held whole."""

import os
from pathlib import Path

from outrider.core.errors import Refused
from outrider.workspaces.process.folder import Files


def tail(folder: Path, most: int = 4000) -> bytes:
    """The last bytes."""
    descriptor = _open(folder)
    try:
        end = os.fstat(descriptor).st_size
        return _range(descriptor, max(0, end - most), most)
    finally:
        os.close(descriptor)


def read(folder: Path, start: int, most: int) -> bytes:
    """At most so many bytes from there on; empty at the end."""
    descriptor = _open(folder)
    try:
        return _range(descriptor, start, most)
    finally:
        os.close(descriptor)


def size(folder: Path) -> int:
    return _status(folder).st_size


def changed(folder: Path) -> float:
    """When it last said something, in seconds of the clock; when it was started, if it has said nothing."""
    return _status(folder).st_mtime


def _range(descriptor: int, start: int, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := os.pread(descriptor, most, start)):
        parts.append(part)
        start, most = start + len(part), most - len(part)
    return b"".join(parts)


def _open(folder: Path) -> int:
    try:
        return os.open(Files(folder).output, os.O_RDONLY)
    except FileNotFoundError:
        raise _gone(folder) from None


def _status(folder: Path) -> os.stat_result:
    try:
        return os.stat(Files(folder).output)
    except FileNotFoundError:
        raise _gone(folder) from None


def _gone(folder: Path) -> Refused:
    return Refused(f"the output of task {folder.name} is no longer kept")
