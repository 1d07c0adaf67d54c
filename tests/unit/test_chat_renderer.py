"""Rendering of display items: Markdown, blank lines between items, and plain text."""

import re

import pytest

from outrider.app.slash_commands import COMMANDS
from outrider.cli.chat.display import DisplayItem, Note, ReplyBlock, ToolLine, TypedCommand, UserText
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.slash import COMMAND_HANDLERS
from tests.shape.repository import ROOT


def rendered(*items: DisplayItem, is_plain: bool = False, is_markdown: bool = True) -> list[str]:
    text = TerminalRenderer(is_markdown=is_markdown, is_plain=is_plain).render(items, 40)
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
    assert rendered(ReplyBlock(block)) == lines


def test_a_row_of_a_table_is_cut_at_the_width_of_the_terminal() -> None:
    rows = f"t-1  {'word ' * 20}\nt-2  short"
    assert rendered(Note(rows, "plain", is_table=True)) == ["t-1  word word word word word word word…", "t-2  short"]


def test_blank_lines_separate_items_that_do_not_belong_together() -> None:
    assert rendered(
        UserText("two\nlines"),
        ReplyBlock("An answer."),
        ToolLine("read a.txt", "3 lines"),
        ToolLine("read b.txt", "no such file", failed=True),
        ReplyBlock("Done."),
        TypedCommand("/status"),
        Note("state  idle"),
        Note("tokens 3"),
        UserText("next"),
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


def test_markdown_is_not_rendered_when_it_is_switched_off_or_very_long() -> None:
    assert rendered(ReplyBlock("some **words**\n"), is_markdown=False) == ["some **words**"]
    assert rendered(ReplyBlock("**x** " * 6_000))[0].startswith("**x**")


def test_plain_text_has_no_escape_sequences() -> None:
    text = TerminalRenderer(is_plain=True).render([UserText("hi"), ReplyBlock("# T"), Note("bad", "bad")], 40)
    assert text == "› hi\n\n# T\n\nbad\n"


def test_every_command_has_a_handler_and_is_documented() -> None:
    page = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    assert {*COMMAND_HANDLERS, "yes", "no"} == {command.name for command in COMMANDS}
    assert [command.usage for command in COMMANDS if f"| `{command.usage}` |" not in page] == []
