"""Promises and tests name each other, and the page that people read is the one the tests are held to."""

import ast
import re
from pathlib import Path

from tests.shape.promises import PAGE, read, render
from tests.shape.repository import SRC, TESTS, Function, is_mark, marks, name_of, parse, python_files


def test_every_kept_promise_is_shown_by_a_test() -> None:
    shown = {mark.id for mark in marks("promise")}
    assert [promise.id for promise in read().all() if promise.state == "kept" and promise.id not in shown] == []


def test_no_test_names_a_promise_that_does_not_exist() -> None:
    known = {promise.id for promise in read().all()}
    assert [mark for mark in marks("promise") if mark.id not in known] == []


def test_every_fault_test_shows_a_promise() -> None:
    assert [name for path in python_files(TESTS / "fault") for name in _without_promise(path)] == []


def test_every_law_and_every_kill_point_is_on_the_page() -> None:
    promises = read()
    laws = ["L1", "L1b", *(f"L{number}" for number in range(2, 13))]
    assert [law.id for law in promises.promise] == laws
    assert {kill.id for kill in promises.kill} - used_fail_points() == {"cursor_advanced"}, "planned points only"


def test_every_fail_point_in_the_source_is_a_kill_point_of_the_page() -> None:
    assert sorted(used_fail_points() - {kill.id for kill in read().kill}) == []


def used_fail_points() -> set[str]:
    calls = re.compile(r"failpoint\(([^)]*)\)")
    found = {call for path in python_files(SRC) for call in calls.findall(path.read_text(encoding="utf-8"))}
    return {name for call in found for name in re.findall(r'"(\w+)"', call)}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(read()), "run ./dev docs"


def _without_promise(path: Path) -> list[str]:
    module = parse(path)
    if any(_is_promised(node.value) for node in module.body if isinstance(node, ast.Assign) and _names_marks(node)):
        return []
    return [
        f"{name_of(path)}:{test.lineno} {test.name}"
        for test in ast.walk(module)
        if isinstance(test, Function)
        and test.name.startswith("test_")
        and not any(_is_promised(decorator) for decorator in test.decorator_list)
    ]


def _names_marks(node: ast.Assign) -> bool:
    return [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def _is_promised(node: ast.expr) -> bool:
    """Also when the mark stands in a list, or beside one case of a parametrised test."""
    return any(isinstance(inner, ast.Call) and is_mark(inner, "promise") for inner in ast.walk(node))
