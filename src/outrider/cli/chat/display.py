"""What a chat can put on the screen, in closed and frozen shapes. Pure.

What a person may answer to a question, and what they meant by what they typed. Pure.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from outrider.core.approvals import NO, ONCE, SESSION, WORKSPACE

Tone = Literal["plain", "dim", "good", "warn", "bad"]


class UserText(Struct, frozen=True):
    """What a person said."""

    text: str


class ReplyBlock(Struct, frozen=True):
    """A finished block of what the model says, in Markdown."""

    text: str


class ToolLine(Struct, frozen=True):
    """A call and what came of it."""

    call: str
    outcome: str
    failed: bool = False
    symbol: str = "⚙"


class OutputLines(Struct, frozen=True):
    """The last lines of what a command wrote."""

    lines: tuple[str, ...]


class QuestionText(Struct, frozen=True):
    """What a person is asked, and what they may answer."""

    question_id: str
    text: str
    choices: tuple[str, ...]


class Note(Struct, frozen=True):
    """A remark of the chat itself."""

    text: str
    tone: Tone = "dim"


class TypedCommand(Struct, frozen=True):
    """A /command as it was typed."""

    text: str


DisplayItem = UserText | ReplyBlock | ToolLine | OutputLines | QuestionText | Note | TypedCommand
_CHOICE_LABELS = {ONCE: "once", SESSION: "this session", WORKSPACE: "this workspace", NO: "no"}
_ANSWER_TEXTS = {
    ONCE: "✓ allowed, this once",
    SESSION: "✓ allowed in this session from now on (/permissions)",
    WORKSPACE: "✓ allowed in this workspace from now on (/permissions)",
}


def parse_answer(text: str, choices: Sequence[str]) -> str | None:
    """The choice that was typed, as a word or as its letter; None when this is no answer. A bare yes reaches least."""
    typed = text.strip().lower()
    if typed in ("y", "yes") and ONCE in choices:
        return ONCE
    for choice in choices:
        if typed and typed in (choice.lower(), _CHOICE_LABELS.get(choice, ""), _shortcut(choice, choices)):
            return choice
    return None


def answer_hint(choices: Sequence[str]) -> str:
    """The choices in one line, the letter of each marked."""
    return " · ".join(_label_with_shortcut(choice, choices) for choice in choices)


def answer_note(answer: str, person: str) -> Note:
    """What an answer means, in a line."""
    if answer == NO:
        return Note("✗ not allowed" if person else "✗ not allowed: nobody was there to answer", "warn")
    return Note(_ANSWER_TEXTS.get(answer, f"✓ answered: {answer}"), "good")


def _shortcut(choice: str, choices: Sequence[str]) -> str:
    """Its first letter, where no other choice begins with it."""
    first = choice[:1].lower()
    return first if sum(other[:1].lower() == first for other in choices) == 1 else ""


def _label_with_shortcut(choice: str, choices: Sequence[str]) -> str:
    words = _CHOICE_LABELS.get(choice, choice)
    if not _shortcut(choice, choices):
        return words
    before, _, last = words.rpartition(" ") if choice in _CHOICE_LABELS else ("", "", words)
    return f"{before} [{last[0]}]{last[1:]}".strip()
