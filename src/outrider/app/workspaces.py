"""Workspaces: the folder that the tools of a session work in."""

import secrets
from pathlib import Path

from outrider.core.errors import Refused
from outrider.core.store_port import Session
from outrider.core.types import WorkspaceIdentity
from outrider.workspaces.held_paths import KERNEL_FOLDERS, hold_workspace, workspace_identity


def terminal_workspace(
    current: Path, person_home: Path, path: str = "", outrider_home: Path | None = None
) -> Path | None:
    """The workspace of a terminal command, or None when it gets a folder of its own.

    The current folder, or `path`; never the person's home folder, a system folder, or one that contains Outrider's own
    files.
    """
    if path:
        root = Path(path).expanduser().resolve()
        if not root.is_dir():
            raise Refused(f"there is no folder {path}; create it, or choose another one with --workspace")
        if kernel := _kernel_folder(root):
            raise Refused(
                f"{path} cannot be a workspace: everything in {kernel} belongs to the system; choose a folder elsewhere"
            )
        if _is_off_limits(root, person_home):
            raise Refused(
                f"{path} is your home folder or a system folder and cannot be a workspace; choose a folder below it"
            )
        if outrider_home and _exposes_outrider_files(root, outrider_home):
            raise Refused(f"{path} contains Outrider's own files and cannot be a workspace; choose another folder")
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


def _is_off_limits(root: Path, person_home: Path) -> bool:
    return root == person_home.resolve() or str(root) in _SYSTEM_FOLDERS or bool(_kernel_folder(root))


def _kernel_folder(root: Path) -> str:
    """The folder of the kernel that this one is in; empty for any other."""
    return next((folder for folder in KERNEL_FOLDERS if root.is_relative_to(folder)), "")


def _exposes_outrider_files(root: Path, outrider_home: Path) -> bool:
    """Whether settings, keys or the store are below this folder."""
    home = outrider_home.resolve()
    inside = home / "workspaces"
    return root == inside or home.is_relative_to(root) or (root.is_relative_to(home) and inside not in root.parents)


def find_identity(workspace: Path | None) -> WorkspaceIdentity | None:
    """Which folder is at this resolved path; None when there is none."""
    try:
        return workspace_identity(str(workspace)) if workspace else None
    except Refused:
        return None


def has_same_folder(session: Session) -> bool:
    """Whether the folder that a session works in is still at its path."""
    try:
        workspace_identity(session.workspace, session.identity)
    except Refused:
        return False
    return True


def require_folder(session: Session) -> None:
    """Raises Refused, with what a person can do, when there is no folder at the path of a session."""
    if not Path(session.workspace).is_dir():
        hold_workspace(session.workspace, session=session.name).close()


def create_workspace(home: Path, name: str) -> Path:
    """Create a folder in the Outrider home for a session without a workspace."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40] or "session"
    root = home / "workspaces" / f"{plain}-{secrets.token_hex(8)}"
    root.mkdir(mode=0o700, parents=True)
    return root.resolve()
