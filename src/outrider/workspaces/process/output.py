"""What a command has said so far: read from its file, never held whole."""

import os
from pathlib import Path

from outrider.core.errors import Refused
from outrider.workspaces.process.folder import Files


def tail(folder: Path, most: int = 4000) -> bytes:
    """The last bytes."""
    return _range(folder, max(0, size(folder) - most), most)


def read(folder: Path, start: int, most: int) -> bytes:
    """At most so many bytes from there on; empty at the end."""
    return _range(folder, start, most)


def size(folder: Path) -> int:
    found = _status(folder)
    return found.st_size if found else 0


def changed(folder: Path) -> float:
    """When it last said something, in seconds of the clock; when it was started, if it has said nothing."""
    return (_status(folder) or os.stat(folder)).st_mtime


def _range(folder: Path, start: int, most: int) -> bytes:
    if not _status(folder):
        return b""
    parts: list[bytes] = []
    with open(Files(folder).output, "rb", buffering=0) as file:
        while most > 0 and (part := os.pread(file.fileno(), most, start)):
            parts.append(part)
            start, most = start + len(part), most - len(part)
    return b"".join(parts)


def _status(folder: Path) -> os.stat_result | None:
    """None when the supervisor has not come so far."""
    try:
        return os.stat(Files(folder).output)
    except FileNotFoundError:
        if not folder.exists():
            raise Refused(f"the output of task {folder.name} is no longer kept") from None
        return None
