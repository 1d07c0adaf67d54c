"""Paths below one open folder, opened without ever leaving it.

Each component is opened relative to the folder before it, and the kernel follows no links, so that replacing a file
by a link in the meantime gains nothing. Outrider's own folders are not entered.
"""

import errno
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.text import closest_match
from outrider.workspaces.held_paths import HeldPath, HiddenFiles

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_MAX_LINKS = 40
_MAX_DEPTH = 64
"""The most open folders on the way to a path. Deeper paths are refused."""
_MAX_COMPARED = 5_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPED = re.compile(rb"\\x(0[1-9a-f]|1[0-9a-f]|7f|[89a-f][0-9a-f])")
"""What `printable_name` writes. It contains no NUL, dot or slash, so that decoding it cannot lead out."""


class SafePath(Struct, frozen=True):
    """A name in an open folder. It may not exist; an empty one means the folder itself."""

    folder: int
    name: str
    path: str
    """The printable path relative to the root, with links resolved."""
    names: tuple[str, ...] = ()
    """The components of that path as they are on disk."""


def printable_name(name: str) -> str:
    """A file name as one line of text, whatever bytes it contains."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def printable_path(path: str, max_length: int = 200) -> str:
    """A path from a model, safe to include in a message."""
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", path.encode("utf-8", "replace").decode())
    return text if len(text) <= max_length else f"{text[:max_length]}…"


@contextmanager
def open_path(
    root: HeldPath, path: str, make: bool = False, hidden: HiddenFiles | None = None
) -> Generator[SafePath, None, None]:
    """Resolve a path, valid inside the context. `make` creates missing folders.

    Raises Refused when the path leads out of the root, through too many links, through a file, or into a hidden folder.
    """
    walker = _PathWalker(root, path, hidden or HiddenFiles())
    try:
        yield walker.walk(make)
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        walker.close()


class _PathWalker:
    """The open folders on the way to a path, starting with the root."""

    def __init__(self, root: HeldPath, path: str, hidden: HiddenFiles) -> None:
        self._root, self._path = root.path, path
        self._held, self._hidden = root, hidden
        self._remaining = list(reversed(_parts(root.path, path, path)))
        self._names: list[str] = []
        self._links = 0
        self._folders: list[int] = []

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def walk(self, make: bool) -> SafePath:
        self._enter(os.open(".", OPEN_FOLDER, dir_fd=self._held.descriptor))
        while self._remaining:
            name = self._remaining.pop()
            if name == "..":
                self._ascend()
                continue
            name = _on_disk(self._folders[-1], name)
            target = _read_link(self._folders[-1], name)
            if target is not None:
                self._follow(target)
            elif not self._remaining:
                return self._safe_path(name)
            else:
                self._descend(name, make)
        return self._safe_path("")

    def _safe_path(self, name: str) -> SafePath:
        names = [*self._names, name] if name else self._names
        return SafePath(self._folders[-1], name, "/".join(map(printable_name, names)) or ".", tuple(names))

    def _ascend(self) -> None:
        if len(self._folders) == 1:
            raise _outside_error(self._root, self._path)
        os.close(self._folders.pop())
        self._names.pop()

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise Refused(f"{printable_path(self._path)} goes through too many links, maybe in a loop")
        self._remaining += reversed(_parts(self._root, target, self._path))
        if target.startswith("/"):
            while len(self._folders) > 1:
                self._ascend()

    def _descend(self, name: str, make: bool) -> None:
        if len(self._folders) >= _MAX_DEPTH:
            raise Refused(f"{printable_path(self._path)} is nested too deeply; the limit is {_MAX_DEPTH} folders")
        folder = self._folders[-1]
        try:
            descriptor = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise missing_error(self._safe_path(name), "folder") from None
            _make_folder(folder, name)
            descriptor = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except NotADirectoryError:
            raise Refused(f"{self._safe_path(name).path} is not a folder") from None
        self._enter(descriptor)
        self._names.append(name)

    def _enter(self, folder: int) -> None:
        self._folders.append(folder)
        if self._hidden.includes(os.fstat(folder)):
            raise hidden_error(self._path)


def missing_error(safe_path: SafePath, kind: str = "file") -> Refused:
    """The error for a path that does not exist, with a similar name if there is one."""
    with os.scandir(safe_path.folder) as entries:
        names = [printable_name(entry.name) for entry in islice(entries, _MAX_COMPARED)]
    missing = printable_name(safe_path.name)
    same = (name for name in names if name.lower() == missing.lower())
    alike = next(same, "") or closest_match(missing[:255], names, 0.6)
    above = safe_path.path.rpartition("/")[0]
    suggestion = "/".join(filter(None, [above, alike])) if alike else ""
    return Refused(
        f"no {kind} called {printable_path(safe_path.path)}" + (f"; did you mean {suggestion}?" if suggestion else "")
    )


def hidden_error(path: str) -> Refused:
    return Refused(f"{printable_path(path)} is Outrider's own and stays hidden from tools")


def refusal(error: OSError, path: str) -> Refused:
    """An OS error as a text for a model."""
    name = printable_path(path)
    match error.errno:
        case errno.ENOENT:
            return Refused(f"{name} does not exist")
        case errno.EACCES | errno.EPERM:
            return Refused(f"no permission for {name}")
        case errno.ELOOP | errno.EMLINK:
            return Refused(f"{name} changed while it was being opened; try again")
        case errno.ENAMETOOLONG:
            return Refused(f"{name} has a name that is too long")
        case errno.ENOSPC | errno.EDQUOT:
            return Refused(f"the disk is full: {name} was not written")
        case errno.EROFS:
            return Refused(f"{name} is on a read-only disk")
        case errno.EISDIR:
            return Refused(f"{name} is a folder")
        case errno.ENOTDIR:
            return Refused(f"{name} is not a folder")
        case _:
            return Refused(f"{name}: {error.strerror or error}")


def _parts(root: str, path: str, original: str) -> Sequence[str]:
    if path.startswith("/"):
        inside = root.rstrip("/")
        if path != inside and not path.startswith(f"{inside}/"):
            raise _outside_error(root, original)
        path = path[len(inside) :]
    return [part for part in path.split("/") if part not in ("", ".")]


def _outside_error(root: str, path: str) -> Refused:
    return Refused(f"{printable_path(path)} leads out of the workspace; use paths inside {root}")


def _on_disk(folder: int, name: str) -> str:
    """The name itself, or the name with other bytes that `printable_name` writes like this, if only that exists."""
    decoded = os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), name.encode()))
    if decoded != name and not _exists(folder, name) and _exists(folder, decoded):
        return decoded
    return name


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_link(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _make_folder(folder: int, name: str) -> None:
    with suppress(FileExistsError):  # another program has just created it; opening it shows whether it is a folder
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
