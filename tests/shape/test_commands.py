"""The quick loop covers every command, and the contributor's page names only what exists."""

import re

import click

from outrider.cli.commands import root
from tests.shape.repository import ROOT, SRC, marks

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
