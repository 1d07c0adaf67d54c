"""What can happen in a session.

An `Entry` is a fact: once appended it is durable and never edited.
A `Delta` is a hint: a surface that drops every delta is still correct.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from outrider.core.types import Call, Image, Reasoning, ToolSpec, Usage

Json = dict[str, object]
Source = Literal["person", "task", "schedule"]


class Input(Struct, frozen=True, tag="input", omit_defaults=True):
    """Something arrived for the session: a person's message, a finished task, a due schedule."""

    text: str
    source: Source = "person"
    images: tuple[Image, ...] = ()
    person: str = ""
    address: str = ""
    """Where its answer goes; fixed when the input is accepted."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools of whoever sent this: calls of them are theirs to run, and the turn waits for the results."""
    payer: str = ""
    """The id of the key it came with: what is done from here on counts as that key's spending."""


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """A turn began."""

    runtime: str = "native"
    model: str = ""
    """Who carries it to its end, also after a restart under other settings."""


class Resumed(Struct, frozen=True, tag="resumed", omit_defaults=True):
    """A new owner took this turn up: after a crash, or handed over by an orderly shutdown."""

    crashed: bool = True


class Bound(Struct, frozen=True, tag="bound", omit_defaults=True):
    """The session is also known elsewhere, e.g. as a thread of an external runtime."""

    runtime: str
    thread: str
    turn: str = ""
    """What is carried there now is called this there."""
    saw: int = 0
    """What happened up to here is known there."""


class Reply(Struct, frozen=True, tag="reply", omit_defaults=True):
    """One finished model reply."""

    text: str
    saw: int
    """The last `seq` in its prompt. Inputs after it belong to the next step."""
    calls: tuple[Call, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    """Dollars, where the price is known."""
    cut: str = ""
    """Why the provider ended it early (its length limit, a content filter), or empty."""


class Begun(Struct, frozen=True, tag="begun"):
    """A tool whose effects cannot be repeated is about to run."""

    call: str


class Result(Struct, frozen=True, tag="result", omit_defaults=True):
    """A call's outcome. A failure is a result too: the model decides what to do about it."""

    call: str
    text: str
    """What the model reads: bounded, saying what was cut."""
    failed: bool = False
    images: tuple[Image, ...] = ()
    blob: str = ""
    """The whole output, where `text` holds only its head and tail."""
    details: str = ""
    """One line for people, e.g. `12 lines`."""


class Asked(Struct, frozen=True, tag="asked", omit_defaults=True):
    """A question to a person that the turn waits for."""

    ask: str
    question: str
    call: str = ""
    """The call that waits for the answer, if one does."""
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What a yes allows the call beyond the sandbox."""


class Answered(Struct, frozen=True, tag="answered", omit_defaults=True):
    """A person (or a rule, or nobody in time) answered an ask."""

    ask: str
    answer: str
    person: str = ""


class Compacted(Struct, frozen=True, tag="compacted", omit_defaults=True):
    """From here on the prompt holds this summary in place of everything up to `upto`."""

    upto: int
    summary: str
    usage: Usage = Usage()
    cost: float | None = None


class Changed(Struct, frozen=True, tag="changed"):
    """A setting of this session changed, e.g. its model."""

    name: str
    value: str


TurnOutcome = Literal["done", "failed", "interrupted"]


class Ended(Struct, frozen=True, tag="ended", omit_defaults=True):
    """The turn is over and will not be resumed."""

    outcome: TurnOutcome
    saw: int
    """Inputs up to here are dealt with, whether or not the model saw them."""
    reason: str = ""
    partial: str = ""
    """What the model had said of an unfinished reply when the person stopped it."""


Body = Input | Started | Resumed | Bound | Reply | Begun | Result | Asked | Answered | Compacted | Changed | Ended


class Entry(Struct, frozen=True):
    """One line of the journal."""

    seq: int
    at: int
    """When it was written, in milliseconds since 1970."""
    body: Body


def render_entry(entry: Entry) -> Json:
    """An entry, flat: its number, its time, its type, and whatever its body holds."""
    body: Json = msgspec.to_builtins(entry.body)
    return {"type": body.pop("type"), "seq": entry.seq, "at": entry.at, **body}


class Delta(Struct, frozen=True, tag="delta"):
    """Something still being written. Never stored."""

    text: str
    kind: Literal["text", "reasoning", "call", "reset", "note"] = "text"
    """`call`: the name of a call being written. `reset`: forget the deltas since the last entry; `text` says why.
    `note`: a remark about the turn, e.g. that a busy provider is asked again."""


Event = Entry | Delta


def render_event(event: Event) -> Json:
    match event:
        case Entry():
            return render_entry(event)
        case Delta(text=text, kind=kind):
            return {"type": "delta", "kind": kind, "text": text}
