"""Held paths: a path resolved once and kept open, so that what was checked is what is used.

Whoever can write above a path can replace it by a link or another folder between a check and its use. An open
descriptor cannot be replaced.
"""

import os
import stat
from collections.abc import Sequence

from msgspec import Struct

from outrider.core.errors import Refused


class FileIdentity(Struct, frozen=True):
    """A file or folder, whatever its path."""

    device: int
    inode: int


class HeldPath(Struct, frozen=True):
    """A resolved path and an open O_PATH descriptor of what is there."""

    path: str
    descriptor: int
    identity: FileIdentity

    def close(self) -> None:
        os.close(self.descriptor)


class HeldPaths(Struct, frozen=True):
    """The parts of the disk that one command sees."""

    root: HeldPath
    cwd: HeldPath
    write: tuple[HeldPath, ...] = ()
    read: tuple[HeldPath, ...] = ()
    hidden: tuple[tuple[str, FileIdentity], ...] = ()
    """Outrider's own files and folders. They stay hidden inside a visible folder; a workspace may be inside one."""
    protected: tuple[str, ...] = ()
    """Paths below the root that stay read-only, relative to it."""
    network: bool = False

    def close(self) -> None:
        for each in (self.root, self.cwd, *self.write, *self.read):
            each.close()


def identity_of_status(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino)


def hold_path(path: str) -> HeldPath:
    """Open a resolved path without following a link anywhere. Raises Refused when it is not resolved any more."""
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        for name in _names(path):
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"{path} cannot be opened: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        os.close(descriptor)
        raise Refused(f"{path} has become a link since it was resolved")
    return HeldPath(path, descriptor, identity_of_status(status))


def _names(path: str) -> Sequence[str]:
    names = [name for name in path.split("/") if name]
    if any(name in (".", "..") for name in names):
        raise Refused(f"{path} is not a resolved path")
    return names


def hold_paths(
    root: str,
    cwd: str,
    write: Sequence[str] = (),
    read: Sequence[str] = (),
    hidden: Sequence[str] = (),
    network: bool = False,
) -> HeldPaths:
    """Resolve and hold all that one command sees. Raises Refused when a path does not exist or cannot be granted."""
    own = [os.path.realpath(path) for path in hidden if os.path.exists(path)]
    return HeldPaths(
        root=hold_path(_resolve(root)),
        cwd=hold_path(_resolve(cwd)),
        write=tuple(map(_hold_granted, write)),
        read=tuple(map(_hold_granted, read)),
        hidden=tuple((path, identity_of_status(os.stat(path))) for path in own),
        network=network,
    )


def _resolve(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        raise Refused(f"{path} cannot be made visible to a command: {error.strerror}") from error


def _hold_granted(path: str) -> HeldPath:
    held = hold_path(_resolve(path))
    mode = os.fstat(held.descriptor).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        held.close()
        raise Refused(f"{path} is neither a folder nor a file; sockets and devices cannot be granted")
    return held
