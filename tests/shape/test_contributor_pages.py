"""The quick loop covers every command, and the pages for contributors name only what exists."""

import ast
import re

import click

from outrider.cli.commands import root
from tests.shape.repository import ROOT, SRC, Function, marks, parse

PAGE = ROOT / "docs" / "where-does-my-change-go.md"


def test_every_command_has_a_journey_in_the_quick_loop() -> None:
    commands = set(root.list_commands(click.Context(root)))
    assert {mark.id for mark in marks("command")} == commands


def test_the_page_for_contributors_names_only_what_exists() -> None:
    paths = re.findall(r"`((?:\w+/)*[\w.*-]+(?:/|\.py|\.toml|\.md|\.sql))`", PAGE.read_text(encoding="utf-8"))
    assert paths
    assert [path for path in paths if not _exists(path)] == []


def test_the_page_for_contributors_names_every_folder_of_the_source() -> None:
    text = PAGE.read_text(encoding="utf-8")
    folders = [path for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert [folder.name for folder in folders if f"`{folder.name}/" not in text] == []


def _exists(path: str) -> bool:
    return any((base / path).exists() or any(base.glob(path)) for base in (SRC, ROOT))


def test_every_step_of_a_walk_through_the_code_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    steps = [
        line.split()[:2] for fence in re.findall(r"```walk\n(.*?)```", text, re.DOTALL) for line in fence.splitlines()
    ]
    assert len(steps) > 40
    assert [(path, name) for path, name in steps if name not in _definitions(path)] == []


def _definitions(path: str) -> set[str]:
    """Functions and classes of a module, and the methods of its classes."""
    found = [node for node in parse(SRC / path).body if isinstance(node, ast.ClassDef | Function)]
    methods = {
        f"{node.name}.{method.name}"
        for node in found
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, Function)
    }
    return methods | {node.name for node in found}
