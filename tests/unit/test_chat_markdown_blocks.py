"""Splitting streamed Markdown: nothing is lost, and no block is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.chat.markdown_blocks import MarkdownSplitter, split_blocks

LINES = st.sampled_from(
    [
        "",
        " ",
        "words",
        "- item",
        "1. one",
        "   more",
        "```",
        "```py",
        "~~~",
        "    ```",
        "# title",
        "| a |",
        "> said",
        "=====",
    ]
)


@given(st.lists(st.text() | LINES.map(lambda line: line + "\n")))
def test_the_blocks_joined_are_the_text(pieces: list[str]) -> None:
    blocks, done, received = MarkdownSplitter(), list[str](), ""
    for piece in pieces:
        done += blocks.feed(piece)
        received += piece
        assert "".join(done) + blocks.pending_text == received
    assert "".join([*done, *blocks.finish()]) == "".join(pieces)


@given(st.lists(LINES).map("\n".join), st.integers(1, 7))
def test_the_size_of_the_pieces_does_not_change_the_blocks(text: str, size: int) -> None:
    blocks, done = MarkdownSplitter(), list[str]()
    for at in range(0, len(text), size):
        done += blocks.feed(text[at : at + size])
    assert [*done, *blocks.finish()] == split_blocks(text)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("one\ntwo\n\nthree", ["one\ntwo\n\n", "three"]),
        ("# title\nwords\n\nend\n", ["# title\n", "words\n\n", "end\n"]),
        ("words\n# title\n", ["words\n", "# title\n"]),
        ("```py\na\n\n\nb\n```\nend", ["```py\na\n\n\nb\n```\n", "end"]),
        ("so:\n```\na\n```\n", ["so:\n", "```\na\n```\n"]),
        ("~~~\n```\n\n~~~\nend", ["~~~\n```\n\n~~~\n", "end"]),
        ("````\n```\n\n````\nend", ["````\n```\n\n````\n", "end"]),
        ("- a\n- b\n\nend", ["- a\n- b\n\n", "end"]),
        ("1. a\n\n2. b\n\n   more\n\nend", ["1. a\n\n2. b\n\n   more\n\n", "end"]),
        ("- a\n  ```\n  x\n\n  y\n  ```\n- b\n\nend", ["- a\n  ```\n  x\n\n  y\n  ```\n- b\n\n", "end"]),
        ("- a\n# title\n", ["- a\n", "# title\n"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\nend", ["| a | b |\n|---|---|\n| 1 | 2 |\n\n", "end"]),
        ("\n\nwords\n\n", ["\n\nwords\n\n"]),
        ("```\nnever closed\n\nmore", ["```\nnever closed\n\nmore"]),
        ("", []),
    ],
)
def test_a_text_is_split_into_its_markdown_blocks(text: str, blocks: list[str]) -> None:
    assert split_blocks(text) == blocks


def test_a_block_is_returned_as_soon_as_it_is_finished() -> None:
    blocks = MarkdownSplitter()
    fed = ["first ", "line\n", "\nsec", "ond\n\n```", "\ncode\n\n", "```\n"]
    assert [blocks.feed(text) for text in fed] == [
        [],
        [],
        ["first line\n\n"],
        ["second\n\n"],
        [],
        ["```\ncode\n\n```\n"],
    ]
    assert blocks.pending_text == ""
