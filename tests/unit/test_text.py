"""Texts for people: errors of values in plain words, and suggestions only where a name is close."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from outrider.core.text import closest_match, explain_validation


class Point(Struct, forbid_unknown_fields=True):
    x: int
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    name: Annotated[str, Meta(max_length=3)] = ""
    until: Literal["end", "idle"] = "end"
    near: "list[Point] | None" = None
    is_far: bool = False


WRONG_VALUES: list[tuple[Any, str]] = [
    ({"x": "one"}, "x must be a whole number, not a string"),
    ({"x": 1, "limit": 0}, "limit must be a whole number, 1 or more"),
    ({"x": 1, "limit": 1001}, "limit must be a whole number, 1000 or less"),
    ({"x": 1, "name": "long"}, "name must be a string of length 3 or less"),
    ({"x": 1, "until": "now"}, "until cannot be 'now'"),
    ({"x": 1, "near": 5}, "near must be a list or null, not a whole number"),
    ({"x": 1, "near": [{"x": 1}, {"x": True}]}, "near[1].x must be a whole number, not true or false"),
    ({"x": 1, "near": [{}]}, "near[0].x is missing"),
    ({"x": 1, "is_far": {}}, "is_far must be true or false, not an object"),
    ({"y": 1}, "there is no field y"),
    ({}, "x is missing"),
    ([], "the value must be an object, not a list"),
]


@pytest.mark.parametrize(("value", "expected"), WRONG_VALUES)
def test_a_wrong_value_is_explained_without_the_words_of_the_parser(value: Any, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Point)
    assert explain_validation(caught.value) == expected


def test_an_error_that_is_not_known_keeps_its_text() -> None:
    assert explain_validation(ValueError("JSON is malformed: invalid character (byte 3)")) == (
        "JSON is malformed: invalid character (byte 3)"
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("sesions", "sessions"),
        ("stats", "status"),
        ("nmae", "name"),
        ("perm", "permissions"),
        ("hello", ""),
        ("reference", ""),
        ("se", ""),
    ],
)
def test_only_a_close_name_is_suggested(typed: str, expected: str) -> None:
    assert closest_match(typed, ("help", "sessions", "status", "name", "permissions", "search")) == expected
