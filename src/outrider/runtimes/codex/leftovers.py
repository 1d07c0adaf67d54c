"""What Codex's sandbox leaves in a workspace when it is cut off: empty folders that were not there before."""

import os
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

_SANDBOX_FOLDERS = (".git", ".codex", ".agents", ".aws")


class SandboxLeftovers:
    """Of one turn. Looks when it is made; an empty `.git` would make a repository of any folder."""

    def __init__(self, workspace: str) -> None:
        paths = [Path(workspace, name) for name in _SANDBOX_FOLDERS]
        self._absent_before = [path for path in paths if not os.path.lexists(path)]

    async def clear(self) -> None:
        """Remove those that are empty, and nothing else."""
        await anyio.to_thread.run_sync(self._clear)

    def _clear(self) -> None:
        for path in self._absent_before:
            with suppress(OSError):
                path.rmdir()
