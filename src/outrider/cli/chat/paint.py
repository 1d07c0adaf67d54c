"""Turns what is to be shown into text for the terminal. Everything goes through `clean` before it is coloured."""

import re
from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from outrider.cli.chat.answers import offer
from outrider.cli.chat.clean import clean, wrap
from outrider.cli.chat.shows import Block, Note, Output, Person, Question, Ran, Show, Tone, Typed

_STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}


_THEME = Theme({"markdown.code": "cyan", "markdown.table.header": "bold", "markdown.table.border": "dim"})
_LONGEST = 30_000
"""Characters of a block that are still rendered as Markdown: more would hold up the typing."""
_MOST_LINES = 400
"""Lines of a question."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Painter:
    """Knows what it painted last, so that the next thing is set off from it as it should be."""

    def __init__(self, *, is_markdown: bool = True, is_plain: bool = False) -> None:
        self._is_markdown = is_markdown and not is_plain
        self._is_plain = is_plain
        """Without colours or any other escape sequence."""
        self._last: Show | None = None

    def paint(self, shows: Iterable[Show], width: int) -> str:
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
            if self._last is not None and _is_apart(self._last, show):
                painted.append("")
            with console.capture() as capture:
                console.print(self._renderable(show, console.width))
            painted += _trimmed(capture.get())
            self._last = show
        return "".join(line + "\n" for line in painted)

    def _renderable(self, show: Show, width: int) -> RenderableType:
        match show:
            case Person(text=text):
                return Text(clean("› " + text.strip().replace("\n", "\n  ")), style="bold cyan")
            case Typed(text=text):
                return Text(clean("› " + text.strip()), style="dim cyan")
            case Block(text=text):
                return self._block(clean(text))
            case Ran(what=what, came=came, failed=failed, mark=sign):
                mark = ("  ✗ ", "red") if failed else (f"  {sign} ", "green")
                return Text.assemble(mark, clean(what), (f"  {clean(came)}", "red" if failed else "dim"))
            case Output(lines=lines):
                return Text("\n".join(_barred(clean("\n".join(lines)), "    ", width)), style="dim")
            case Question(text=text, choices=choices):
                return _question(clean(text), clean(offer(choices)) if self._is_plain else "", width)
            case Note(text=text, tone=tone):
                return Text(clean(text), style=_STYLES[tone])

    def _block(self, text: str) -> RenderableType:
        if not self._is_markdown or len(text) > _LONGEST:
            return Text(text.strip("\n"))
        from outrider.cli.chat.markdown import render  # Only a reply needs it, and it is slow to import.

        return Padding(render(text), (0, 1, 0, 0))


def _barred(text: str, indent: str, width: int) -> list[str]:
    """Somebody else's words, every line behind a bar, also where one is broken."""
    return [f"{indent}│ {line}" for line in wrap(text, width - len(indent) - 2)]


def _question(text: str, choices: str, width: int) -> Text:
    """All of it, since what is not seen would be allowed unseen; where that is far too much, it says so.

    The choices stand above the prompt where there is such a place, and here where there is none.
    """
    shown = "\n".join(text[:_LONGEST].split("\n")[:_MOST_LINES])
    first, _, rest = shown.partition("\n")
    lines = Text.assemble(("? ", "bold yellow"), (first, "bold"))
    for line in rest.split("\n") if rest else ():
        is_quoted = line.startswith("| ")
        for part in _barred(line[2:], "  ", width) if is_quoted else [f"  {line}"]:
            lines.append(f"\n{part}")
    if len(shown) < len(text):
        left_out = (
            f"\n  [{len(text) - len(shown):,} more characters are not shown: say no unless you know what they are]"
        )
        lines.append(left_out, style="bold red")
    return lines.append(f"\n  {choices}", style="bold yellow") if choices else lines


def _trimmed(text: str) -> list[str]:
    """The lines without blank ones at both ends and without the spaces that fill them up."""
    lines = [line.rstrip(" ") for line in text.split("\n")]
    while lines and not _COLOUR.sub("", lines[0]).strip():
        del lines[0]
    while lines and not _COLOUR.sub("", lines[-1]).strip():
        del lines[-1]
    return lines


def _is_apart(last: Show, show: Show) -> bool:
    """Whether a blank line stands between these two."""
    if isinstance(last, Note | Typed) and isinstance(show, Note):
        return False
    if isinstance(show, Output):
        return not isinstance(last, Ran | Output | Note)
    if isinstance(last, Question) and isinstance(show, Note):
        return False
    return not (isinstance(last, Ran | Output) and isinstance(show, Ran))
