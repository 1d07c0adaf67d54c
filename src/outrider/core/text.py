"""Texts for people and models: cut to a length, the closest of several names, and numbers with their units."""

import re
import shlex
from collections.abc import Iterable
from unicodedata import category


def one_line(text: str) -> str:
    """The text with every run of white space replaced by one space."""
    return " ".join(text.split())


def clip(text: str, max_length: int) -> str:
    """The text on one line of at most this many characters."""
    line = one_line(text)
    return line if len(line) <= max_length else line[: max(0, max_length - 1)].rstrip() + "…"


def head_and_tail(text: str, head: int, tail: int, hint: str = "") -> str:
    """The text, or its beginning and end with a line between them that says how much is missing."""
    if len(text) <= head + tail:
        return text
    how = f"; {hint}" if hint else ""
    gap = f"[… {len(text) - head - tail:,} of {len(text):,} characters left out{how} …]"
    return f"{text[:head]}\n{gap}\n{text[len(text) - tail :]}"


_MIN_PREFIX = 3


def closest_match(word: str, names: Iterable[str], likeness: float = 0.75) -> str:
    """The name that was probably meant: one with few other letters, or the only one that begins like this. Or empty."""
    import difflib  # Slow to import, and only needed after a mistake.

    choices = list(names)
    if near := difflib.get_close_matches(word, choices, n=1, cutoff=likeness):
        return near[0]
    longer = [name for name in choices if len(word) >= _MIN_PREFIX and name.startswith(word)]
    return longer[0] if len(longer) == 1 else ""


_JSON_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_EXPECTED = re.compile(
    r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<got>[^`]+)`| (?P<length>of length )?(?P<bound>[<>]=) (?P<number>\S+))"
)
_FIELD = re.compile(r"Object (?P<problem>missing required|contains unknown) field `(?P<name>[^`]+)`")
_INVALID_CHOICE = "Invalid enum value "
_BOUNDS = {">=": "or more", "<=": "or less"}


def explain_validation(error: Exception) -> str:
    """An error of msgspec in plain words, for example `limit must be a whole number, not a string`."""
    problem, _, place = str(error).partition(" - at `")
    path = place.removesuffix("`").removeprefix("$").removeprefix(".")
    if field := _FIELD.fullmatch(problem):
        name = f"{path}.{field['name']}" if path else field["name"]
        return f"{name} is missing" if field["problem"].startswith("missing") else f"there is no field {name}"
    name = path or "the value"
    if problem.startswith(_INVALID_CHOICE):
        return f"{name} cannot be {problem.removeprefix(_INVALID_CHOICE)}"
    expected = _EXPECTED.fullmatch(problem)
    if expected is None:
        return str(error)
    wanted = _describe_types(expected["wanted"])
    if expected["got"]:
        return f"{name} must be {wanted}, not {_describe_types(expected['got'])}"
    bound = f"{expected['number']} {_BOUNDS[expected['bound']]}"
    return f"{name} must be {wanted} of length {bound}" if expected["length"] else f"{name} must be {wanted}, {bound}"


def _describe_types(types: str) -> str:
    return " or ".join(_JSON_TYPES.get(each, each) for each in types.split(" | "))


def replace_lone_surrogates(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


# Default_Ignorable_Code_Point of Unicode, with its unassigned characters; and blanks that Python takes for printable.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_COMBINING = frozenset(("Mn", "Me"))
MAX_COMBINING = 8
"""Combining marks in a row that are shown as they are. More of them cover the lines above and below."""


def escape_invisible(text: str, keep: str = "\n\t") -> str:
    """The text with every character that cannot be seen, or that a terminal would obey, as an escape like `\\u202e`.

    So are the combining marks after the first eight in a row. Characters in `keep` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(escape_character(char) if is_escaped else char for char, is_escaped in _find_invisible(text, keep))


def invisible_characters(text: str, keep: str = "\n\t") -> list[str]:
    """The characters that `escape_invisible` escapes."""
    return [char for char, is_escaped in _find_invisible(text, keep) if is_escaped]


def _find_invisible(text: str, keep: str) -> Iterable[tuple[str, bool]]:
    marks = 0
    for char in text:
        marks = marks + 1 if is_combining(char) else 0
        yield char, char not in keep and (marks > MAX_COMBINING or not is_visible(char))


def is_combining(char: str) -> bool:
    return category(char) in _COMBINING


def is_visible(char: str) -> bool:
    """Whether it is drawn. Format characters, such as those that change the direction of text, are not."""
    return char.isprintable() and not _IGNORED.match(char)


def escape_character(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_line(text: str, max_length: int) -> str:
    """The text on one line of at most this many characters, with what cannot be seen as escapes."""
    return clip(escape_invisible(text), max_length)


def quote_unusual(text: str) -> str:
    """A path or name in a sentence of ours: in quotes, as for a shell, when it could pass for a part of it."""
    return shlex.quote(escape_invisible(text, ""))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 line`, `2 lines`, `1,200 matches`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def size(count: int) -> str:
    """A number of bytes: `12 bytes`, `4.0 KiB`, `1.5 MiB`."""
    if count < 1_024:
        return plural(count, "byte")
    return f"{count / 1_024:.1f} KiB" if count < 1_048_576 else f"{count / 1_048_576:.1f} MiB"


def duration(milliseconds: int) -> str:
    """A length of time: `1.5 s`, `40 s`, `3 min`, `2 h 5 min`."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
