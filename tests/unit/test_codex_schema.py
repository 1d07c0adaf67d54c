"""The protocol of the Codex we are tested with is the one on record; a new one is told apart by name."""

from tests.support.codex import codex_binary
from tests.support.codex_schema import changes, current_schema, recorded


def test_the_tested_codex_describes_its_protocol_as_it_is_on_record() -> None:
    assert changes(recorded(), current_schema(codex_binary())) == []


def test_what_changes_in_the_protocol_is_named() -> None:
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
