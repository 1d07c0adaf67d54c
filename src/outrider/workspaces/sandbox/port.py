"""What every kind of sandbox offers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from outrider.workspaces.held_paths import HeldPaths
from outrider.workspaces.sandbox.cgroups import Cgroups
from outrider.workspaces.sandbox.types import SandboxedCommand, SandboxKind, SandboxLimits


class Sandbox(Protocol):
    """Runs commands that reach their workspace and nothing else of the person's files."""

    @property
    def kind(self) -> SandboxKind: ...
    @property
    def why(self) -> str:
        """Which one it is and what it limits, for people."""
        ...

    @property
    def limits(self) -> SandboxLimits: ...
    @property
    def cgroups(self) -> Cgroups | None: ...

    def wrap(
        self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str], git_settings: str = ""
    ) -> SandboxedCommand:
        """What to start so that `argv` reaches `paths` and nothing else. Changes nothing.

        `environ` is added to the basic variables; `git_settings` is the `.gitconfig` of its home.
        Raises Refused when a path must stay hidden.
        """
        ...
