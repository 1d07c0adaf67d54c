"""Folders that people name in settings and rules: made absolute, and kept apart from Outrider's own files."""

import os
from pathlib import Path

from outrider.core.errors import Refused


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
