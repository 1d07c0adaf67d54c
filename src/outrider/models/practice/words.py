"""The parts of a clause that its phrase named, and the notation phrases are written in."""

import re

from outrider.models.practice.quotes import QUOTED, Quotes
from outrider.models.practice.steps import Path, Ref

_REF = (
    r"(?:it|that|this|(?:that|this|the|the\s+same|the\s+new)\s+file"
    r"|the\s+(?:first|second|third|last|1st|2nd|3rd)(?:\s+(?:one|file|of\s+them))?)"
)
_NTH = {"first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "3rd": 2, "last": -1}
_PATH = rf"(?P<path>{_REF}|{QUOTED}|[^\s,;:?!]+)"
_CALLED = r"(?:called\s+|named\s+)?"
_FOLDER = rf"(?:the\s+)?(?:folder\s+|directory\s+)?{_CALLED}{_PATH}(?:\s+(?:folder|directory))?"
_HERE = (
    r"(?:here|there|(?:in|of|inside)\s+(?:here|(?:this|the|my|your|our)\s+(?:current\s+)?"
    r"(?:folder|directory|workspace|project|repo|repository)))"
)
_ID = r"(?P<task>t-\w{1,40})"
_THE_TASK = r"(?:(?:the|my|that|this)\s+)?(?:background\s+)?(?:task|job|command)"
_LAST_TASK = r"(?:(?:the|my)\s+)?(?:last|latest|newest|current|running)\s+(?:background\s+)?(?:task|job|command)"
_MACROS = {
    "path": _PATH,
    # Lazy, so that "the file" is first tried as a way to point at one.
    "file": rf"(?:(?:the\s+|a\s+|my\s+)?(?:new\s+)?(?:text\s+)?(?:file|document|script)?\s*{_CALLED})??{_PATH}",
    "new": rf"(?:an?\s+|the\s+)?(?:new\s+|empty\s+|text\s+)*(?P<file>file\s+)?{_CALLED}{_PATH}",
    "folder": _FOLDER,
    "here": _HERE,
    "where": rf"(?:\s+(?:{_HERE}|(?:in|of|under|inside|within|below)\s+{_FOLDER}))?",
    "within": r"(?:\s+(?:in|under|inside|within|across|throughout|through)\s+(?P<where>.+))?",
    "place": rf"(?P<where>{QUOTED}|\S+)",
    "says": (
        r"(?:with|containing|saying|holding|reading|that\s+(?:says|contains|reads|holds)|which\s+(?:says|contains))"
        r"(?:\s+(?:the\s+)?(?:contents?|text|words?|line)(?:\s+of)?)?"
    ),
    "content": r"(?P<content>.+)",
    "text": r"(?P<text>.+)",
    "old": r"(?P<every>(?:all|every|each)\s+)?(?:(?:occurrences?\s+of|the\s+words?|the\s+text)\s+)?(?P<old>.+?)",
    "replacement": r"(?P<new>.+?)",
    "pattern": r"(?P<pattern>.+?)",
    "word": rf"(?P<pattern>{QUOTED}|\S+?)",
    "name": rf"(?P<name>{QUOTED}|\S+?)",
    "command": rf"(?P<command>{QUOTED})",
    "background": r"(?P<background>\s+in\s+the\s+background)",
    "task": rf"(?:(?:{_THE_TASK}\s+)?(?:{_ID}|(?P<quoted>{QUOTED}))|{_LAST_TASK}|{_THE_TASK}|it|that)",
    # Not to be taken for a file.
    "thetask": rf"(?:{_THE_TASK}\s+{_ID}|{_LAST_TASK})",
    "named": rf"(?:(?:{_THE_TASK}\s+)?{_ID}|{_LAST_TASK}|{_THE_TASK})",
    "ending": (
        r"(?:\s+(?:to\s+(?:finish|end|be\s+done|complete)|(?:is|has)\s+(?:done|finished|ended|over)|ends|finishes))?"
    ),
    "n": r"(?P<count>\d+)",
    "from": r"(?P<first>\d+)",
    "to": r"(?P<last>\d+)",
    "s": r"\s*",
    "few": r"(?:\s+.{0,40})?",
    "rest": r"(?:\s.*)?",
}
_NOTATION = {" ": r"\s+", "(": "(?:", "[": "(?:", "]": ")?", "<": "(?:", ">": ")*", ".": r"\.", "$": r"\$"}


def phrase(notation: str) -> re.Pattern[str]:
    """A pattern: `(a|b)` is one of them, `[a ]` may be left out, `<a >` may repeat, `{name}` is one of the macros."""
    parts = re.split(r"\{(\w+)\}", notation)
    plain = ["".join(_NOTATION.get(letter, letter) for letter in part) for part in parts[::2]]
    macros = [*(_MACROS[name] for name in parts[1::2]), ""]
    whole = "".join(text + macro for text, macro in zip(plain, macros, strict=True))
    return re.compile(whole, re.IGNORECASE | re.DOTALL)


_TASK = re.compile(r"t-\w{1,40}", re.IGNORECASE)
_FILEISH = re.compile(r"(?:.*/)?(?:[^/]+\.\w{1,10}|README|LICEN[CS]E|Makefile|Dockerfile|CHANGELOG)", re.IGNORECASE)
_LANGUAGES = {
    "python": "*.py",
    "javascript": "*.js",
    "typescript": "*.ts",
    "markdown": "*.md",
    "rust": "*.rs",
    "shell": "*.sh",
    "text": "*.txt",
}
_EVERYWHERE = phrase(
    "[all ][the |this |my |our ](code|codebase|files|project|repo|repository|workspace|folder|here|everything)"
)
_KIND = re.compile(r"(?:all\s+)?(?:the\s+|my\s+)?(?:\*?\.(?P<ext>\w+)|(?P<name>\w+))\s+files?", re.IGNORECASE)


class Words:
    """What a phrase named in a clause."""

    def __init__(self, match: re.Match[str], quotes: Quotes) -> None:
        self._found = {name: value for name, value in match.groupdict().items() if value is not None}
        self._quotes = quotes

    def has(self, name: str) -> bool:
        return name in self._found

    def raw(self, name: str) -> str:
        return self._found.get(name, "").strip()

    def text(self, name: str) -> str:
        return self._quotes.show(self.raw(name))

    def is_quoted(self, name: str) -> bool:
        return self._quotes.is_quoted(self.raw(name))

    def number(self, name: str, default: int) -> int:
        return int(self._found[name][:9]) if self.has(name) else default

    def path(self) -> Path:
        """The path that was named or pointed at; the root when none was."""
        raw = self.raw("path")
        if re.fullmatch(_REF, raw, re.IGNORECASE):
            return Ref(next((_NTH[word] for word in raw.lower().split() if word in _NTH), None))
        shown = self.text("path")
        if not self.is_quoted("path") and shown.strip("."):
            shown = shown.rstrip(".")
        return shown.removeprefix("./") or "."

    def task(self) -> str | None:
        """The id of the task that was named, empty when the last was meant; None when no task can be called so."""
        named = self.text("quoted") if self.has("quoted") else self.raw("task")
        return named.lower() if not named or _TASK.fullmatch(named) else None

    def is_file(self) -> bool:
        """Whether the path is surely meant as a file's."""
        path = self.path()
        return isinstance(path, Ref) or self.is_quoted("path") or _FILEISH.fullmatch(path) is not None

    def scope(self) -> tuple[Path, str]:
        """Where to search: a path and a glob, either of them empty for everywhere."""
        raw = self.raw("where")
        if not raw or _EVERYWHERE.fullmatch(raw):
            return "", ""
        if re.fullmatch(_REF, raw, re.IGNORECASE):
            return Ref(), ""
        if kind := _KIND.fullmatch(raw):
            return "", f"*.{kind['ext']}" if kind["ext"] else _LANGUAGES.get(kind["name"].lower(), f"*.{kind['name']}")
        shown = re.sub(
            r"^(?:the\s+)?(?:folder|file|directory)\s+|\s+(?:folder|file|directory)$", "", self.text("where")
        )
        shown = re.sub(r"^the\s+(?=\S+$)", "", shown)
        shown = shown.rstrip("/") or shown
        return ("", shown) if "*" in shown else (shown, "")
