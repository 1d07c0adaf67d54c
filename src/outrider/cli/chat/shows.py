"""What a chat can put on the screen, in closed and frozen shapes. Pure."""

from typing import Literal

from msgspec import Struct

Tone = Literal["plain", "dim", "good", "warn", "bad"]


class Person(Struct, frozen=True):
    """What a person said."""

    text: str


class Block(Struct, frozen=True):
    """A finished block of what the model says, in Markdown."""

    text: str


class Ran(Struct, frozen=True):
    """A call and what came of it."""

    what: str
    came: str
    failed: bool = False
    mark: str = "⚙"


class Output(Struct, frozen=True):
    """The last lines of what a command wrote."""

    lines: tuple[str, ...]


class Question(Struct, frozen=True):
    """What a person is asked, and what they may answer."""

    ask: str
    text: str
    choices: tuple[str, ...]


class Note(Struct, frozen=True):
    """A remark of the chat itself."""

    text: str
    tone: Tone = "dim"


class Typed(Struct, frozen=True):
    """A /command as it was typed."""

    text: str


Show = Person | Block | Ran | Output | Question | Note | Typed
