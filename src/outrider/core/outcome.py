"""What a turn came to, the same shape for every runtime and every surface."""

from collections.abc import Iterable

from msgspec import Struct

from outrider.core.events import Bound, Ended, Entry, Reply, TurnOutcome
from outrider.core.parts import Usage


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
