"""Hides quoted text from the grammar, so that nothing in quotes is taken for a word of the request."""

import re

OPEN, CLOSE = "\ue000", "\ue001"
QUOTED = rf"{OPEN}\d+{CLOSE}"
_QUOTES = re.compile(
    r"```[^\n`]*\n(?P<fence>.*?)\n?```"
    r"|`(?P<code>[^`\n]+)`"
    r'|"(?P<double>[^"]*)"'
    r"|“(?P<curly>[^”]{0,2000})”"
    r"|«(?P<angle>[^»]{0,2000})»"
    r"|(?<![\w'])'(?P<single>[^'\n]*(?:\w'\w[^'\n]*)*)'(?!\w)",
    re.DOTALL,
)
_MARK = re.compile(rf"{OPEN}(\d+){CLOSE}")


class Quotes:
    """A text whose quoted parts are hidden behind marks."""

    def __init__(self, text: str) -> None:
        self._inner: list[str] = []
        self._outer: list[str] = []
        self.masked = _QUOTES.sub(self._hide, text.replace(OPEN, "").replace(CLOSE, ""))

    def _hide(self, match: re.Match[str]) -> str:
        return self._mark(next((group for group in match.groups() if group is not None), ""), match[0])

    def _mark(self, inner: str, outer: str) -> str:
        self._inner.append(inner)
        self._outer.append(outer)
        return f"{OPEN}{len(self._inner) - 1}{CLOSE}"

    def hide(self, masked: str) -> str:
        """A mark for this part too, whatever is quoted in it."""
        shown = self.show(masked)
        return self._mark(shown, shown)

    def show(self, masked: str) -> str:
        """What stands behind: without its quotes when it is one quoted text, else as it was written."""
        only = _MARK.fullmatch(masked.strip())
        if only:
            return self._inner[int(only[1])]
        return _MARK.sub(lambda mark: self._outer[int(mark[1])], masked)

    def outer(self, mark: str) -> str:
        """What stands behind one mark, with its quotes."""
        return self._outer[int(mark[len(OPEN) : -len(CLOSE)])]

    def is_quoted(self, masked: str) -> bool:
        return _MARK.fullmatch(masked.strip()) is not None
