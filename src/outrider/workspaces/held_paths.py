"""Held paths: a path resolved once and kept open, so that what was checked is what is used.

Another program that can write above a path can replace it by a link or another folder between a check and its use. An
open descriptor cannot be replaced.
"""

import os
import re
import shlex
import stat
import sys
from collections.abc import Sequence

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.types import WorkspaceIdentity
from outrider.system.processes import boot_id

_OPEN = (os.O_PATH if sys.platform == "linux" else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC

KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
"""Nothing in these can be a workspace, or be made visible to a command: a sandbox has its own."""


class FileIdentity(Struct, frozen=True):
    """A file or folder, whatever its path."""

    device: int
    inode: int


class PathChanged(Refused):
    """What is at a resolved path is a link now, or another folder."""


class HeldPath(Struct, frozen=True):
    """A resolved path and an open descriptor of what is there, with O_PATH."""

    path: str
    descriptor: int
    identity: FileIdentity
    above: tuple[FileIdentity, ...] = ()
    """The folders that the path goes through, from the root folder on."""

    def close(self) -> None:
        os.close(self.descriptor)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(os.fstat(self.descriptor).st_mode)


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
    program: tuple[str, ...] = ()
    """Paths below the root that Outrider itself runs from, relative to it. They stay read-only whatever is granted."""
    network: bool = False

    def close(self) -> None:
        for each in (self.root, self.cwd, *self.write, *self.read):
            each.close()


def identity_of_status(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino)


def hold_path(path: str) -> HeldPath:
    """Open a resolved path without following a link anywhere.

    Raises PathChanged when it is not resolved any more, and Refused when it cannot be opened.
    """
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    names = _names(path)
    descriptor, above = os.open("/", _OPEN | os.O_DIRECTORY), list[FileIdentity]()
    try:
        status = os.fstat(descriptor)
        for number, name in enumerate(names, 1):
            above.append(identity_of_status(status))
            inner = os.open(name, _OPEN, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            status = os.fstat(descriptor)
            if stat.S_ISLNK(status.st_mode):
                raise PathChanged(f"{path} cannot be used: /{'/'.join(names[:number])} has become a link")
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"{path} cannot be opened: {error.strerror}") from error
    except Refused:
        os.close(descriptor)
        raise
    return HeldPath(path, descriptor, identity_of_status(status), tuple(above))


def hold_workspace(path: str, identity: WorkspaceIdentity | None = None, session: str = "") -> HeldPath:
    """Open the folder that a session works in. Raises PathChanged when another folder, or a link, is at its path.

    Without an identity, any folder at that path is the right one. The name or id of the session is for the message.
    """
    try:
        held = hold_path(path)
    except PathChanged:
        raise _workspace_changed(path, session) from None
    except Refused as error:
        raise _workspace_gone(path, session) from error
    if not held.is_folder:
        held.close()
        raise _workspace_gone(path, session)
    if identity and not _is_same_folder(identity, held.identity):
        held.close()
        raise _workspace_changed(path, session)
    return held


def workspace_identity(path: str, identity: WorkspaceIdentity | None = None, session: str = "") -> WorkspaceIdentity:
    """Which folder is at this path now. Raises what `hold_workspace` raises."""
    held = hold_workspace(path, identity, session)
    held.close()
    return WorkspaceIdentity(held.identity.device, held.identity.inode, boot_id())


def _is_same_folder(identity: WorkspaceIdentity, current: FileIdentity) -> bool:
    """After a reboot, only the inode is compared: a device may have another number then."""
    if identity.inode != current.inode:
        return False
    return identity.device == current.device or identity.boot != boot_id()


def _workspace_changed(path: str, session: str) -> PathChanged:
    return PathChanged(
        f"{path} is not the folder that this session works in: it was moved or replaced, or a link leads there now. "
        f"{_how_to_continue(session)}"
    )


def _workspace_gone(path: str, session: str) -> Refused:
    return Refused(f"there is no folder {path} to work in: it was moved or deleted. {_how_to_continue(session)}")


def _how_to_continue(session: str) -> str:
    name = shlex.quote(session) if session else "NAME"
    return (
        "Put the folder back, or continue the session in the folder that you mean: "
        f"outrider run --session {name} --workspace FOLDER …"
    )


def _names(path: str) -> Sequence[str]:
    names = [name for name in path.split("/") if name]
    if any(name in (".", "..") for name in names):
        raise Refused(f"{path} is not a resolved path")
    return names


def is_within(path: str, folder: str) -> bool:
    """Whether a resolved path is a folder, or below it, by name."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def mount_points() -> list[str]:
    """Where file systems are mounted, where the system lists them."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            points = [line.split()[4] for line in file]
    except OSError:
        return []
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), point)) for point in points]


def _identity_at(path: str) -> FileIdentity | None:
    """None for what is gone, or cannot be looked at by this account."""
    try:
        return identity_of_status(os.stat(path))
    except OSError:
        return None


class HiddenFiles:
    """Outrider's own files and folders, recognised by what they are, whatever path or hard link leads to them."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._paths = paths
        self._tops: frozenset[FileIdentity] | None = None
        self._files: frozenset[FileIdentity] | None = None

    def includes(self, status: os.stat_result) -> bool:
        if not self._paths:
            return False
        if self._tops is None:
            self._tops = frozenset(identity for _, identity in self.tops())
        identity = identity_of_status(status)
        if identity in self._tops:
            return True
        if not stat.S_ISREG(status.st_mode) or status.st_nlink < 2:
            return False
        if self._files is None:
            self._files = frozenset(self._linked_files())
        return identity in self._files

    def tops(self) -> tuple[tuple[str, FileIdentity], ...]:
        """Those that exist, with resolved paths."""
        real = [os.path.realpath(path) for path in self._paths]
        return tuple((path, identity_of_status(os.stat(path))) for path in real if os.path.exists(path))

    def check_contents(self, writable: Sequence[HeldPath], readable: Sequence[HeldPath]) -> None:
        """Raises Refused for a folder that contains one of them, by whatever name: another mount, or one inside it.

        In a readable folder, those that are below its path are covered, so that they may be there.
        """
        tops, mounts = self.tops(), mount_points()
        inner, above = {identity for _, identity in tops}, set[FileIdentity]()
        for path, _ in tops:
            top = hold_path(path)
            top.close()
            above.update(top.above)
        for held, can_cover in [*((each, False) for each in writable), *((each, True) for each in readable)]:
            is_covered = can_cover and any(is_within(path, held.path) for path, _ in tops)
            forbidden = above - {held.identity} if is_covered else above
            if held.identity in forbidden:
                raise Refused(
                    f"{held.path} contains Outrider's own files, which a command could change; use another folder"
                )
            for mount in mounts:
                if is_within(mount, held.path) and mount != held.path and _identity_at(mount) in inner | forbidden:
                    raise Refused(
                        f"{held.path} contains Outrider's own files, through the mount {mount}; use another folder"
                    )

    def _linked_files(self) -> Sequence[FileIdentity]:
        """The files inside that have another name somewhere. Workspaces inside are not Outrider's own."""
        linked: list[FileIdentity] = []
        for top, _ in self.tops():
            for folder, folders, files in os.walk(top):
                if folder == top and "workspaces" in folders:
                    folders.remove("workspaces")
                for name in files:
                    try:
                        status = os.lstat(os.path.join(folder, name))
                    except FileNotFoundError:
                        continue
                    if status.st_nlink > 1:
                        linked.append(identity_of_status(status))
        return linked
