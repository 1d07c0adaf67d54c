"""Words: names say what a thing is, and nothing is left for later in the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shape.repository import SRC, Function, name_of, parse, python_files

SAY_NOTHING = {"manager", "handler", "helper", "util", "service", "processor", "mixin", "data", "info"}
SAY_NOTHING_IN_FRONT = {"base", "abstract"}
NOT_OURS = {"data_received"}
"""Names that a library calls us by: asyncio's, for a protocol."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_LATER = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")


def test_no_name_says_nothing() -> None:
    names = ((path, name) for path in python_files(SRC) for name in _names(path) if name not in NOT_OURS)
    assert [f"{name_of(path)}: {name}" for path, name in names if _is_empty(name)] == []


def test_nothing_in_the_source_is_left_for_later() -> None:
    assert [
        f"{name_of(path)}:{number}"
        for path in python_files(SRC)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _LATER.search(line)
    ] == []


@pytest.mark.parametrize("name", ["SessionManager", "base_of", "parse_data", "utils", "BaseStore", "HTTPHandler"])
def test_an_empty_name_is_noticed(name: str) -> None:
    assert _is_empty(name) == (name != "base_of")


@pytest.mark.parametrize("name", ["database", "open_dataset", "Informed", "Transcript", "basement", "handle"])
def test_a_name_that_only_looks_alike_is_let_through(name: str) -> None:
    assert not _is_empty(name)


def _names(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef | Function):
            yield node.name


def _is_empty(name: str) -> bool:
    words = [word.lower().removesuffix("s") for word in _WORD.findall(name)]
    in_front = words[:1] if name[:1].isupper() else []
    return bool(SAY_NOTHING.intersection(words) or SAY_NOTHING_IN_FRONT.intersection(in_front))
