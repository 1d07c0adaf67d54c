"""The environment of child processes, and the check of folders that settings and rules name.

A child process gets a short list of variables by name and nothing else. A folder that commands may access never gives
access to Outrider's own files.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider.core.errors import Refused

_PASSED_VARIABLES = frozenset(
    {"HOME", "LANG", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES"}
    | {"LC_MONETARY", "LC_NUMERIC", "LC_TIME", "LC_ADDRESS", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_NAME"}
    | {"LC_PAPER", "LC_TELEPHONE"}
)
"""Listed one by one: other variables beginning with LC_ may hold anything."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def child_environment(environ: Mapping[str, str] | None = None, more: Sequence[str] = ()) -> dict[str, str]:
    """The variables of an environment (by default that of this process) that a command gets, and those named in `more`.

    There is no key among them, no proxy with a password, nothing that loads code, and no variable of Outrider. `PATH`
    keeps its absolute folders only, so that a file in the workspace cannot pass for a system program.
    """
    environ = os.environ if environ is None else environ
    passed = {name: environ[name] for name in sorted(_PASSED_VARIABLES.union(more)) if environ.get(name)}
    path = ":".join(folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/"))
    return {**passed, "PATH": path or _DEFAULT_PATH, "TERM": "dumb"}


def absolute_path(text: str) -> str:
    """The absolute path, with `~` expanded and links kept. Empty when the path is relative."""
    path = os.path.expanduser(text.strip())
    return os.path.abspath(path) if os.path.isabs(path) else ""


def check_folder(text: str, home: Path, where: str) -> str:
    """The resolved path of a folder that commands may access.

    Raises Refused, prefixed with `where`, when the settings, keys or store of this home would become accessible.
    """
    path = absolute_path(text)
    if not path:
        raise Refused(f"{where}: {text} is not an absolute path")
    if _exposes_home(path, home):
        raise Refused(f"{where}: {path} would give access to Outrider's own files in {home}; name another folder")
    return os.path.realpath(path)


def _exposes_home(path: str, home: Path) -> bool:
    folder, home = Path(os.path.realpath(path)), Path(os.path.realpath(home))
    return home.is_relative_to(folder) or (folder.is_relative_to(home) and home / "workspaces" not in folder.parents)
