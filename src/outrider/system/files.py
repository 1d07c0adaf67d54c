"""outrider.system.files."""

import errno
import os
import tempfile
from pathlib import Path

from outrider.core.errors import Refused, Unavailable


def explain_os_error(error: OSError, home: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(home)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
        return not_writable(home, error.strerror or str(error))
    return Unavailable(f"the disk with {home} reported an error ({error.strerror or error}); check the disk")


def disk_full(home: Path) -> Unavailable:
    return Unavailable(f"the disk with {home} is full, and nothing more can be saved; free some space, then try again")


def not_writable(home: Path, why: str) -> Refused:
    return Refused(
        f"{home} cannot be written to ({why}); "
        "make it a folder that you can write to, or name another home with OUTRIDER_HOME"
    )


def touch_private(path: Path) -> None:
    """An empty file only its owner can read, unless there is one; SQLite gives its side files the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def fsync_folder(folder: Path) -> None:
    """Make the names in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file in one step, durably: a reader sees the old content or the new. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    fsync_folder(path.parent)
