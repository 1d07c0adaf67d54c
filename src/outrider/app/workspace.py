"""Which folder a session's tools act in."""

import secrets
from pathlib import Path

from outrider.core.errors import Refused


def terminal_workspace(current: Path, person_home: Path, named: str = "") -> Path | None:
    """The folder a terminal command works in, or None when it should get one of its own.

    The current folder, or the one named; never the person's home folder or the root, where an agent has no business.
    """
    if named:
        root = Path(named).expanduser().resolve()
        if not root.is_dir():
            raise Refused(f"there is no folder {named}; make it first, or name another with --workspace")
        if root in (person_home.resolve(), Path(root.anchor)):
            raise Refused("the home folder or the root cannot be a workspace; name a folder below it")
        return root
    root = current.resolve()
    return None if root in (person_home.resolve(), Path(root.anchor)) else root


def own_workspace(home: Path, name: str) -> Path:
    """A folder under the Outrider home, made now, for a session that came with none."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40] or "session"
    root = home / "workspaces" / f"{plain}-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700, parents=True)
    return root.resolve()
