"""Sizes: a module is one idea, a function reads top to bottom."""

import ast

from tests.shape.repository import CODE, SRC, Function, name_of, parse, python_files

LONG_MODULE = 600
"""Lines above which a module's docstring has to say why it is this long (the word "long" in it)."""
LONGEST_MODULE = 900
LONGEST_FUNCTION = 80
MAX_PARAMETERS = 8


def test_every_module_has_a_docstring() -> None:
    assert [name_of(path) for path in python_files(*CODE) if not ast.get_docstring(parse(path))] == []


def test_no_module_is_longer_than_a_reader_can_take_in() -> None:
    assert {name: lines for name, lines in _lengths().items() if lines > LONGEST_MODULE} == {}


def test_a_long_module_says_why_it_is_long() -> None:
    long_modules = [path for path in python_files(SRC) if _line_count(path.read_text()) > LONG_MODULE]
    assert [name_of(path) for path in long_modules if " long" not in (ast.get_docstring(parse(path)) or "")] == []


def test_no_function_is_longer_than_a_reader_can_take_in() -> None:
    lengths = {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files(*CODE)
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_no_function_takes_more_parameters_than_a_call_can_show() -> None:
    counts = {
        f"{name_of(path)}:{node.lineno} {node.name}": _parameter_count(node)
        for path in python_files(SRC)
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
    }
    assert {name: count for name, count in counts.items() if count > MAX_PARAMETERS} == {}


def _lengths() -> dict[str, int]:
    return {name_of(path): _line_count(path.read_text()) for path in python_files(*CODE)}


def _line_count(text: str) -> int:
    return len(text.splitlines())


def _parameter_count(function: Function) -> int:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])
