"""Damage to a store's file, page by page."""

import sqlite3
from contextlib import closing
from pathlib import Path

PAGE = 4096
RUBBISH = b"rubbish!" * (PAGE // 8)


def overwrite(store: Path, at: int, content: bytes) -> None:
    with store.open("r+b") as file:
        file.seek(at)
        file.write(content)


def overwrite_page(store: Path, page: int) -> None:
    overwrite(store, (page - 1) * PAGE, RUBBISH)


def root_page(store: Path, table: str) -> int:
    """The page that leads to all rows of a table."""
    with closing(sqlite3.connect(store)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    return page


def last_leaf(store: Path, table: str) -> int:
    """The page that the root, an inner page, names last in its header."""
    start = (root_page(store, table) - 1) * PAGE
    root = store.read_bytes()[start : start + PAGE]
    assert root[0] == 2
    return int.from_bytes(root[8:12], "big")


def page_with(store: Path, text: bytes) -> int:
    """The page on which this text begins."""
    return store.read_bytes().index(text) // PAGE + 1


def execute(store: Path, statement: str, *args: object) -> None:
    """Change a store behind Outrider's back."""
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute(statement, args)
