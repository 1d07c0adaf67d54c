"""Renderer of display items as text for the terminal. All text is sanitized before it is coloured."""

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
from outrider.cli.chat.sanitize import cell_width, sanitize, split_at_width, wrap
from outrider.core.question_text import render_question, render_whole_question
from outrider.core.text import escape_invisible

_TONE_STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}
_THEME = Theme({"markdown.code": "cyan", "markdown.table.header": "bold", "markdown.table.border": "dim"})
_MAX_RENDERED_CHARS = 30_000
"""Longest block in characters that is rendered as Markdown; a longer one would block the input line."""
_MAX_QUESTION_LINES = 400
"""Of a question of 0.1.0, which has no parts."""
_ROWS_BELOW = 6
"""Rows of the screen for the choices, the prompt and the status."""
_MIN_QUESTION_ROWS = 12
_COLOR_SEQUENCE = re.compile(r"\x1b\[[\d;]*m")


class TerminalRenderer:
    """Renders items one after the other, with blank lines between those that do not belong together."""

    def __init__(self, *, is_markdown: bool = True, is_plain: bool = False) -> None:
        self._is_markdown = is_markdown and not is_plain
        self._is_plain = is_plain
        """Without colours and other escape sequences."""
        self._last_item: DisplayItem | None = None

    def render(self, items: Iterable[DisplayItem], width: int, height: int = 24) -> str:
        """The text to print; every line ends with a newline. A question fits on a screen of this height."""
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
        lines: list[str] = []
        for item in items:
            if self._last_item is not None and _needs_blank_line(self._last_item, item):
                lines.append("")
            with console.capture() as capture:
                console.print(self._renderable(item, console.width, height))
            lines += _trim_blank_lines(capture.get())
            self._last_item = item
        return "".join(line + "\n" for line in lines)

    def _renderable(self, item: DisplayItem, width: int, height: int) -> RenderableType:
        match item:
            case UserText(text=text):
                return Text(sanitize("› " + text.strip().replace("\n", "\n  ")), style="bold cyan")
            case TypedCommand(text=text):
                return Text(sanitize("› " + text.strip()), style="dim cyan")
            case ReplyBlock(text=text):
                return self._render_block(sanitize(text))
            case ToolLine(call=call, outcome=outcome, failed=failed, symbol=symbol):
                prefix = ("  ✗ ", "red") if failed else (f"  {symbol} ", "green")
                return Text.assemble(prefix, sanitize(call), (f"  {sanitize(outcome)}", "red" if failed else "dim"))
            case OutputLines(lines=lines):
                return Text("\n".join(_quote_lines(sanitize("\n".join(lines)), "    ", width)), style="dim")
            case QuestionText():
                return _render_question(item, width, max(_MIN_QUESTION_ROWS, height - _ROWS_BELOW), self._is_plain)
            case Note(text=text, tone=tone, is_table=is_table):
                lines = [_cut(line, width) if is_table else line for line in sanitize(text).split("\n")]
                return Text("\n".join(lines), style=_TONE_STYLES[tone])

    def _render_block(self, text: str) -> RenderableType:
        if not self._is_markdown or len(text) > _MAX_RENDERED_CHARS:
            return Text(text.strip("\n"))
        from outrider.cli.chat.markdown import render_markdown  # Slow to import, and only needed for replies.

        return Padding(render_markdown(text), (0, 1, 0, 0))


def _cut(line: str, width: int) -> str:
    return line if cell_width(line) <= width else f"{split_at_width(line, width - 1)[0].rstrip()}…"


def _quote_lines(text: str, indent: str, width: int) -> list[str]:
    """The text wrapped, with a bar before every line."""
    return [f"{indent}│ {line}" for line in wrap(text, width - len(indent) - 2)]


def _exact_lines(line: str, indent: str, width: int) -> list[str]:
    """The line with a bar before each part that fits; unlike between words, no space is lost at a break."""
    parts: list[str] = []
    rest = line.expandtabs(4)
    while rest or not parts:
        part, rest = split_at_width(rest, max(2, width - len(indent) - 2))
        parts.append(f"{indent}│ {part}")
    return parts


def _render_question(question: QuestionText, width: int, rows: int, is_plain: bool) -> Text:
    """The question, cut so that it fits on the screen unless all of it was requested; each cut is marked.

    The choices are usually shown above the prompt; a plain terminal has no such lines.
    """
    text = escape_invisible(question.text)
    if question.request:
        whole = question.is_whole
        text = render_whole_question(question.request) if whole else render_question(question.request, rows, width)
    visible = text if question.is_whole or question.request else _first_lines(text)
    first, _, rest = visible.partition("\n")
    lines = Text.assemble(("? ", "bold yellow"), (first, "bold"))
    for line in rest.split("\n") if rest else ():
        is_quoted = line.startswith("| ")
        for part in _exact_lines(line[2:], "  ", width) if is_quoted else [f"  {line}"]:
            lines.append(f"\n{part}")
    if len(visible) < len(text):
        left_out = (
            f"\n  [{len(text) - len(visible):,} more characters are not shown: answer no unless you know what they are]"
        )
        lines.append(left_out, style="bold red")
    hint = answer_hint(question.choices, can_view=question.request is not None) if is_plain else ""
    return lines.append(f"\n  {sanitize(hint)}", style="bold yellow") if hint else lines


def _first_lines(text: str) -> str:
    return "\n".join(text[:_MAX_RENDERED_CHARS].split("\n")[:_MAX_QUESTION_LINES])


def _trim_blank_lines(text: str) -> list[str]:
    """The lines without blank ones at both ends and without trailing spaces."""
    lines = [line.rstrip(" ") for line in text.split("\n")]
    while lines and not _COLOR_SEQUENCE.sub("", lines[0]).strip():
        del lines[0]
    while lines and not _COLOR_SEQUENCE.sub("", lines[-1]).strip():
        del lines[-1]
    return lines


def _needs_blank_line(last: DisplayItem, item: DisplayItem) -> bool:
    if isinstance(item, Note):
        return not isinstance(last, Note | TypedCommand | QuestionText)
    if isinstance(item, OutputLines):
        return not isinstance(last, ToolLine | OutputLines | Note)
    return not (isinstance(last, ToolLine | OutputLines) and isinstance(item, ToolLine))
