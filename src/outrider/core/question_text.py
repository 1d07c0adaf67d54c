"""Text of a question about a call: everything that would be done, in lines that the model's text cannot imitate.

What the model wrote is quoted line by line. Each part has its own share of the screen, so that no part can push another
one out of sight. A part that is cut says how much is left out, and has a digest of the whole. Characters that cannot be
seen are written as escapes.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from unicodedata import east_asian_width

from msgspec import Struct

from outrider.core.approvals import HOST, NETWORK, PATH_ARGUMENTS, ApprovalRequest
from outrider.core.events import Asked
from outrider.core.text import (
    MAX_COMBINING,
    escape_character,
    escape_invisible,
    invisible_characters,
    is_combining,
    is_visible,
    plural,
    quote_unusual,
)

ROWS, COLUMNS = 60, 100
"""The size of a question where the size of the screen is not known: in the journal and over the API."""
MAX_CHARS = 1_000_000
"""A request with more characters is not put to a person."""
_MIN_ROWS = 2
"""Of a part that is cut: its beginning, and the line that says so."""
_MAX_HEADLINE_NEEDS = 200
"""Characters of needs in the first line; more of them get quoted lines of their own."""
_FIRST_DETAILS = ("All files", *PATH_ARGUMENTS)
"""Details that come before the command: what is changed is more important than how."""
_TOOL_NOUNS = {"shell": "command", "edit": "edit", "patch": "patch", "write": "file write", "tasks": "input to a task"}
_NEED_TEXTS = {NETWORK: "with network access", HOST: "without a sandbox", "codex": "in Codex's sandbox"}
_SCOPE = "A yes for the session or the workspace covers every later command there that needs the same."
_NEED_NOTES = {
    NETWORK: "The network is every host, including services on this machine's loopback.",
    HOST: "Without a sandbox, a command can do all that the user who runs Outrider can.",
}

_GIT_NOTE = "Git's hooks and settings there run as you, outside the sandbox."


def render_question(request: ApprovalRequest, rows: int = ROWS, columns: int = COLUMNS) -> str:
    """The question, in about so many rows of a screen of this width."""
    return "\n".join(_lines(request, rows, columns))


def render_whole_question(request: ApprovalRequest) -> str:
    """The question with nothing left out."""
    return "\n".join(_lines(request, None, COLUMNS))


def whole_question(asked: Asked) -> str:
    """All of a question. One of 0.1.0 has only its text."""
    return render_whole_question(asked.request) if asked.request else escape_invisible(asked.question)


def fitted_question(asked: Asked, rows: int, columns: int) -> str:
    """The question in about so many rows of a screen of this width; each cut is marked."""
    return render_question(asked.request, rows, columns) if asked.request else escape_invisible(asked.question)


class _Part(Struct, frozen=True):
    label: str
    text: str


def _lines(request: ApprovalRequest, rows: int | None, columns: int) -> Iterable[str]:
    headline, parts = _headline_and_parts(request)
    notes = [*_escape_note(parts), *_scope_notes(request)]
    width = max(20, columns - 4)
    shares: Sequence[int | None] = [None] * len(parts)
    if rows is not None:
        # Our own lines are broken between words, which takes more room.
        own_rows = sum(_rows(line, max(20, width - 10)) for line in (headline, *notes)) + sum(
            bool(part.label) for part in parts
        )
        shares = _share(max(0, rows - own_rows), [_rows(part.text, width, rows) if part.text else 0 for part in parts])
    yield headline
    for part, share in zip(parts, shares, strict=True):
        if part.label:
            yield f"{part.label}:" if part.text else f"{part.label}."
        if part.text:
            yield from _quote(part.text, share, width)
    yield from notes


def _headline_and_parts(request: ApprovalRequest) -> tuple[str, Sequence[_Part]]:
    what = _TOOL_NOUNS.get(request.tool) or f"{quote_unusual(request.tool)} call"
    workspace = quote_unusual(request.workspace)
    needs = [_describe_need(need) for need in request.needs]
    text = " and ".join(needs)
    parts: list[_Part] = []
    # The model chooses the path of a need: only one without spaces and marks is not a sentence.
    if len(text) > _MAX_HEADLINE_NEEDS or any(quote_unusual(need) != need for need in request.needs):
        parts.append(_Part("All needs", "\n".join(needs)))
        text = f"with {plural(len(needs), 'permission')}"
    details = [_Part(detail.label, detail.text) for detail in request.details]
    parts += [detail for detail in details if detail.label in _FIRST_DETAILS]
    # Without a label, the command would read as the rest of what is before it.
    parts += [_Part("What it does" if parts else "", request.command)] if request.command else []
    parts += [detail for detail in details if detail.label not in _FIRST_DETAILS]
    parts += [_Part("The model's reason", request.why)] if request.why else []
    return (f"Allow this {what} {text}, in {workspace}?" if text else f"Allow this {what} in {workspace}?"), parts


def _describe_need(need: str) -> str:
    kind, _, target = need.partition(":")
    if target:
        return f"with {quote_unusual(kind)} access to {quote_unusual(target)}"
    return _NEED_TEXTS.get(need, f"with {quote_unusual(need)}")


def _scope_notes(request: ApprovalRequest) -> Iterable[str]:
    """How far a yes reaches, where more than one call can be allowed."""
    notes = [note for need, note in _NEED_NOTES.items() if need in request.needs]
    if any(map(_changes_git, request.needs)):
        notes.append(_GIT_NOTE)
    return [" ".join([_SCOPE, *notes])] if request.needs else []


def _changes_git(need: str) -> bool:
    kind, _, path = need.partition(":")
    return kind == "write" and any(name.endswith(".git") for name in path.split("/"))


def _escape_note(parts: Sequence[_Part]) -> Sequence[str]:
    hidden = [char for part in parts for char in invisible_characters(part.text)]
    if not hidden:
        return []
    examples = ", ".join(map(escape_character, list(dict.fromkeys(hidden))[:5]))
    return [f"[{plural(len(hidden), 'character')} that cannot be seen, or that a terminal obeys, shown as {examples}]"]


def _share(rows: int, needed: Sequence[int]) -> Sequence[int]:
    """How many rows each part gets: what it needs, or an equal share of what the smaller parts leave."""
    shares = [0] * len(needed)
    left, order = rows, sorted(range(len(needed)), key=lambda index: needed[index])
    for position, index in enumerate(order):
        fair = max(_MIN_ROWS, left // (len(order) - position))
        shares[index] = min(needed[index], fair)
        left = max(0, left - shares[index])
    return shares


def _quote(text: str, rows: int | None, width: int) -> Iterable[str]:
    """The text behind bars, in so many rows: whole, or its beginning and end with a line that says what is missing."""
    if rows is None or _walk(text, width, rows)[0] == len(text):
        yield from _bars(text)
        return
    kept = max(1, rows - 1)
    head = _walk(text, width, kept - kept // 3)[0]
    tail = min(len(text) - head, _walk(reversed(text), width, kept // 3)[0]) if kept // 3 else 0
    left_out = text[head : len(text) - tail]
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    lines = plural(left_out.count("\n") + 1, "line")
    yield from _bars(text[:head])
    yield f"[{len(left_out):,} of {len(text):,} characters ({lines}) cut; sha256 {digest}]"
    yield from _bars(text[len(text) - tail :]) if tail else ()


def _bars(text: str) -> Iterable[str]:
    return (f"| {line}" for line in escape_invisible(text).split("\n"))


def _rows(text: str, width: int, most: int = 1_000) -> int:
    """The rows that a text takes on a screen; one more than `most` when it takes more."""
    count, rows = _walk(text, width, most)
    return rows if count == len(text) else most + 1


def _walk(chars: Iterable[str], width: int, rows: int) -> tuple[int, int]:
    """How many of these characters fit into so many rows, and how many rows they take."""
    count, used, column, marks = 0, 1, 0, 0
    for char in chars:
        marks = marks + 1 if is_combining(char) else 0
        cells = 0 if char == "\n" else _cells(char, is_escaped=marks > MAX_COMBINING)
        if char == "\n" or column + cells > width:
            if used == rows:
                break
            used, column = used + 1, 0
        column += cells
        count += 1
    return count, used


def _cells(char: str, *, is_escaped: bool) -> int:
    if char == "\t":
        return 8
    if is_escaped or not is_visible(char):
        return len(escape_character(char))
    return 2 if east_asian_width(char) in "WF" else 1
