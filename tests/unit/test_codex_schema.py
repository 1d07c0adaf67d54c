"""The protocol of the Codex we are tested with is the one on record; a difference is reported by name."""

from tests.support.codex import codex_binary
from tests.support.codex_schema import changes, current_schema, recorded


def test_the_schema_of_the_tested_codex_is_the_recorded_one() -> None:
    assert changes(recorded(), current_schema(codex_binary())) == []


def test_a_change_of_the_protocol_is_described() -> None:
    was = {
        "A": {"properties": {"kept": True, "lost": True, "other": {"type": "string"}}},
        "B": True,
        "C": {"enum": [1]},
    }
    now = {"A": {"properties": {"kept": True, "made": True, "other": {"type": "null"}}}, "D": True, "C": {"enum": [2]}}
    assert changes(was, now) == [
        "B is gone",
        "D is new",
        "A: lost is gone",
        "A: made is new",
        "A: other is different",
        "C: it is different",
    ]
