"""Behaviours and tests name each other: a row is shown by a test, or is planned. Planned rows only get fewer."""

import tomllib
from typing import Any

from tests.shape.repository import TESTS, marks

ROWS: list[dict[str, Any]] = tomllib.loads((TESTS / "behaviours.toml").read_text(encoding="utf-8"))["behaviour"]
IDS = [row["id"] for row in ROWS]
PLANNED = {row["id"] for row in ROWS if row.get("planned", False)}


def test_every_row_is_there_once() -> None:
    counts = {"A": 15, "B": 8, "C": 10, "D": 10}
    assert [f"{letter}{number}" for letter, count in counts.items() for number in range(1, count + 1)] == IDS


def test_every_row_has_a_title() -> None:
    assert [row["id"] for row in ROWS if not row["title"].strip()] == []


def test_every_row_is_shown_by_a_test_or_is_planned() -> None:
    shown = {mark.id for mark in marks("behaviour")}
    assert sorted(set(IDS) - PLANNED - shown) == []


def test_a_row_that_is_shown_is_no_longer_planned() -> None:
    assert sorted({mark.id for mark in marks("behaviour")} & PLANNED) == []


def test_no_test_names_a_row_that_does_not_exist() -> None:
    assert [mark for mark in marks("behaviour") if mark.id not in IDS] == []
