"""Git repositories in a workspace: which of their files commands and file tools may not change unasked.

Git runs hooks, and programs that its settings name, for the person who uses the repository later, outside any sandbox.
So these stay as they are: the settings, the hooks wherever the settings say they are, and the files that tell git where
to look for both. All else in a repository can be written, so that committing, branching and merging work.

Every path is reached from the open folder of the workspace, component by component, and no link is followed. What is
behind a link is not protected, except for the folder that a link named `.git` leads to; nor are repositories that
commands create for themselves.
"""

import os
import re
import secrets
import stat
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import PurePosixPath
from threading import Lock
from typing import Literal

from msgspec import Struct

from outrider.workspaces.held_paths import FileIdentity, HeldPath, identity_of_status

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_FOLDERS = 20_000
_MAX_ENTRIES = 20_000
"""Names that are read of one folder."""
_MAX_DEPTH = 12
_MAX_REPOSITORIES = 50
_MAX_PATHS = 200
"""Each is held open while a command is started."""
_MAX_TEXT = 256 * 1024
"""Bytes of a settings file that are searched for the paths of others."""
_MAX_INCLUDES = 8
_SKIPPED = frozenset({"node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", ".cache", ".mypy_cache"})
_BARE = frozenset({"HEAD", "objects", "refs"})
"""What git takes for a repository in a folder of any name."""
_SETTING = re.compile(r"\s*(hookspath|path)\s*=\s*(.*)", re.IGNORECASE)
_SECTION = re.compile(r'\s*\[\s*([\w.-]+)[^\]"]*(?:"(?:[^"\\]|\\.)*")?[^\]]*\](.*)')


class Repository(Struct, frozen=True):
    """A git repository in a workspace. Paths are relative to the workspace; empty for the workspace itself."""

    git: str
    """Its `.git`, a folder or a file that names one; for a bare repository, its folder."""
    worktree: str | None = None
    """The folder with its files; None for a bare repository."""
    link: str = ""
    """Where `.git` leads, as it is written there, if it is a link."""


class MissingPath(Struct, frozen=True):
    """A path that settings name and where nothing is yet, relative to the workspace."""

    path: str
    is_folder: bool


def find_repositories(root: int) -> tuple[Repository, ...]:
    """The repositories in this open folder, those in folders near the top first. Bounded."""
    found: list[Repository] = []
    waiting, count = deque([("", 0)]), 0
    while waiting and count < _MAX_FOLDERS and len(found) < _MAX_REPOSITORIES:
        path, depth = waiting.popleft()
        count += 1
        names = _names(root, path)
        if ".git" in names:
            git = _join(path, ".git")
            found.append(Repository(git, path, _read_link(root, git) if names[".git"] is None else ""))
        if names.keys() >= _BARE and names["objects"] and names["refs"]:
            found.append(Repository(path))
            continue
        if depth < _MAX_DEPTH:
            inner = sorted(name for name, is_folder in names.items() if is_folder)
            waiting.extend((_join(path, name), depth + 1) for name in inner if name not in _SKIPPED | {".git"})
    return tuple(found)


def protected_paths(root: int, repositories: Sequence[Repository] | None = None) -> tuple[str, ...]:
    """The paths below this open folder that stay read-only, relative to it. Each exists, and none leads through a link.

    Settings and the folder for hooks are created, empty, where a repository has none: nobody else can then create them.
    """
    repositories = find_repositories(root) if repositories is None else repositories
    return tuple(path for path in _all_paths(root, repositories) if isinstance(path, str))


def missing_paths(root: int, repositories: Sequence[Repository]) -> tuple[MissingPath, ...]:
    """The folders of hooks and the files with settings below this open folder that git would obey if they existed."""
    return tuple(path for path in _all_paths(root, repositories) if isinstance(path, MissingPath))


def _all_paths(root: int, repositories: Sequence[Repository]) -> tuple[str | MissingPath, ...]:
    found = (path for repository in repositories for path in _paths_of(root, repository))
    paths: dict[str | MissingPath, None] = {}
    for path in found:
        paths.setdefault(path)
        if len(paths) >= _MAX_PATHS:
            break
    return tuple(paths)


def git_folder_of(path: str, repositories: Sequence[Repository]) -> str | None:
    """The `.git` of the repository whose own files include this path, relative to the workspace; None for others."""
    folded = path.casefold()
    for repository in repositories:
        git = repository.git.casefold()
        is_own = is_below(folded, git) if repository.worktree is not None else _is_bare_own(folded, git)
        if is_own:
            return repository.git
    return None


def is_below(path: str, folder: str) -> bool:
    """Whether a path is this folder or in it."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def remove_redirections(root: int, protected: Sequence[str]) -> tuple[str, ...]:
    """Remove files that would make git take settings and hooks from another folder; their paths.

    Git obeys a file `commondir` in any git folder. It belongs only into those of linked work trees, and a sandbox
    cannot keep a file from being created.
    """
    removed: list[str] = []
    for path in protected:
        git, _, name = path.rpartition("/")
        if name == "config" and not _may_redirect(git):
            with suppress(OSError), _open_folder(root, git) as folder:
                os.unlink("commondir", dir_fd=folder)
                removed.append(_join(git, "commondir"))
    return tuple(removed)


def git_links(root: int, repositories: Sequence[Repository]) -> dict[str, str]:
    """Where each `.git` of these that is a link leads now."""
    found = {repository.git: _read_link(root, repository.git) for repository in repositories if repository.link}
    return {git: target for git, target in found.items() if target}


def restore_links(root: int, links: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Create these links again where something else is now; their paths, and where what was there is now, if anything.

    A sandbox cannot keep a link from being replaced.
    """
    restored: list[tuple[str, str]] = []
    for git, target in links.items():
        above, _, name = git.rpartition("/")
        with suppress(OSError), _open_folder(root, above) as folder:
            if _read_link(folder, name) == target:
                continue
            aside = f"{name}.replaced-{secrets.token_hex(4)}" if _exists(folder, name) else ""
            if aside:
                os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
            os.symlink(target, name, dir_fd=folder)
            restored.append((git, _join(above, aside) if aside else ""))
    return tuple(restored)


def _may_redirect(git: str) -> bool:
    """Whether this can be the git folder of a linked work tree."""
    return PurePosixPath(git).parent.name == "worktrees"


def is_protected(path: str, repositories: Sequence[Repository], protected: Sequence[str]) -> bool:
    """Whether a person can allow writing this path, relative to the workspace: it is in a git folder, or protected."""
    return any(is_below(path, each) for each in (*(repository.git for repository in repositories), *protected))


class KnownRepositories:
    """The repositories that were in a workspace when a session first used it: those are the person's.

    What commands of the session create afterwards is theirs. Thread-safe; nothing outlives the process.
    """

    def __init__(self, max_sessions: int = 1_000) -> None:
        self._max_sessions = max_sessions
        self._by_session: OrderedDict[tuple[str, FileIdentity], tuple[Repository, ...]] = OrderedDict()
        self._lock = Lock()

    def of_session(self, session: str, root: int) -> tuple[Repository, ...]:
        """Those in this open folder, found on the first call for the session and the folder."""
        key = (session, identity_of_status(os.fstat(root)))
        with self._lock:
            if key not in self._by_session:
                self._by_session[key] = find_repositories(root)
                if len(self._by_session) > self._max_sessions:
                    self._by_session.popitem(last=False)
            self._by_session.move_to_end(key)
            return self._by_session[key]


class ProtectedFiles(Struct, frozen=True):
    """What the file tools of one session may not write unasked."""

    repositories: KnownRepositories
    session: str

    def write_need(self, root: HeldPath, path: str) -> str:
        """The need that a person must allow before this path, relative to the workspace, is written; empty for none."""
        repositories = self.repositories.of_session(self.session, root.descriptor)
        if not repositories:
            return ""
        git = git_folder_of(path, repositories)
        named = [
            each.path if isinstance(each, MissingPath) else each for each in _all_paths(root.descriptor, repositories)
        ]
        covered = [git] if git is not None else [each for each in named if is_below(path, each)]
        return f"write:{_join(root.path, covered[0]).rstrip('/')}" if covered else ""


class _Placeholder(Struct, frozen=True):
    missing: MissingPath
    parents: tuple[str, ...]
    """The folders above that were created for it, deepest first."""
    tasks: set[str]


class Placeholders:
    """Empty files and folders where git would obey what a command creates. A sandbox keeps them empty.

    They are removed when the last task that started with them has ended. Thread-safe; after a crash, they stay.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[FileIdentity, str], _Placeholder] = {}
        self._lock = Lock()

    def create(self, task: str, root: int, missing: Sequence[MissingPath]) -> None:
        """Create those below this open folder. The task also uses the ones that are there for other tasks."""
        identity = identity_of_status(os.fstat(root))
        with self._lock:
            for each in missing:
                if (made := _create_placeholder(root, each)) is not None:
                    self._made[identity, each.path] = _Placeholder(each, made, set())
            for (folder, _), placeholder in self._made.items():
                if folder == identity:
                    placeholder.tasks.add(task)

    def remove(self, task: str, root: int) -> None:
        """Remove those that no other task uses, unless a person has written something there."""
        identity = identity_of_status(os.fstat(root))
        with self._lock:
            for key, placeholder in [*self._made.items()]:
                if key[0] != identity or task not in placeholder.tasks:
                    continue
                placeholder.tasks.remove(task)
                if not placeholder.tasks:
                    del self._made[key]
                    _remove_placeholder(root, placeholder)


def _create_placeholder(root: int, missing: MissingPath) -> tuple[str, ...] | None:
    """Create it and the folders above; the folders that were created, deepest first. None when nothing can be."""
    parents: list[str] = []
    try:
        for parent in reversed(PurePosixPath(missing.path).parents[:-1]):
            if _state(root, str(parent)) == "missing":
                _create_below(root, MissingPath(str(parent), is_folder=True))
                parents.insert(0, str(parent))
        _create_below(root, missing)
    except OSError:  # something is there now, or nobody can create it
        return None
    return tuple(parents)


def _create_below(root: int, missing: MissingPath) -> None:
    above, _, name = missing.path.rpartition("/")
    with _open_folder(root, above) as folder:
        if missing.is_folder:
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=folder))


def _remove_placeholder(root: int, placeholder: _Placeholder) -> None:
    above, _, name = placeholder.missing.path.rpartition("/")
    with suppress(OSError):  # it is gone, or is not empty
        with _open_folder(root, above) as folder:
            if placeholder.missing.is_folder:
                os.rmdir(name, dir_fd=folder)
            elif os.stat(name, dir_fd=folder, follow_symlinks=False).st_size == 0:
                os.unlink(name, dir_fd=folder)
        for parent in placeholder.parents:
            with _open_folder(root, parent.rpartition("/")[0]) as folder:
                os.rmdir(parent.rpartition("/")[2], dir_fd=folder)


def _paths_of(root: int, repository: Repository) -> Iterator[str | MissingPath]:
    git, worktree = repository.git, repository.worktree
    if worktree is not None and _is_file(root, git):
        yield git
    if target := _target_of(root, repository):
        git = _inside(root, worktree or "", target) or ""
        if not git:
            return
    yield from _git_folder_paths(root, git, worktree, 0)


def _target_of(root: int, repository: Repository) -> str:
    """The git folder that a file or link `.git` names; empty where `.git` is the git folder."""
    if repository.link:
        return repository.link
    is_named = repository.worktree is not None and _is_file(root, repository.git)
    return _read(root, repository.git).partition("gitdir:")[2].strip() if is_named else ""


def outside_git_folders(root: HeldPath, repositories: Sequence[Repository]) -> dict[str, str]:
    """The git folders outside the workspace that its work trees use, by the `.git` that names each."""
    found: dict[str, str] = {}
    for repository in repositories:
        target = _target_of(root.descriptor, repository)
        path = PurePosixPath(os.path.normpath(os.path.join(root.path, repository.worktree or "", target)))
        common = str(path.parent.parent if _may_redirect(str(path)) else path)
        if target and not is_below(common, root.path):
            found[_join(root.path, repository.git)] = common
    return found


def _git_folder_paths(root: int, git: str, worktree: str | None, depth: int) -> Iterator[str | MissingPath]:
    """The protected paths of one git folder, of its linked work trees and of its submodules."""
    has_worktree_settings = False
    with suppress(OSError), _open_folder(root, git) as folder:
        names = {name for name in ("commondir", "gitdir", "config.worktree") if _exists(folder, name)}
        if "commondir" in names and _may_redirect(git):  # settings and hooks are elsewhere
            yield from (_join(git, name) for name in sorted(names))
            common = _inside(root, git, _read(root, _join(git, "commondir")).strip())
            if common and depth < _MAX_DEPTH:
                yield from _git_folder_paths(root, common, worktree, depth + 1)
            return
        _create_missing(folder)
        has_worktree_settings = "worktreeconfig" in _read(root, _join(git, "config")).lower()
        if has_worktree_settings:
            _create_file(folder, "config.worktree")
            names.add("config.worktree")
        yield from (
            _join(git, name)
            for name in ("config", "hooks", "config.worktree")
            if (name in names or name != "config.worktree") and _is_plain(folder, name)
        )
        yield from _configured_paths(root, _join(git, "config"), worktree if worktree is not None else git, 0)
    for name, is_folder in sorted(_names(root, _join(git, "worktrees")).items()):
        linked = _join(_join(git, "worktrees"), name)
        if is_folder:
            if has_worktree_settings:
                with suppress(OSError), _open_folder(root, linked) as folder:
                    _create_file(folder, "config.worktree")
            yield from (
                _join(linked, each)
                for each in ("commondir", "gitdir", "config.worktree")
                if _is_file(root, _join(linked, each))
            )
    yield from _submodule_paths(root, _join(git, "modules"), depth + 1)


def _submodule_paths(root: int, folder: str, depth: int) -> Iterator[str | MissingPath]:
    """The git folders of submodules have the names of the submodules, which may contain slashes."""
    if depth > _MAX_DEPTH:
        return
    for name, is_folder in sorted(_names(root, folder).items()):
        path = _join(folder, name)
        if not is_folder:
            continue
        if _names(root, path).keys() >= _BARE:
            yield from _git_folder_paths(root, path, None, depth)
        else:
            yield from _submodule_paths(root, path, depth + 1)


def _configured_paths(root: int, file: str, worktree: str, depth: int) -> Iterator[str | MissingPath]:
    """Folders of hooks and further files with settings, where the settings name some in the workspace."""
    for kind, value in parse_paths(_read(root, file)):
        path = _relative(root, worktree if kind == "hooks" else str(PurePosixPath(file).parent), value)
        state = _state(root, path) if path else "other"
        if not path or state == "other":
            continue
        yield path if state == "plain" else MissingPath(path, is_folder=kind == "hooks")
        if kind == "include" and depth < _MAX_INCLUDES:
            yield from _configured_paths(root, path, worktree, depth + 1)


def parse_paths(text: str) -> list[tuple[str, str]]:
    """The folders of hooks (`hooks`) and further files (`include`) that the text of a settings file names."""
    found: list[tuple[str, str]] = []
    section = ""
    for line in text.splitlines():
        rest = line
        if header := _SECTION.match(line):
            section, rest = header[1].lower(), header[2]
        setting = _SETTING.match(rest)
        if not setting:
            continue
        value = _unquoted(setting[2])
        if section == "core" and setting[1].lower() == "hookspath":
            found.append(("hooks", value))
        elif section in ("include", "includeif") and setting[1].lower() == "path":
            found.append(("include", value))
    return found


def _unquoted(text: str) -> str:
    """A value as git reads it: without quotes, escapes and a comment at the end."""
    value, is_quoted, characters = "", False, iter(text.strip())
    for character in characters:
        if character == "\\":
            value += next(characters, "")
        elif character == '"':
            is_quoted = not is_quoted
        elif character in "#;" and not is_quoted:
            break
        else:
            value += character
    return value.strip()


def _inside(root: int, folder: str, path: str) -> str | None:
    """A path that git's files name, relative to the workspace; None when it leads out, through a link, or nowhere."""
    relative = _relative(root, folder, path)
    return relative if relative and _state(root, relative) == "plain" else None


def _relative(root: int, folder: str, path: str) -> str | None:
    """A path that is named in a folder of the workspace, relative to the workspace; None when it leads out."""
    top = os.readlink(f"/proc/self/fd/{root}") if os.path.isdir("/proc/self/fd") else ""
    if not path or "\0" in path or path.startswith("~") or (path.startswith("/") and not top):
        return None
    joined = os.path.normpath(path if path.startswith("/") else os.path.join(top or "/", folder, path))
    relative = os.path.relpath(joined, top or "/")
    return None if relative in (".", "..") or relative.startswith("../") else relative


def _state(root: int, path: str) -> Literal["plain", "missing", "other"]:
    """Whether a file or folder is at this path, or nothing; other when a part of the path is a link."""
    try:
        with _open_folder(root, path.rpartition("/")[0]) as parent:
            mode = os.stat(path.rpartition("/")[2], dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "other"
    return "plain" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "other"


def _create_missing(folder: int) -> None:
    _create_file(folder, "config")
    with suppress(OSError):
        os.mkdir("hooks", 0o755, dir_fd=folder)


def _create_file(folder: int, name: str) -> None:
    with suppress(OSError):  # it exists, or nobody can create it
        os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=folder))


@contextmanager
def _open_folder(root: int, path: str) -> Generator[int]:
    """A folder below an open one. Raises OSError when a part of its path is a link or not a folder."""
    folder = os.open(".", _FOLDER, dir_fd=root)
    try:
        for name in filter(None, path.split("/")):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _names(root: int, path: str) -> dict[str, bool | None]:
    """The names in a folder, and whether each is a folder, None for a link; empty where there is no folder."""
    try:
        with _open_folder(root, path) as folder, os.scandir(folder) as entries:
            return {
                entry.name: None if entry.is_symlink() else entry.is_dir(follow_symlinks=False)
                for entry in islice(entries, _MAX_ENTRIES)
            }
    except OSError:
        return {}


def _read_link(root: int, path: str) -> str:
    try:
        with _open_folder(root, path.rpartition("/")[0]) as folder:
            return os.readlink(path.rpartition("/")[2], dir_fd=folder)
    except OSError:
        return ""


def _read(root: int, path: str) -> str:
    """The beginning of a text file; empty when it cannot be read."""
    try:
        with (
            _open_folder(root, path.rpartition("/")[0]) as folder,
            open(os.open(path.rpartition("/")[2], _FILE, dir_fd=folder), "rb") as file,
        ):
            return file.read(_MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_file(root: int, path: str) -> bool:
    try:
        with _open_folder(root, path.rpartition("/")[0]) as folder:
            status = os.stat(path.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode)


def _is_plain(folder: int, name: str) -> bool:
    """Whether this is a file or a folder, and not a link."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_bare_own(path: str, git: str) -> bool:
    names = ("config", "config.worktree", "commondir", "hooks", "modules", "worktrees")
    return any(is_below(path, _join(git, name)) for name in names)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
