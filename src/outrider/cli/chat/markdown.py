"""Markdown rendering for a terminal: headings at the left, code in the terminal's own colours, links written out."""

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.text import Text


class _Heading(Heading):
    """A heading as one bold line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.text.plain, style="bold underline" if self.tag in ("h1", "h2") else "bold")


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}


def render_markdown(text: str) -> Markdown:
    """One block, ready to print. Links are written out, so that the real target is visible."""
    return _Markdown(text, code_theme="ansi_dark", hyperlinks=False)
