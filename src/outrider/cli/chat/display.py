"""Display items: everything the chat can print, as a closed union of values; and the answers to questions. Pure."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from outrider.core.approvals import ANSWERS, NO, ONCE, SESSION, WORKSPACE, ApprovalRequest

Tone = Literal["plain", "dim", "good", "warn", "bad"]


class UserText(Struct, frozen=True):
    text: str


class ReplyBlock(Struct, frozen=True):
    """A finished block of a reply, in Markdown."""

    text: str


class ToolLine(Struct, frozen=True):
    """A tool call and its outcome."""

    call: str
    outcome: str
    failed: bool = False
    symbol: str = "⚙"


class OutputLines(Struct, frozen=True):
    """The last lines of a command's output."""

    lines: tuple[str, ...]


class QuestionText(Struct, frozen=True):
    """A question to the user, and the possible answers."""

    question_id: str
    text: str
    choices: tuple[str, ...]
    request: ApprovalRequest | None = None
    """What is asked; `text` may leave out a part of it."""
    is_whole: bool = False
    """Show all of it, however long."""


class Note(Struct, frozen=True):
    """A notice of the chat itself."""

    text: str
    tone: Tone = "dim"
    is_table: bool = False
    """Whether each of its lines stays one line: what does not fit is cut."""


class TypedCommand(Struct, frozen=True):
    """A slash command, as typed."""

    text: str


DisplayItem = UserText | ReplyBlock | ToolLine | OutputLines | QuestionText | Note | TypedCommand
_CHOICE_LABELS = {
    ONCE: "once",
    SESSION: "every later command of this session",
    WORKSPACE: "every later command in this workspace",
    NO: "no",
}
_SHORT_LABELS = {SESSION: "this session", WORKSPACE: "this workspace"}
_VIEW = ("v", "view", "view all")
_ANSWER_TEXTS = {
    ONCE: "✓ Allowed once",
    SESSION: "✓ Allowed for this session (see /permissions)",
    WORKSPACE: "✓ Allowed for this workspace (see /permissions)",
}


def parse_answer(text: str, choices: Sequence[str]) -> str | None:
    """The choice that was typed, as a word or a letter; None when the text is not an answer. A bare yes means once."""
    typed = text.strip().lower()
    if typed in ("y", "yes") and ONCE in choices:
        return ONCE
    for choice in choices:
        labels = (_CHOICE_LABELS.get(choice, ""), _SHORT_LABELS.get(choice, ""))
        if typed and typed in (choice.lower(), *labels, _shortcut(choice, choices)):
            return choice
    return None


def is_unoffered_answer(text: str, choices: Sequence[str]) -> bool:
    """Whether this would be an answer to another approval, but is none to one with these choices."""
    is_approval = set(choices) <= set(ANSWERS)
    return is_approval and not parse_answer(text, choices) and parse_answer(text, ANSWERS) is not None


def is_view_request(text: str, choices: Sequence[str]) -> bool:
    """Whether this asks for the whole of a question with these choices."""
    return text.strip().lower() in _VIEW and not any(choice.lower().startswith("v") for choice in choices)


def answer_hint(choices: Sequence[str], *, can_view: bool = False) -> str:
    """The choices in one line, with the letter of each marked; with `can_view`, also how to see the whole question."""
    labels = [_label_with_shortcut(choice, choices) for choice in choices]
    return " · ".join([*labels, "[v]iew all"] if can_view else labels)


def answer_note(answer: str, person: str) -> Note:
    if answer == NO:
        return Note("✗ Denied" if person else "✗ Denied: nobody answered", "warn")
    return Note(_ANSWER_TEXTS.get(answer, f"✓ Answered: {answer}"), "good")


def _shortcut(choice: str, choices: Sequence[str]) -> str:
    """The first letter, if no other choice begins with it."""
    first = choice[:1].lower()
    return first if sum(other[:1].lower() == first for other in choices) == 1 else ""


def _label_with_shortcut(choice: str, choices: Sequence[str]) -> str:
    label = _CHOICE_LABELS.get(choice, choice)
    if not _shortcut(choice, choices):
        return label
    before, _, last = label.rpartition(" ") if choice in _CHOICE_LABELS else ("", "", label)
    return f"{before} [{last[0]}]{last[1:]}".strip()
