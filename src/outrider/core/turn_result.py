"""The result of a turn, the same for every runtime and every client."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.events import Bound, Ended, Entry, Event, Input, Reply, TurnOutcome
from outrider.core.types import Usage


class TurnResult(Struct, frozen=True):
    """One ended turn."""

    session: str
    text: str
    """The last text of the model."""
    outcome: TurnOutcome
    steps: int
    usage: Usage
    cost: float | None
    """Dollars, or None when no price is known."""
    error: str
    """Why it failed or was stopped; empty when it succeeded."""
    seq: int
    """The entry that ended it."""
    cut: str = ""
    """Why the provider ended the last reply early (its length limit, say), or empty."""
    thread: str = ""
    """The id of the session in an external runtime."""
    turn: str = ""
    """The id of the turn in an external runtime."""


def turn_result(session: str, journal: Iterable[Entry]) -> TurnResult:
    """Fold the entries of one turn, including its `Ended`, into its result."""
    text, steps, usage, cost, cut, bound = "", 0, Usage(), None, "", Bound("", "")
    for entry in journal:
        match entry.body:
            case Reply():
                reply = entry.body
                text, cut = reply.text or text, reply.cut
                steps, usage = steps + 1, usage + reply.usage
                cost = cost if reply.cost is None else (cost or 0.0) + reply.cost
            case Ended(outcome=outcome, reason=reason, partial=partial):
                return TurnResult(
                    session,
                    partial or text,
                    outcome,
                    steps,
                    usage,
                    cost,
                    reason,
                    entry.seq,
                    cut,
                    bound.thread,
                    bound.turn,
                )
            case Bound():
                bound = entry.body
            case _:
                pass
    raise ValueError("these entries contain no ended turn")


async def collect_result(
    session: str, events: AsyncGenerator[Event, None], on_event: Callable[[Event], None] | None
) -> TurnResult:
    """The result for the input that these events begin with. Every event is passed to `on_event`."""
    turn: list[Entry] = []
    async with aclosing(events) as stream:
        async for event in stream:
            if on_event:
                on_event(event)
            if isinstance(event, Entry):
                turn.append(event)
    outcome, reply = turn_result(session, last_turn(turn)), _final_reply(turn)
    return replace(outcome, text=reply.text, cut=reply.cut, outcome="done", error="") if reply else outcome


def is_final_reply(reply: Reply, seq: int, newest: int) -> bool:
    """Whether this reply is the last about the input at `seq`: the next one is about a newer input."""
    return seq <= reply.saw < newest and not reply.calls


def _final_reply(entries: Sequence[Entry]) -> Reply | None:
    """The last reply about the first entry, an input; None when that is the last reply of the turn."""
    newest = 0
    for entry in entries:
        if isinstance(entry.body, Input) and entry.body.source == "person":
            newest = entry.seq
        elif isinstance(entry.body, Reply) and is_final_reply(entry.body, entries[0].seq, newest):
            return entry.body
    return None


async def until_turn_ended(entry: Entry, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """These events up to the `Ended` that includes this input."""
    async with aclosing(events) as stream:
        async for event in stream:
            yield event
            if isinstance(event, Entry) and isinstance(event.body, Ended) and event.body.saw >= entry.seq:
                return


def last_turn(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of the last turn, without those of an earlier one that ended before it saw a new input."""
    ends = [index for index, entry in enumerate(entries) if isinstance(entry.body, Ended)]
    return entries[ends[-2] + 1 :] if len(ends) > 1 else entries
