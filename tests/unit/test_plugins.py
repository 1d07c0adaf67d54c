"""Entry points by name, in a process whose `sys.path` changes."""

import sys
from pathlib import Path

import pytest

from outrider import plugins


def install(folder: Path, name: str) -> None:
    metadata = folder / "later-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[outrider.runtimes]\n{name} = json:loads\n")


def test_a_plugin_is_found_as_long_as_its_package_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plugins.names("runtimes")
    install(tmp_path, "later")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert plugins.names("runtimes") == sorted([*before, "later"])
        assert plugins.origin("runtimes", "later") == "later 1.0"
    assert plugins.names("runtimes") == before


def test_a_plugin_that_comes_first_on_the_path_takes_the_name_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugins.origin("runtimes", "codex").startswith("outrider")
    install(tmp_path, "codex")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert plugins.origin("runtimes", "codex") == "later 1.0"
