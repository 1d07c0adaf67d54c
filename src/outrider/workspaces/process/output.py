"""What a command has said so far: read from its file, never held whole."""

import os
from pathlib import Path

from outrider.core.errors import Refused
from outrider.workspaces.process.folder import TaskFiles


def tail_output(folder: Path, most: int = 4000) -> bytes:
    """The last bytes."""
    return _read_range(folder, max(0, output_size(folder) - most), most)


def read_output(folder: Path, start: int, most: int) -> bytes:
    """At most so many bytes from there on; empty at the end."""
    return _read_range(folder, start, most)


def output_size(folder: Path) -> int:
    found = _stat_output(folder)
    return found.st_size if found else 0


def last_output_time(folder: Path) -> float:
    """When it last said something, in seconds of the clock; when it was started, if it has said nothing."""
    return (_stat_output(folder) or os.stat(folder)).st_mtime


def _read_range(folder: Path, start: int, most: int) -> bytes:
    if not _stat_output(folder):
        return b""
    parts: list[bytes] = []
    with open(TaskFiles(folder).output, "rb", buffering=0) as file:
        while most > 0 and (part := os.pread(file.fileno(), most, start)):
            parts.append(part)
            start, most = start + len(part), most - len(part)
    return b"".join(parts)


def _stat_output(folder: Path) -> os.stat_result | None:
    """None when the supervisor has not come so far."""
    try:
        return os.stat(TaskFiles(folder).output)
    except FileNotFoundError:
        if not folder.exists():
            raise Refused(f"the output of task {folder.name} is no longer kept") from None
        return None
