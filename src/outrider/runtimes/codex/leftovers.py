"""What Codex's sandbox leaves in a workspace when it is cut off: empty folders that were not there before."""

import os
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

_NAMES = (".git", ".codex", ".agents", ".aws")


class Leftovers:
    """Of one turn. Looks when it is made; an empty `.git` would make a repository of any folder."""

    def __init__(self, workspace: str) -> None:
        paths = [Path(workspace, name) for name in _NAMES]
        self._new = [path for path in paths if not os.path.lexists(path)]

    async def clear(self) -> None:
        """Remove those that are empty, and nothing else."""
        await anyio.to_thread.run_sync(self._clear)

    def _clear(self) -> None:
        for path in self._new:
            with suppress(OSError):
                path.rmdir()
