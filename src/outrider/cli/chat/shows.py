"""What a chat can put on the screen, in closed and frozen shapes. Pure."""

from typing import Literal

from msgspec import Struct

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
