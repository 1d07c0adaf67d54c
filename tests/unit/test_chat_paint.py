"""What is painted: Markdown as its writer meant it, things set off from each other, or nothing but text."""

import re

import pytest

from outrider.app.commands import COMMANDS
from outrider.cli.chat.orders import ORDERS
from outrider.cli.chat.paint import Painter
from outrider.cli.chat.shows import Block, Note, Person, Ran, Show, Typed
from tests.shape.repository import ROOT


def painted(*shows: Show, is_plain: bool = False, is_markdown: bool = True) -> list[str]:
    text = Painter(is_markdown=is_markdown, is_plain=is_plain).paint(shows, 40)
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        ("# Title\n", ["Title"]),
        ("Some *words* and `code`.\n\n", ["Some words and code."]),
        ("- a\n- b\n\n", [" • a", " • b"]),
        ("3. c\n4. d\n", [" 3 c", " 4 d"]),
        ("```py\nx = 1\n\ny = 2\n```\n", [" x = 1", "", " y = 2"]),
        ("see [here](http://x.test/y)", ["see here (http://x.test/y)"]),
        ("x" * 50, ["x" * 39, "x" * 11]),
    ],
)
def test_a_block_of_markdown_is_rendered_without_blank_lines_around_it(block: str, lines: list[str]) -> None:
    assert painted(Block(block)) == lines


def test_things_are_set_off_from_each_other_and_what_belongs_together_is_not() -> None:
    assert painted(
        Person("two\nlines"),
        Block("An answer."),
        Ran("read a.txt", "3 lines"),
        Ran("read b.txt", "no such file", failed=True),
        Block("Done."),
        Typed("/status"),
        Note("state  idle"),
        Note("tokens 3"),
        Person("next"),
    ) == [
        "› two",
        "  lines",
        "",
        "An answer.",
        "",
        "  ⚙ read a.txt  3 lines",
        "  ✗ read b.txt  no such file",
        "",
        "Done.",
        "",
        "› /status",
        "state  idle",
        "tokens 3",
        "",
        "› next",
    ]


def test_markdown_is_left_as_it_is_where_that_is_wanted_or_where_it_is_very_long() -> None:
    assert painted(Block("some **words**\n"), is_markdown=False) == ["some **words**"]
    assert painted(Block("**x** " * 6_000))[0].startswith("**x**")


def test_plain_text_has_no_escape_sequence_at_all() -> None:
    text = Painter(is_plain=True).paint([Person("hi"), Block("# T"), Note("bad", "bad")], 40)
    assert text == "› hi\n\n# T\n\nbad\n"


def test_every_command_of_the_registry_is_carried_out_here_and_told_on_the_page() -> None:
    page = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    assert list(ORDERS) == [command.name for command in COMMANDS]
    assert [command.usage for command in COMMANDS if f"| `{command.usage}` |" not in page] == []
