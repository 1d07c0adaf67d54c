"""What a turn came to, the same shape for every runtime and every surface."""

from collections.abc import Iterable

from msgspec import Struct

from outrider.core.events import Ended, Entry, Outcome, Reply
from outrider.core.parts import Usage


class Finished(Struct, frozen=True):
    """One ended turn."""

    session: str
    text: str
    """The last words the model said in it."""
    outcome: Outcome
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


def finished(session: str, journal: Iterable[Entry]) -> Finished:
    """Fold the entries of one turn, its `Ended` among them, into what it came to."""
    text, steps, usage, cost, cut = "", 0, Usage(), None, ""
    for entry in journal:
        match entry.body:
            case Reply():
                reply = entry.body
                text, cut = reply.text or text, reply.cut
                steps, usage = steps + 1, usage + reply.usage
                cost = cost if reply.cost is None else (cost or 0.0) + reply.cost
            case Ended(outcome=outcome, reason=reason, partial=partial):
                return Finished(session, partial or text, outcome, steps, usage, cost, reason, entry.seq, cut)
            case _:
                pass
    raise ValueError("these entries hold no ended turn")
