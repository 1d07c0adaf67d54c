"""The Codex runtime with other arguments than usual, installed as a plugin that takes its name."""

import sys
from pathlib import Path

import pytest

_MODULE = """\
from functools import partial

from outrider.runtimes.codex.runtime import open_runtime as open_codex

open_runtime = partial(open_codex, {arguments})
"""
_IDENTIFIER = str.maketrans(".-", "__")


def tune_codex(patch: pytest.MonkeyPatch, folder: Path, *, token: str = "", **timeouts: float) -> None:
    """From now on, `codex` is opened with these timeouts of its `open_runtime`, and this token for MCP."""
    arguments = [f"{name}={value!r}" for name, value in timeouts.items()]
    arguments += [f"create_token=lambda: {token!r}"] if token else []
    parts = [f"{name}_{value}" for name, value in timeouts.items()]
    module = "_".join(["tuned_codex", *parts, token]).translate(_IDENTIFIER)
    installed = folder / "installed"
    metadata = installed / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (installed / f"{module}.py").write_text(_MODULE.format(arguments=", ".join(arguments)))
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[outrider.runtimes]\ncodex = {module}:open_runtime\n")
    patch.setattr(sys, "path", [str(installed), *sys.path])
