"""Which folder a session's tools act in."""

import secrets
from pathlib import Path

from outrider.core.errors import Refused


def terminal_workspace(
    current: Path, person_home: Path, path: str = "", outrider_home: Path | None = None
) -> Path | None:
    """The folder a terminal command works in, or None when it should get one of its own.

    The current folder, or the one named; never the person's home folder, a folder of the system's, or one that
    Outrider's own files are in, where an agent has no business.
    """
    if path:
        root = Path(path).expanduser().resolve()
        if not root.is_dir():
            raise Refused(f"there is no folder {path}; make it first, or name another with --workspace")
        if _is_off_limits(root, person_home):
            raise Refused(
                f"{path} is your home folder or the machine's and cannot be a workspace; name a folder below it"
            )
        if outrider_home and _exposes_outrider_files(root, outrider_home):
            raise Refused(f"{path} holds Outrider's own files and cannot be a workspace; name another folder")
        return root
    root = current.resolve()
    if _is_off_limits(root, person_home) or (outrider_home and _exposes_outrider_files(root, outrider_home)):
        return None
    return root


_SYSTEM_FOLDERS = frozenset(
    [
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
        "/tmp",
        "/usr",
        "/var",
        "/var/tmp",
    ]
)
"""The machine's own, or everybody's."""


def _is_off_limits(root: Path, person_home: Path) -> bool:
    return root == person_home.resolve() or str(root) in _SYSTEM_FOLDERS


def _exposes_outrider_files(root: Path, outrider_home: Path) -> bool:
    """Whether settings, keys or the store could be reached from here."""
    home = outrider_home.resolve()
    inside = home / "workspaces"
    return root == inside or home.is_relative_to(root) or (root.is_relative_to(home) and inside not in root.parents)


def create_workspace(home: Path, name: str) -> Path:
    """A folder under the Outrider home, made now, for a session that came with none."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40] or "session"
    root = home / "workspaces" / f"{plain}-{secrets.token_hex(8)}"
    root.mkdir(mode=0o700, parents=True)
    return root.resolve()
