"""Events of a session.

An `Entry` is a fact: once appended, it is durable and never edited.
A `Delta` is a hint: a client that drops every delta is still correct.
"""

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import ApprovalRequest
from outrider.core.tasks import TaskNotice
from outrider.core.types import Call, Image, Reasoning, ToolSpec, Usage

Json = dict[str, object]
Source = Literal["person", "task", "schedule"]


class Input(Struct, frozen=True, tag="input", omit_defaults=True):
    """A message to the session: from a person, a finished task or a due schedule."""

    text: str
    source: Source = "person"
    images: tuple[Image, ...] = ()
    person: str = ""
    address: str = ""
    """Where the answer goes, fixed when the input is accepted."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools of the client that sent this. The client runs their calls, and the turn waits for the results."""
    payer: str = ""
    """The id of the API key it came with. The cost of the work that follows counts towards that key's limit."""
    notice: TaskNotice | None = None
    """What a task reports, as data for people; `text` is the same for the model."""


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """A turn began."""

    runtime: str = "native"
    model: str = ""
    """The model that runs it to its end, also after a restart with other settings."""


class Resumed(Struct, frozen=True, tag="resumed", omit_defaults=True):
    """A process resumed this turn, after a crash or an orderly shutdown."""

    crashed: bool = True


class Bound(Struct, frozen=True, tag="bound", omit_defaults=True):
    """The session also exists elsewhere, e.g. as a thread of an external runtime."""

    runtime: str
    thread: str
    turn: str = ""
    """The id of the running turn there."""
    saw: int = 0
    """The last entry that is known there."""


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
    """A call that must not be repeated is about to run."""

    call: str


class Result(Struct, frozen=True, tag="result", omit_defaults=True):
    """The outcome of a call. A failure is a result too: the model decides what to do about it."""

    call: str
    text: str
    """What the model reads. It is bounded and says what was cut."""
    failed: bool = False
    images: tuple[Image, ...] = ()
    blob: str = ""
    """The whole output, where `text` holds only its head and tail."""
    details: str = ""
    """One line for people, e.g. `12 lines`."""
    args: Json | None = None
    """The arguments of the call, where an external program reported them only with its result."""


def completed_call(call: Call, result: Result) -> Call:
    """The call with the arguments it really had."""
    return call if result.args is None else replace(call, args=result.args)


class Asked(Struct, frozen=True, tag="asked", omit_defaults=True):
    """A question to a person. The turn waits for the answer."""

    ask: str
    question: str
    call: str = ""
    """The call that waits for the answer, if one does."""
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What a yes allows the call outside its sandbox."""
    digest: str = ""
    """The digest of what is asked. An answer holds for exactly that; empty in questions of 0.1.0."""
    request: ApprovalRequest | None = None
    """All of what is asked; `question` may be cut."""


def short_question_id(session: str, asked: Asked) -> str:
    """The id that people type: the beginning of the session's id, and the number of the call and of the question."""
    number = asked.ask.removeprefix("ask-").removeprefix("c").lstrip("0")
    return f"{session[:8]}.{number or asked.ask}"


class Answered(Struct, frozen=True, tag="answered", omit_defaults=True):
    """The answer to a question, by a person, by a rule, or because the time was up."""

    ask: str
    answer: str
    person: str = ""


class Compacted(Struct, frozen=True, tag="compacted", omit_defaults=True):
    """From here on the prompt has this summary in place of everything up to `upto`."""

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
    """Inputs up to here are done, whether or not the model saw them."""
    reason: str = ""
    partial: str = ""
    """The unfinished reply at the moment the person stopped the turn."""


Body = Input | Started | Resumed | Bound | Reply | Begun | Result | Asked | Answered | Compacted | Changed | Ended


class Entry(Struct, frozen=True):
    """One record of the journal."""

    seq: int
    at: int
    """When it was written, in milliseconds since 1970."""
    body: Body


def render_entry(entry: Entry) -> Json:
    """An entry as one flat object: type, number, time and the fields of its body."""
    body: Json = msgspec.to_builtins(entry.body)
    return {"type": body.pop("type"), "seq": entry.seq, "at": entry.at, **body}


class Delta(Struct, frozen=True, tag="delta"):
    """Something still being written. Never stored."""

    text: str
    kind: Literal["text", "reasoning", "call", "reset", "note"] = "text"
    """`call`: the name of a call being written. `reset`: discard the deltas since the last entry; `text` says why.
    `note`: a remark about the turn, e.g. that a request to a busy provider is repeated."""


Event = Entry | Delta


def render_event(event: Event) -> Json:
    match event:
        case Entry():
            return render_entry(event)
        case Delta(text=text, kind=kind):
            return {"type": "delta", "kind": kind, "text": text}
