"""A folder of this machine as a workspace."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal

from outrider.core.errors import Refused
from outrider.core.ports import FileListing, WorkspaceItem
from outrider.workspaces.safe_paths import (
    OPEN_FOLDER,
    SafePath,
    missing_error,
    open_path,
    printable_name,
    printable_path,
)

LONGEST_READ = 50 * 1024 * 1024
LONGEST_WRITE = 10 * 1024 * 1024
MOST_ITEMS = 50_000
MAX_DEPTH = 40

SKIPPED = frozenset(
    {".git", ".hg", ".svn", ".jj", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache"}
    | {".ruff_cache", ".hypothesis", ".tox", ".nox", ".cache", ".gradle", ".terraform", ".next", ".DS_Store"}
)
"""Folders nobody wants searched."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def open_local(root: Path) -> "LocalWorkspace":
    """The workspace in this folder. Raises Refused when there is no such folder."""
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        raise Refused(f"there is no folder {root} to work in")
    return LocalWorkspace(real)


class LocalWorkspace:
    """Reads and writes below one folder. Holds nothing open between two calls; may be used from several threads."""

    def __init__(self, root: str, most_items: int = MOST_ITEMS) -> None:
        self.root = root
        self._max_items = most_items
        self._write_lock = Lock()

    def read(self, path: str) -> bytes:
        with self.open_read(path) as file:
            content = file.read(LONGEST_READ + 1)
        if len(content) > LONGEST_READ:
            raise Refused(
                f"{printable_path(path)} is longer than {LONGEST_READ >> 20} MiB; read it in parts, with an offset and a limit"
            )
        return content

    def open_read(self, path: str) -> BinaryIO:
        with open_path(self.root, _checked_path(path)) as spot:
            _require_regular(spot, _status(spot))
            # What was looked at may have been swapped since: the open file itself is asked again.
            descriptor = os.open(spot.name, _READ, dir_fd=spot.folder)
            try:
                _require_regular(spot, os.fstat(descriptor))
            except Refused:
                os.close(descriptor)
                raise
            return os.fdopen(descriptor, "rb")

    def write(self, path: str, content: bytes, before: bytes | None = None) -> None:
        if len(content) > LONGEST_WRITE:
            raise Refused(f"{len(content):,} bytes are too many for one file; {LONGEST_WRITE >> 20} MiB are the limit")
        with self._write_lock, open_path(self.root, _checked_path(path), make=before is None) as spot:
            old = _writable(spot)
            temporary = f".outrider-{secrets.token_hex(8)}.tmp"
            try:
                _write_new(spot.folder, temporary, content, old)
                if before is not None and _content(spot) != before:
                    raise Refused(f"{printable_path(path)} was changed meanwhile by someone else; read it again")
                # A rename replaces a name, never what a link at that name points to.
                os.rename(temporary, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=spot.folder)
                raise
            os.fsync(spot.folder)

    def list(self, path: str, depth: int = 1) -> FileListing:
        with open_path(self.root, _checked_path(path)) as spot:
            if spot.name and not stat.S_ISDIR(_status(spot).st_mode):
                raise Refused(f"{spot.path} is not a folder")
            return self._listing(spot, depth)

    def walk(self, path: str) -> FileListing:
        with open_path(self.root, _checked_path(path)) as spot:
            if spot.name and not stat.S_ISDIR(_status(spot).st_mode):
                status = _status(spot)
                _require_regular(spot, status)
                return FileListing([WorkspaceItem(spot.path, "file", status.st_size)])
            whole = self._listing(spot, MAX_DEPTH)
            level = MAX_DEPTH + (0 if spot.path == "." else 1 + spot.path.count("/"))
        unseen = any(item.kind == "folder" and item.path.count("/") + 1 == level for item in whole.items)
        return FileListing([item for item in whole.items if item.kind == "file"], whole.cut or unseen)

    def _listing(self, spot: SafePath, depth: int) -> FileListing:
        top = os.open(spot.name or ".", OPEN_FOLDER, dir_fd=spot.folder)
        try:
            above = "" if spot.path == "." else f"{spot.path}/"
            items = list(islice(_items(top, above, min(depth, MAX_DEPTH), self._max_items), self._max_items + 1))
        finally:
            os.close(top)
        cut = len(items) > self._max_items or None in items
        return FileListing([item for item in items[: self._max_items] if item is not None], cut)


def _items(folder: int, above: str, depth: int, most: int) -> Iterator[WorkspaceItem | None]:
    """What is in an open folder and below it; None where something had to be left out."""
    with os.scandir(folder) as found:
        entries = nsmallest(most + 1, found, key=lambda entry: entry.name)
    for entry in entries:
        path = above + printable_name(entry.name)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        kind = _kind(status.st_mode)
        yield WorkspaceItem(path, kind, status.st_size)
        if kind == "folder" and depth > 1 and entry.name not in SKIPPED:
            yield from _below(folder, entry.name, f"{path}/", depth - 1, most)


def _below(folder: int, name: str, above: str, depth: int, most: int) -> Iterator[WorkspaceItem | None]:
    try:
        inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
    except OSError:  # gone, swapped or forbidden meanwhile: part of the listing is missing, and that is said
        yield None
        return
    try:
        yield from _items(inner, above, depth, most)
    finally:
        os.close(inner)


def _kind(mode: int) -> Literal["file", "folder", "link", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def _checked_path(path: str) -> str:
    if "\0" in path:
        raise Refused("a path cannot hold a NUL character")
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise Refused("this path is not valid text") from None
    if length > 4_096:
        raise Refused(f"{printable_path(path)} is too long for a path")
    return path


def _status(spot: SafePath) -> os.stat_result:
    try:
        return os.stat(spot.name or ".", dir_fd=spot.folder, follow_symlinks=False)
    except FileNotFoundError:
        raise missing_error(spot) from None


def _require_regular(spot: SafePath, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused(f"{spot.path} is a folder; list it instead")
    if stat.S_ISLNK(status.st_mode):
        raise Refused(f"{spot.path} changed while it was being opened; try again")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{spot.path} is no ordinary file (a pipe, socket or device) and is left alone")


def _writable(spot: SafePath) -> os.stat_result | None:
    if not spot.name:
        raise Refused(f"{spot.path} is a folder")
    try:
        status = os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_regular(spot, status)
    if not status.st_mode & 0o222:
        raise Refused(f"{spot.path} is write-protected")
    return status


def _content(spot: SafePath) -> bytes:
    with os.fdopen(os.open(spot.name, _READ, dir_fd=spot.folder), "rb") as file:
        _require_regular(spot, os.fstat(file.fileno()))
        return file.read(LONGEST_READ + 1)


def _write_new(folder: int, name: str, content: bytes, old: os.stat_result | None) -> None:
    """A new file that is safely on disk, with the old one's mode and owner where there is one."""
    with os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb") as file:
        if old:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
