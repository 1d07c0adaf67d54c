"""What a chat can put on the screen, in closed and frozen shapes, and how a call reads in one line. Pure."""

from typing import Literal

from msgspec import Struct

from outrider.cli.chat.clean import one_line
from outrider.core.events import Result
from outrider.core.parts import Call

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


class Note(Struct, frozen=True):
    """A remark of the chat itself."""

    text: str
    tone: Tone = "dim"


class Typed(Struct, frozen=True):
    """A /command as it was typed."""

    text: str


Show = Person | Block | Ran | Note | Typed

_TELLING = ("path", "command", "pattern", "query", "url", "name")
"""Which argument says best what a call is about."""


def call_line(call: Call, longest: int = 60) -> str:
    """A call in a few words, e.g. `read README.md`."""
    telling = [call.args[name] for name in _TELLING if name in call.args] or list(call.args.values())
    words = next((value for value in telling if isinstance(value, str | int | float) and str(value).strip()), "")
    return one_line(f"{call.tool} {words}", longest)


def ran(call: Call | None, result: Result) -> Ran:
    """A call's line, once its result is known."""
    what = call_line(call) if call else "a call"
    if result.failed:
        return Ran(what, one_line(result.details or result.text or "failed", 160), failed=True)
    return Ran(what, one_line(result.details, 80))
