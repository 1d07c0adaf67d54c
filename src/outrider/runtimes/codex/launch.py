"""How the app-server is started: which program, with which settings, in which environment.

What Codex's sandbox leaves in a workspace when it is cut off: empty folders that were not there before.
"""

import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import anyio.to_thread

from outrider.config.environment import absolute_path, child_environment
from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess
from outrider.runtimes.base import find_program
from outrider.runtimes.codex.errors import USE_NATIVE_HINT
from outrider.runtimes.jsonrpc.process import Program
from outrider.system.processes import MARKER_VARIABLE, new_marker

INSTALL = "Install it (`npm install -g @openai/codex`, or `pip install openai-codex-cli-bin`), or set codex.command."


def codex_program(config: Config, cwd: Path) -> Program:
    """The app-server for a workspace. Nothing is written into the person's own settings. Raises Refused."""
    environ = codex_environment(config)
    mark = new_marker()
    settings = {
        # Its default gives every variable, keys among them, to commands.
        "shell_environment_policy.inherit": '"core"',
        "shell_environment_policy.set": f'{{{MARKER_VARIABLE}="{mark}"}}',
    }
    if config.sandbox.network:
        settings["sandbox_workspace_write.network_access"] = "true"
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Program((codex_command(config, environ), "app-server", *flags), cwd, environ, mark)


def codex_command(config: Config, environ: Mapping[str, str]) -> str:
    """The program, as an absolute path. Raises Refused with how to get it."""
    named = config.codex.command
    if named:
        try:
            return find_program(absolute_path(named) or named, environ.get("PATH", ""))
        except NeedsAnotherProcess as error:
            raise NeedsAnotherProcess(f"{error} (codex.command). {INSTALL} {USE_NATIVE_HINT}") from None
    if found := shutil.which("codex", path=environ.get("PATH")):
        return found
    wheel = find_spec("codex_cli_bin")
    for folder in (wheel.submodule_search_locations if wheel else None) or ():
        if os.access(Path(folder, "bin", "codex"), os.X_OK):
            return str(Path(folder, "bin", "codex"))
    raise NeedsAnotherProcess(f"Codex is not installed. {INSTALL} {USE_NATIVE_HINT}")


def codex_environment(config: Config) -> dict[str, str]:
    """What the process is given: little, and by name."""
    environ = child_environment(more=("CODEX_HOME", *config.codex.env))
    if config.codex.home:
        environ["CODEX_HOME"] = absolute_path(config.codex.home) or config.codex.home
    home = environ.get("CODEX_HOME", "")
    if home and Path(home).is_relative_to(environ.get("TMPDIR", "/tmp")):
        # It sandboxes nothing when its home is in the folder for temporary files.
        own = config.home / "codex" / "tmp"
        own.mkdir(parents=True, exist_ok=True)
        environ["TMPDIR"] = str(own)
    return environ


def trust(workspace: str, decided: Collection[str]) -> dict[str, object]:
    """Keeps Codex from noting in the person's settings that this folder is trusted, unless they decided that."""
    if any(Path(workspace).is_relative_to(folder) for folder in decided):
        return {}
    return {"projects": {workspace: {"trust_level": "untrusted"}}}


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
