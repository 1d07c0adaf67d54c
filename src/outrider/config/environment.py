"""What a command outside any sandbox is given as its environment: a short list of names, and nothing else.

Folders that people name in settings and rules: made absolute, and kept apart from Outrider's own files.
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
"""Each one by name: whatever begins with LC_ may come from elsewhere, and hold anything."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def child_environment(environ: Mapping[str, str] | None = None, more: Sequence[str] = ()) -> dict[str, str]:
    """What a command may have of this environment, or of our own when none is given, and `more` of it by name.

    No key is among it, no proxy with a password, nothing that loads code, and no variable of ours. `PATH` keeps its
    absolute folders only, so that a file in the workspace does not pass for a program of the system.
    """
    environ = os.environ if environ is None else environ
    given = {name: environ[name] for name in sorted(_PASSED_VARIABLES.union(more)) if environ.get(name)}
    return {**given, "PATH": _absolute_entries(environ.get("PATH", "")) or _DEFAULT_PATH, "TERM": "dumb"}


def _absolute_entries(path: str) -> str:
    return ":".join(folder for folder in path.split(":") if folder.startswith("/"))


def absolute_path(text: str) -> str:
    """The absolute path, `~` expanded; links stay as they were named. Empty when it is not absolute."""
    path = os.path.expanduser(text.strip())
    return os.path.abspath(path) if os.path.isabs(path) else ""


def check_folder(text: str, home: Path, where: str) -> str:
    """The absolute path of what commands may reach. Raises Refused, begun with `where`, when settings, keys or the
    store of this home could be reached there."""
    path = absolute_path(text)
    if not path:
        raise Refused(f"{where}: {text} is not an absolute path")
    if _exposes_home(path, home):
        raise Refused(f"{where}: Outrider's own files in {home} can be reached from {path}; name another folder")
    return path


def _exposes_home(path: str, home: Path) -> bool:
    real, guarded = Path(os.path.realpath(path)), Path(os.path.realpath(home))
    inside = guarded / "workspaces"
    return guarded.is_relative_to(real) or (real.is_relative_to(guarded) and inside not in real.parents)
