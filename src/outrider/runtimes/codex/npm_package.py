"""Codex's npm package: the native program behind its Node script, which costs a process and memory for each start.

Only files that belong to the package are considered: its own folder, and the package for this platform beside it.
"""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

_PACKAGE = "@openai/codex"
_SCRIPT = Path("bin", "codex.js")
_PLATFORMS = {
    ("linux", "x86_64"): ("codex-linux-x64", "x86_64-unknown-linux-musl"),
    ("linux", "aarch64"): ("codex-linux-arm64", "aarch64-unknown-linux-musl"),
    ("darwin", "x86_64"): ("codex-darwin-x64", "x86_64-apple-darwin"),
    ("darwin", "arm64"): ("codex-darwin-arm64", "aarch64-apple-darwin"),
}
_MAX_SHIM = 16_384
_SHIM_TARGET = re.compile(rb'"\$basedir/([^"$\n]{1,1000}/@openai/codex/bin/codex\.js)"')
"""How the shell script that pnpm installs as `codex` names the package's script."""


class NativeProgram(Struct, frozen=True):
    """The native program of the package."""

    path: str
    environ: Mapping[str, str]
    """Variables that the package's script would set."""


def find_native_program(command: str) -> NativeProgram | None:
    """The program that this command would start; None when that is not the script, or the program is missing."""
    script = _script_of(Path(command))
    if script is None or not _is_codex(script.parent.parent):
        return None
    package = script.parent.parent
    for path in _candidates(package):
        if path.is_file() and os.access(path, os.X_OK):
            return NativeProgram(
                str(path), {"CODEX_MANAGED_PACKAGE_ROOT": str(package), f"CODEX_MANAGED_BY_{_installer(package)}": "1"}
            )
    return None


def _script_of(command: Path) -> Path | None:
    """The package's script behind a link or behind pnpm's shell script."""
    try:
        path = command.resolve(strict=True)
        if path.name != _SCRIPT.name:
            with path.open("rb") as file:
                text = file.read(_MAX_SHIM)
            target = _SHIM_TARGET.search(text) if text.startswith(b"#!") else None
            if target is None:
                return None
            path = Path(path.parent, os.fsdecode(target[1])).resolve(strict=True)
    except OSError:
        return None
    return path if path.parts[-2:] == _SCRIPT.parts else None


def _is_codex(package: Path) -> bool:
    try:
        described = msgspec.json.decode((package / "package.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return described.get("name") == _PACKAGE


def _candidates(package: Path) -> Iterator[Path]:
    """Where the program can be, in the order in which the package's script looks."""
    name, target = _PLATFORMS.get((sys.platform, platform.machine()), ("", ""))
    if not name:
        return
    folders = [package / "node_modules" / "@openai" / name]
    if package.parent.name == "@openai":
        folders.append(package.parent / name)
    for folder in (*folders, package):
        yield folder / "vendor" / target / "bin" / "codex"


def _installer(package: Path) -> str:
    if ".bun" in package.parts:
        return "BUN"
    return "PNPM" if ".pnpm" in package.parts else "NPM"
