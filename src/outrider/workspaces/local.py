"""A local folder as a workspace. No path leads out of it, whatever links it contains, nor to Outrider's own files."""

import os
import secrets
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal

from outrider.core.errors import Refused
from outrider.core.ports import FileListing, WorkspaceItem
from outrider.core.types import WorkspaceIdentity
from outrider.workspaces.git_protection import ProtectedFiles
from outrider.workspaces.held_paths import HiddenFiles, hold_workspace
from outrider.workspaces.program_files import ProgramFiles
from outrider.workspaces.safe_paths import (
    OPEN_FOLDER,
    SafePath,
    hidden_error,
    missing_error,
    open_path,
    printable_name,
    printable_path,
)

MAX_READ = 50 * 1024 * 1024
MAX_WRITE = 10 * 1024 * 1024
MAX_ITEMS = 50_000
MAX_DEPTH = 40

SKIPPED = frozenset(
    {".git", ".hg", ".svn", ".jj", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache"}
    | {".ruff_cache", ".hypothesis", ".tox", ".nox", ".cache", ".gradle", ".terraform", ".next", ".DS_Store"}
)
"""Folders that are not searched."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def open_local(root: Path) -> "LocalWorkspace":
    """Open a folder as a workspace. Raises Refused when it does not exist."""
    real = os.path.realpath(root)
    hold_workspace(real).close()
    return LocalWorkspace(real)


class LocalWorkspace:
    """Reads and writes below one folder. Thread-safe.

    Each call opens the folder, checks that it is the one with this identity, and reaches everything else from there.
    Nothing stays open between two calls.
    """

    def __init__(
        self,
        root: str,
        identity: WorkspaceIdentity | None = None,
        hidden: Sequence[str] = (),
        max_items: int = MAX_ITEMS,
        protection: ProtectedFiles | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self.root = root
        self._identity = identity
        self._hidden = HiddenFiles(hidden)
        self._protection = protection
        self._program = ProgramFiles(program)
        self._max_items = max_items
        self._write_lock = Lock()

    @contextmanager
    def _open(self, path: str, make: bool = False) -> Generator[SafePath, None, None]:
        with (
            closing(hold_workspace(self.root, self._identity)) as root,
            open_path(root, _checked_path(path), make, self._hidden) as safe_path,
        ):
            yield safe_path

    def _require_own(self, safe_path: SafePath, status: os.stat_result) -> None:
        """Raises Refused for Outrider's own files: a hard link, or the file itself, may be in the workspace."""
        if self._hidden.includes(status):
            raise hidden_error(safe_path.path)

    def read(self, path: str) -> bytes:
        with self.open_read(path) as file:
            content = file.read(MAX_READ + 1)
        if len(content) > MAX_READ:
            raise Refused(
                f"{printable_path(path)} is longer than {MAX_READ >> 20} MiB; read it in parts with offset and limit"
            )
        return content

    def open_read(self, path: str) -> BinaryIO:
        with self._open(path) as safe_path:
            _require_regular(safe_path, _status(safe_path))
            # The file may have been replaced since the check, so the open file is checked again.
            descriptor = os.open(safe_path.name, _READ, dir_fd=safe_path.folder)
            try:
                status = os.fstat(descriptor)
                _require_regular(safe_path, status)
                self._require_own(safe_path, status)
            except Refused:
                os.close(descriptor)
                raise
            return os.fdopen(descriptor, "rb")

    def write_need(self, path: str) -> str:
        if self._protection is None:
            return ""
        with closing(hold_workspace(self.root, self._identity)) as root:
            try:
                with open_path(root, _checked_path(path), hidden=self._hidden) as safe_path:
                    names = safe_path.names
            except Refused:  # a folder on the way does not exist yet
                names = tuple(part for part in path.removeprefix(f"{self.root}/").split("/") if part not in ("", "."))
            return self._protection.write_need(root, "/".join(names))

    def write(self, path: str, content: bytes, before: bytes | None = None, granted: Sequence[str] = ()) -> None:
        if len(content) > MAX_WRITE:
            raise Refused(f"{len(content):,} bytes are too many for one file; the limit is {MAX_WRITE >> 20} MiB")
        with self._write_lock, self._open(path, make=before is None) as safe_path:
            self._require_allowed(safe_path, granted)
            old = _writable(safe_path)
            if old:
                self._require_own(safe_path, old)
            temporary = f".outrider-{secrets.token_hex(8)}.tmp"
            try:
                _write_new(safe_path.folder, temporary, content, old)
                if before is not None and _content(safe_path) != before:
                    raise Refused(f"{printable_path(path)} has been changed by another program; read it again")
                # A rename replaces the name, never the target of a link with that name.
                os.rename(temporary, safe_path.name, src_dir_fd=safe_path.folder, dst_dir_fd=safe_path.folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=safe_path.folder)
                raise
            os.fsync(safe_path.folder)

    def _require_allowed(self, safe_path: SafePath, granted: Sequence[str]) -> None:
        """Raises Refused for a protected path. Links may have changed since the question: the open folder decides."""
        path = "/".join(safe_path.names)
        with closing(hold_workspace(self.root, self._identity)) as root:
            if any(f"{path}/".startswith(f"{each}/") for each in self._program.below(root)):
                raise Refused(f"{safe_path.path} is a part of the program of Outrider, which stays as it is")
            need = self._protection.write_need(root, path) if self._protection else ""
        if need and need not in granted:
            raise Refused(f"{safe_path.path} is git's own; a person must allow {need} first")

    def list(self, path: str, depth: int = 1) -> FileListing:
        with self._open(path) as safe_path:
            if safe_path.name and not stat.S_ISDIR(_status(safe_path).st_mode):
                raise Refused(f"{safe_path.path} is not a folder")
            return self._listing(safe_path, depth)

    def walk(self, path: str) -> FileListing:
        with self._open(path) as safe_path:
            if safe_path.name and not stat.S_ISDIR(_status(safe_path).st_mode):
                status = _status(safe_path)
                _require_regular(safe_path, status)
                self._require_own(safe_path, status)
                return FileListing([WorkspaceItem(safe_path.path, "file", status.st_size)])
            listing = self._listing(safe_path, MAX_DEPTH)
            level = MAX_DEPTH + (0 if safe_path.path == "." else 1 + safe_path.path.count("/"))
        unseen = any(item.kind == "folder" and item.path.count("/") + 1 == level for item in listing.items)
        return FileListing([item for item in listing.items if item.kind == "file"], listing.cut or unseen)

    def _listing(self, safe_path: SafePath, depth: int) -> FileListing:
        top = os.open(safe_path.name or ".", OPEN_FOLDER, dir_fd=safe_path.folder)
        try:
            self._require_own(safe_path, os.fstat(top))
            above = "" if safe_path.path == "." else f"{safe_path.path}/"
            items = list(islice(self._items(top, above, min(depth, MAX_DEPTH)), self._max_items + 1))
        finally:
            os.close(top)
        cut = len(items) > self._max_items or None in items
        return FileListing([item for item in items[: self._max_items] if item is not None], cut)

    def _items(self, folder: int, above: str, depth: int) -> Iterator[WorkspaceItem | None]:
        """The items in an open folder and below it; None where some are missing."""
        with os.scandir(folder) as scan:
            entries = nsmallest(self._max_items + 1, scan, key=lambda entry: entry.name)
        for entry in entries:
            path = above + printable_name(entry.name)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = _kind(status.st_mode)
            yield WorkspaceItem(path, kind, status.st_size)
            if kind == "folder" and depth > 1 and entry.name not in SKIPPED:
                yield from self._below(folder, entry.name, f"{path}/", depth - 1)

    def _below(self, folder: int, name: str, above: str, depth: int) -> Iterator[WorkspaceItem | None]:
        try:
            inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except OSError:  # removed, replaced or forbidden since: the listing says that it is incomplete
            yield None
            return
        try:
            if self._hidden.includes(os.fstat(inner)):
                yield None
                return
            yield from self._items(inner, above, depth)
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
        raise Refused("a path cannot contain a NUL character")
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise Refused("this path is not valid text") from None
    if length > 4_096:
        raise Refused(f"{printable_path(path)} is too long for a path")
    return path


def _status(safe_path: SafePath) -> os.stat_result:
    try:
        return os.stat(safe_path.name or ".", dir_fd=safe_path.folder, follow_symlinks=False)
    except FileNotFoundError:
        raise missing_error(safe_path) from None


def _require_regular(safe_path: SafePath, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused(f"{safe_path.path} is a folder; list it instead")
    if stat.S_ISLNK(status.st_mode):
        raise Refused(f"{safe_path.path} changed while it was being opened; try again")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{safe_path.path} is not a regular file (but a pipe, socket or device)")


def _writable(safe_path: SafePath) -> os.stat_result | None:
    if not safe_path.name:
        raise Refused(f"{safe_path.path} is a folder")
    try:
        status = os.stat(safe_path.name, dir_fd=safe_path.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_regular(safe_path, status)
    if not status.st_mode & 0o222:
        raise Refused(f"{safe_path.path} is write-protected")
    return status


def _content(safe_path: SafePath) -> bytes:
    with os.fdopen(os.open(safe_path.name, _READ, dir_fd=safe_path.folder), "rb") as file:
        _require_regular(safe_path, os.fstat(file.fileno()))
        return file.read(MAX_READ + 1)


def _write_new(folder: int, name: str, content: bytes, old: os.stat_result | None) -> None:
    """Create a file, durably, with the mode and owner of the old one if there is one."""
    with os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb") as file:
        if old:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
