"""What a turn came to, the same shape for every runtime and every surface."""

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
    """The last words the model said in it."""
    outcome: TurnOutcome
    steps: int
    usage: Usage
    cost: float | None
    """Dollars, or None when no price is known."""
    error: str
    """Why it failed or was stopped; empty when it is done."""
    seq: int
    """The entry that ended it."""
    cut: str = ""
    """Why the provider ended the last reply early (its length limit, say), or empty."""
    thread: str = ""
    """What the runtime that carried it calls this session, where it is not our own loop."""
    turn: str = ""
    """And what it calls this turn."""


def turn_result(session: str, journal: Iterable[Entry]) -> TurnResult:
    """Fold the entries of one turn, its `Ended` among them, into what it came to."""
    text, steps, usage, cost, cut, bound = "", 0, Usage(), None, "", Bound("", "")
    for entry in journal:
        match entry.body:
            case Reply():
                reply = entry.body
                text, cut = reply.text or text, reply.cut
                steps, usage = steps + 1, usage + reply.usage
                cost = cost if reply.cost is None else (cost or 0.0) + reply.cost
            case Ended(outcome=outcome, reason=reason, partial=partial):
                told = partial or text
                return TurnResult(
                    session, told, outcome, steps, usage, cost, reason, entry.seq, cut, bound.thread, bound.turn
                )
            case Bound():
                bound = entry.body
            case _:
                pass
    raise ValueError("these entries hold no ended turn")


async def collect_result(
    session: str, events: AsyncGenerator[Event, None], on_event: Callable[[Event], None] | None
) -> TurnResult:
    """What came of the input that these events, each passed on, begin with."""
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
    """Whether this reply is the last about the input at `seq`: the next is about the newest one, which it missed."""
    return seq <= reply.saw < newest and not reply.calls


def _final_reply(entries: Sequence[Entry]) -> Reply | None:
    """What was said last of the first of these, an input; None when that is what the turn ended with."""
    newest = 0
    for entry in entries:
        if isinstance(entry.body, Input) and entry.body.source == "person":
            newest = entry.seq
        elif isinstance(entry.body, Reply) and is_final_reply(entry.body, entries[0].seq, newest):
            return entry.body
    return None


async def until_turn_ended(entry: Entry, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """These events, to the `Ended` that deals with this input."""
    async with aclosing(events) as stream:
        async for event in stream:
            yield event
            if isinstance(event, Entry) and isinstance(event.body, Ended) and event.body.saw >= entry.seq:
                return


def last_turn(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Without what belongs to an earlier turn, such as one that ended just before it could see a new input."""
    ends = [index for index, entry in enumerate(entries) if isinstance(entry.body, Ended)]
    return entries[ends[-2] + 1 :] if len(ends) > 1 else entries
