"""Atomic and private files, and the errors of the disk in words for people."""

import errno
import os
from pathlib import Path

from outrider.core.errors import Refused, Unavailable

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_atomic(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file, durably: after a crash it holds the old content or the new, whole.

    No other user can read the new content before the file has its mode. Raises OSError, and then leaves no other file.
    """
    temporary = path.with_name(f".outrider-{os.urandom(8).hex()}.tmp")
    descriptor = os.open(temporary, _CREATE, 0o600)
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


def write_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read. Raises FileExistsError when there is one of this name."""
    with open(os.open(path, _CREATE, 0o600), "wb") as file:
        file.write(content)


def touch_private(path: Path) -> None:
    """Create an empty, private file unless it exists. SQLite gives its side files the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def create_marker(path: Path) -> None:
    """Create an empty, private file, and its folder, unless they exist."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    touch_private(path)


def fsync_folder(folder: Path) -> None:
    """Make the names in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_UNUSABLE_PATH = {
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
}
"""Errors that stay until a person chooses another path or changes this one. A folder in /proc cannot be created."""


def explain_os_error(error: OSError, home: Path) -> Exception:
    """The Refused or Unavailable that says what a person can do about this error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(home)
    if error.errno in _UNUSABLE_PATH:
        return not_writable(home, error.strerror or str(error))
    return Unavailable(f"the disk with {home} reported an error ({error.strerror or error}); check the disk")


def disk_full(home: Path) -> Unavailable:
    return Unavailable(f"the disk with {home} is full, and nothing more can be saved; free some space, then try again")


def not_writable(home: Path, why: str) -> Refused:
    return Refused(
        f"{home} cannot be written to ({why}); "
        "make it a folder that you can write to, or name another home with OUTRIDER_HOME"
    )
