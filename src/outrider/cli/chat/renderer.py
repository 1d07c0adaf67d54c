"""Turns what is to be shown into text for the terminal. Everything goes through `clean` before it is coloured."""

import re
from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from outrider.cli.chat.display import (
    DisplayItem,
    Note,
    OutputLines,
    QuestionText,
    ReplyBlock,
    Tone,
    ToolLine,
    TypedCommand,
    UserText,
    answer_hint,
)
from outrider.cli.chat.sanitize import sanitize, wrap

_TONE_STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}
_THEME = Theme({"markdown.code": "cyan", "markdown.table.header": "bold", "markdown.table.border": "dim"})
_MAX_RENDERED_CHARS = 30_000
"""Characters of a block that are still rendered as Markdown: more would hold up the typing."""
_MAX_QUESTION_LINES = 400
"""Lines of a question."""
_COLOR_SEQUENCE = re.compile(r"\x1b\[[\d;]*m")


class TerminalRenderer:
    """Knows what it painted last, so that the next thing is set off from it as it should be."""

    def __init__(self, *, is_markdown: bool = True, is_plain: bool = False) -> None:
        self._is_markdown = is_markdown and not is_plain
        self._is_plain = is_plain
        """Without colours or any other escape sequence."""
        self._last_item: DisplayItem | None = None

    def render(self, shows: Iterable[DisplayItem], width: int) -> str:
        """The text to print, lines ended."""
        console = Console(
            file=StringIO(),
            width=max(20, width),
            force_terminal=not self._is_plain,
            color_system=None if self._is_plain else "auto",
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
            theme=_THEME,
        )
        painted: list[str] = []
        for show in shows:
            if self._last_item is not None and _needs_blank_line(self._last_item, show):
                painted.append("")
            with console.capture() as capture:
                console.print(self._renderable(show, console.width))
            painted += _trim_blank_lines(capture.get())
            self._last_item = show
        return "".join(line + "\n" for line in painted)

    def _renderable(self, show: DisplayItem, width: int) -> RenderableType:
        match show:
            case UserText(text=text):
                return Text(sanitize("› " + text.strip().replace("\n", "\n  ")), style="bold cyan")
            case TypedCommand(text=text):
                return Text(sanitize("› " + text.strip()), style="dim cyan")
            case ReplyBlock(text=text):
                return self._render_block(sanitize(text))
            case ToolLine(call=what, outcome=came, failed=failed, symbol=sign):
                mark = ("  ✗ ", "red") if failed else (f"  {sign} ", "green")
                return Text.assemble(mark, sanitize(what), (f"  {sanitize(came)}", "red" if failed else "dim"))
            case OutputLines(lines=lines):
                return Text("\n".join(_quote_lines(sanitize("\n".join(lines)), "    ", width)), style="dim")
            case QuestionText(text=text, choices=choices):
                return _render_question(sanitize(text), sanitize(answer_hint(choices)) if self._is_plain else "", width)
            case Note(text=text, tone=tone):
                return Text(sanitize(text), style=_TONE_STYLES[tone])

    def _render_block(self, text: str) -> RenderableType:
        if not self._is_markdown or len(text) > _MAX_RENDERED_CHARS:
            return Text(text.strip("\n"))
        from outrider.cli.chat.markdown import render_markdown  # Only a reply needs it, and it is slow to import.

        return Padding(render_markdown(text), (0, 1, 0, 0))


def _quote_lines(text: str, indent: str, width: int) -> list[str]:
    """Somebody else's words, every line behind a bar, also where one is broken."""
    return [f"{indent}│ {line}" for line in wrap(text, width - len(indent) - 2)]


def _render_question(text: str, choices: str, width: int) -> Text:
    """All of it, since what is not seen would be allowed unseen; where that is far too much, it says so.

    The choices stand above the prompt where there is such a place, and here where there is none.
    """
    shown = "\n".join(text[:_MAX_RENDERED_CHARS].split("\n")[:_MAX_QUESTION_LINES])
    first, _, rest = shown.partition("\n")
    lines = Text.assemble(("? ", "bold yellow"), (first, "bold"))
    for line in rest.split("\n") if rest else ():
        is_quoted = line.startswith("| ")
        for part in _quote_lines(line[2:], "  ", width) if is_quoted else [f"  {line}"]:
            lines.append(f"\n{part}")
    if len(shown) < len(text):
        left_out = (
            f"\n  [{len(text) - len(shown):,} more characters are not shown: say no unless you know what they are]"
        )
        lines.append(left_out, style="bold red")
    return lines.append(f"\n  {choices}", style="bold yellow") if choices else lines


def _trim_blank_lines(text: str) -> list[str]:
    """The lines without blank ones at both ends and without the spaces that fill them up."""
    lines = [line.rstrip(" ") for line in text.split("\n")]
    while lines and not _COLOR_SEQUENCE.sub("", lines[0]).strip():
        del lines[0]
    while lines and not _COLOR_SEQUENCE.sub("", lines[-1]).strip():
        del lines[-1]
    return lines


def _needs_blank_line(last: DisplayItem, show: DisplayItem) -> bool:
    """Whether a blank line stands between these two."""
    if isinstance(last, Note | TypedCommand) and isinstance(show, Note):
        return False
    if isinstance(show, OutputLines):
        return not isinstance(last, ToolLine | OutputLines | Note)
    if isinstance(last, QuestionText) and isinstance(show, Note):
        return False
    return not (isinstance(last, ToolLine | OutputLines) and isinstance(show, ToolLine))
