"""Sanitizing: no text of a model, a tool or a file can control the terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.chat.display import Note, ReplyBlock, ToolLine, TypedCommand, UserText
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.sanitize import cell_width, sanitize, sanitize_line, wrap


@pytest.mark.parametrize(
    ("text", "sanitized"),
    [
        ("plain words", "plain words"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07words", "words"),
        ("\x1b]52;c;ZXZpbA==\x1b\\words", "words"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP+q544e\x1b\\words", "words"),
        ("\x9b2Jcleared\x9d0;t\x9c", "cleared"),
        ("never ended \x1b]0;title", "never ended "),
        ("\x1bcreset", "reset"),
        ("one\rtwo\r\nthree\x85four\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("bell\x07 back\x08 null\x00 del\x7f", "bell back null del"),
        ("abc\u202edef\u2066ghi", "abcdefghi"),
        ("half \ud83d a pair", "half \ufffd a pair"),
        ("日本語 👩\u200d💻 é", "日本語 👩\u200d💻 é"),
    ],
)
def test_escape_sequences_and_control_characters_are_removed(text: str, sanitized: str) -> None:
    assert sanitize(text) == sanitized


@given(st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d[]0;m\x07\\\r")))
def test_no_control_character_is_left(text: str) -> None:
    left = {char for char in sanitize(text) if unicodedata.category(char) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}


@given(st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d[]0;m\x07\\\r")))
def test_no_rendered_item_contains_control_characters(text: str) -> None:
    items = [UserText(text), ReplyBlock(text), ToolLine(text, text), Note(text), TypedCommand(text)]
    rendered = TerminalRenderer(is_plain=True).render(items, 80)
    assert {char for char in rendered if unicodedata.category(char) in ("Cc", "Cs")} <= {"\n"}


@given(st.text(), st.integers(2, 60))
def test_no_wrapped_line_is_wider_than_the_screen(text: str, cells: int) -> None:
    assert [line for line in wrap(sanitize(text), cells) if cell_width(line) > cells] == []


@given(st.text(min_size=1), st.integers(2, 60))
def test_a_sanitized_line_is_one_line_and_fits(text: str, cells: int) -> None:
    line = sanitize_line(text, cells)
    assert ("\n" in line, cell_width(line) <= cells) == (False, True)


def test_a_line_is_wrapped_between_words_if_possible() -> None:
    assert wrap("some words here\nx" + "y" * 12, 10) == ["some words", "here", "x" + "y" * 9, "yyy"]
    assert wrap("some longer words", 9) == ["some", "longer", "words"]


def test_a_wide_character_is_not_split() -> None:
    assert (wrap("日本語", 5), sanitize_line("日本語日本語", 6)) == (["日本", "語"], "日本…")
