"""The address of a turn, for every order in which inputs, replies and ends can come."""

from collections.abc import Iterator

import pytest

from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Body,
    Bound,
    Changed,
    Compacted,
    Ended,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.plan import fold
from outrider.core.types import Call
from tests.support.journals import entries

pytestmark = [pytest.mark.behaviour("B2")]
TERMINAL, COMPLETION = Input("hi", address="terminal:chat"), Input("hi", address="chat:1")
TASK, SCHEDULE = Input("ended", "task", address="python:api"), Input("due", "schedule", address="sessions:s")
JOINING = Input("and this")
"""A person's message without an address: it joins the open turn."""


def address_after(*bodies: Body) -> str:
    return fold(entries(*bodies)).address


def continuations(bodies: list[Body], more: int) -> Iterator[list[Body]]:
    """Every valid journal that begins like this and has at most so many entries more."""
    yield bodies
    if not more:
        return
    state, head = fold(entries(*bodies)), len(bodies)
    following: list[Body] = [TERMINAL, COMPLETION, TASK, SCHEDULE]
    if state.is_open:
        following += [Reply("yes", head), Reply("yes", max(state.saw, head - 1)), Ended("done", state.saw)]
        following += [Ended("interrupted", head)]
    elif state.has_unseen:
        following += [Started()]
    for body in following:
        yield from continuations([*bodies, body], more - 1)


def expected_address(journal: list[Body]) -> str:
    """The newest person's, of the inputs that no earlier turn covered; where all are notices, the first one's."""
    covered = max((body.saw for body in journal if isinstance(body, Ended)), default=0)
    inputs = [body for body in journal[covered:] if isinstance(body, Input)]
    persons = [body for body in inputs if body.source == "person"]
    return persons[-1].address if persons else inputs[0].address if inputs else ""


def test_a_turn_has_the_address_of_its_newest_person_or_else_of_its_first_notice() -> None:
    journals = list(continuations([], 6))
    assert len(journals) > 10_000
    assert [bodies for bodies in journals if address_after(*bodies) != expected_address(bodies)] == []


def test_nothing_but_a_person_moves_an_open_turn() -> None:
    call = Call("c1", "pay", {})
    others: list[Body] = [
        Reply("", 2, (call,)),
        Asked("a1", "may it?", "c1"),
        Resumed(),
        TASK,
        Answered("a1", "once", "owner"),
        Begun("c1"),
        Result("c1", "paid"),
        Compacted(1, "what happened before"),
        Changed("address", "mail:elsewhere"),
        Bound("codex", "t1"),
        SCHEDULE,
    ]
    journals = [[COMPLETION, Started(), *others[:count]] for count in range(len(others) + 1)]
    assert {address_after(*bodies) for bodies in journals} == {"chat:1"}


def test_a_turn_of_notices_keeps_the_first_address_until_a_person_comes() -> None:
    turn: list[Body] = [TASK, SCHEDULE, Started(), SCHEDULE]
    assert address_after(*turn) == "python:api"
    assert address_after(*turn, TERMINAL, TASK) == "terminal:chat"


def test_the_end_of_a_turn_leaves_nothing_of_its_address() -> None:
    turn: list[Body] = [TERMINAL, Started(), Reply("yes", 1)]
    assert address_after(*turn, Ended("done", 1)) == ""
    assert address_after(*turn, Ended("done", 1), TASK) == "python:api"
    assert address_after(*turn, TASK, Ended("done", 1)) == "python:api"
    assert address_after(*turn, TASK, Ended("interrupted", 4)) == ""


def test_a_message_without_an_address_joins_an_open_turn_and_no_other() -> None:
    turn: list[Body] = [TERMINAL, Started(), Reply("yes", 1)]
    assert address_after(*turn, JOINING) == "terminal:chat"
    assert address_after(*turn, JOINING, Ended("done", 1)) == ""
    assert address_after(*turn, Ended("done", 1), JOINING) == ""
    assert address_after(TASK, JOINING) == ""
    assert address_after(TASK, Started(), JOINING, SCHEDULE) == "python:api"
