"""Sizes: what can be read in one sitting. Raising a limit is a one-line diff with a reason."""

import ast

from tests.shape.repository import CODE, SRC, Function, name_of, parse, python_files

FILE = 400
FUNCTION = 50
PARAMETERS = 6
HEART = 3_000
"""Lines of core and engine together: one evening."""


def test_every_module_opens_with_its_place_in_the_scheme() -> None:
    assert [name_of(path) for path in python_files(*CODE) if not ast.get_docstring(parse(path))] == []


def test_no_file_is_longer_than_one_sitting() -> None:
    assert {name_of(path): lines for path in python_files(*CODE) if (lines := _lines(path.read_text())) > FILE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files(*CODE)
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION} == {}


def test_no_function_takes_more_than_a_handful_of_parameters() -> None:
    counts = {
        f"{name_of(path)}:{node.lineno} {node.name}": _parameters(node)
        for path in python_files(SRC)
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
    }
    assert {name: count for name, count in counts.items() if count > PARAMETERS} == {}


def test_core_and_engine_stay_readable_in_one_evening() -> None:
    assert sum(_lines(path.read_text()) for path in python_files(SRC / "core", SRC / "engine")) < HEART


def _lines(text: str) -> int:
    return len(text.splitlines())


def _parameters(function: Function) -> int:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])
