"""The sandbox that bubblewrap makes of the kernel's namespaces: a command in, what to start in its stead out."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.workspaces.sandbox import argv as words
from outrider.workspaces.sandbox.cgroups import Cgroups
from outrider.workspaces.sandbox.system import SystemPaths
from outrider.workspaces.sandbox.terms import SandboxedCommand, SandboxGrant, SandboxLimits

NO_GRANT = SandboxGrant()


class Sandbox(Struct, frozen=True):
    """A way to run commands that reach their workspace and nothing else of the person's."""

    program: str
    system: SystemPaths
    limits: SandboxLimits = SandboxLimits()
    hidden: tuple[str, ...] = ()
    """Outrider's own files: no grant shows them, and no workspace may hold them (but it may lie within a folder)."""
    cgroups: Cgroups | None = None
    filter: str | None = None
    why: str = ""
    kind: Literal["bubblewrap"] = "bubblewrap"

    def wrap(
        self, argv: Sequence[str], root: Path, cwd: Path, environ: Mapping[str, str], grant: SandboxGrant = NO_GRANT
    ) -> SandboxedCommand:
        """What to start so that `argv` runs confined to `root`. Looks at the paths named, changes nothing.

        `environ` is what the command gets besides the usual few. Raises Refused when a path does not exist or would
        open what must stay shut.
        """
        room = self._visible_paths(root, cwd, grant)
        words.check_visible_paths(room)
        begin = words.bwrap_arguments(self.system, room, self.limits, words.sandbox_environment(environ))
        limits = None if self.cgroups else self.limits
        whole = [*words.outer_argv(self.filter), self.program, *begin, *words.seccomp_arguments(self.filter), "--"]
        return SandboxedCommand((*whole, *words.inner_argv(limits, argv)), rlimits=self._rlimits())

    def _visible_paths(self, root: Path, cwd: Path, grant: SandboxGrant) -> words.VisiblePaths:
        hidden = [os.path.realpath(path) for path in self.hidden]
        return words.VisiblePaths(
            root=_real_folder(root),
            cwd=_real_folder(cwd),
            write=tuple(map(_granted_path, grant.write)),
            read=tuple(map(_granted_path, grant.read)),
            hidden=tuple(path for path in hidden if os.path.isdir(path)),
            hidden_files=tuple(path for path in hidden if os.path.isfile(path)),
            network=grant.network,
        )

    def _rlimits(self) -> Mapping[str, int]:
        limits = self.limits
        return {"core": 0, "cpu": limits.cpu, "fsize": limits.file_size, "nofile": limits.open_files}


def _real_folder(path: Path) -> str:
    real = _real_path(str(path))
    if not os.path.isdir(real):
        raise Refused(f"{path} is not a folder")
    return real


def _granted_path(path: str) -> str:
    """Links are followed before anything is decided, so that what is checked is what is shown."""
    real = _real_path(path)
    kind = os.stat(real).st_mode
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise Refused(f"{path} is neither a folder nor a file; a socket or a device is a door that is not opened")
    return real


def _real_path(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        raise Refused(f"{path} cannot be shown to a command: {error.strerror}") from error
