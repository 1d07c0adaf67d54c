"""Launch of the Codex app-server: its program, settings and environment; and clean-up after its sandbox."""

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
from outrider.runtimes.codex.npm_package import find_native_program
from outrider.runtimes.codex.sandbox_policy import PROTECTED_FOLDERS
from outrider.runtimes.jsonrpc.process import Program
from outrider.system.processes import MARKER_VARIABLE

INSTALL = "Install it (`npm install -g @openai/codex`, or `pip install openai-codex-cli-bin`), or set codex.command."


def codex_program(config: Config, cwd: Path, marker: str) -> Program:
    """The app-server, started in this folder. Nothing is written into the person's own settings. Raises Refused."""
    environ = codex_environment(config)
    settings = {
        # By default, commands get every variable, also those with keys.
        "shell_environment_policy.inherit": '"core"',
        "shell_environment_policy.set": f'{{{MARKER_VARIABLE}="{marker}"}}',
    }
    if config.sandbox.network:
        settings["sandbox_workspace_write.network_access"] = "true"
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = codex_command(config, environ)
    if native := find_native_program(command):
        command, environ = native.path, {**environ, **native.environ}
    return Program((command, "app-server", *flags), cwd, environ, marker)


def codex_command(config: Config, environ: Mapping[str, str]) -> str:
    """The absolute path of the program. Raises Refused with how to install it."""
    if command := config.codex.command:
        try:
            return find_program(absolute_path(command) or command, environ.get("PATH", ""))
        except NeedsAnotherProcess as error:
            raise NeedsAnotherProcess(f"{error} (codex.command). {INSTALL} {USE_NATIVE_HINT}") from None
    if program := shutil.which("codex", path=environ.get("PATH")):
        return program
    wheel = find_spec("codex_cli_bin")
    for folder in (wheel.submodule_search_locations if wheel else None) or ():
        if os.access(Path(folder, "bin", "codex"), os.X_OK):
            return str(Path(folder, "bin", "codex"))
    raise NeedsAnotherProcess(f"Codex is not installed. {INSTALL} {USE_NATIVE_HINT}")


def codex_environment(config: Config) -> dict[str, str]:
    """The variables the process gets: few, each chosen by name."""
    environ = child_environment(more=("CODEX_HOME", *config.codex.env))
    if config.codex.home:
        environ["CODEX_HOME"] = absolute_path(config.codex.home) or config.codex.home
    home = environ.get("CODEX_HOME", "")
    if home and Path(home).is_relative_to(environ.get("TMPDIR", "/tmp")):
        # Codex sandboxes nothing when its home is in the folder for temporary files.
        own = config.home / "codex" / "tmp"
        own.mkdir(parents=True, exist_ok=True)
        environ["TMPDIR"] = str(own)
    return environ


def trust(workspace: str, decided: Collection[str]) -> dict[str, object]:
    """Settings that keep Codex from writing into the person's settings that this folder is trusted.

    `decided` are the folders for which the person has decided that already.
    """
    if any(Path(workspace).is_relative_to(folder) for folder in decided):
        return {}
    return {"projects": {workspace: {"trust_level": "untrusted"}}}


class SandboxLeftovers:
    """Empty folders that Codex's sandbox leaves in a workspace when a turn is interrupted.

    An empty `.git` would turn any folder into a repository. Those that are there when this is made are left alone.
    """

    def __init__(self, workspace: str) -> None:
        paths = [Path(workspace, name) for name in PROTECTED_FOLDERS]
        self._absent_before = [path for path in paths if not os.path.lexists(path)]

    async def clear(self) -> None:
        """Remove the folders that are new and empty."""
        await anyio.to_thread.run_sync(self._clear)

    def _clear(self) -> None:
        for path in self._absent_before:
            with suppress(OSError):
                path.rmdir()
