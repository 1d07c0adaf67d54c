"""A session that begins with a past lived elsewhere: what every store promises of it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outrider.core.errors import Refused
from outrider.core.events import Body, Changed, Ended, Input, Reply, Result, Started
from outrider.core.store_port import Store
from outrider.core.types import Call
from tests.contract.stores import STORES, Opener, bodies, session_with

pytestmark = pytest.mark.anyio

PAST: list[Body] = [
    Changed("instructions", "be brief"),
    Input("hello"),
    Started(),
    Reply("", 3, (Call("c1", "ring", {}),)),
    Result("c1", "ding"),
    Reply("hi", 5),
    Ended("done", 5),
]


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncGenerator[Store]:
    async with opener(tmp_path / "home") as opened:
        yield opened


async def test_an_empty_session_is_given_a_past_and_has_nothing_to_do(store: Store) -> None:
    session = await session_with(store)
    assert await store.seed(session.id, PAST)
    found = await store.find("ann", session.id)
    assert await bodies(store, session.id) == PAST
    assert found
    assert (found.title, found.head, found.has_work) == ("hello", 7, False)
    assert await store.sessions_with_work() == []


async def test_a_session_with_a_past_is_given_no_other(store: Store) -> None:
    session = await session_with(store)
    assert [await store.seed(session.id, PAST), await store.seed(session.id, PAST[:2])] == [True, False]
    assert await bodies(store, session.id) == PAST


async def test_a_past_that_cannot_be_written_down_leaves_nothing_of_it(store: Store) -> None:
    session = await session_with(store)
    with pytest.raises(Refused):
        await store.seed(session.id, [*PAST, Input("half a pair: \ud800")])
    assert await bodies(store, session.id) == []
    with pytest.raises(Refused):
        await store.seed("0" * 32, PAST)


async def test_a_turn_left_open_by_the_past_waits_to_be_taken_up_in_order(store: Store) -> None:
    session = await session_with(store)
    await store.seed(session.id, PAST[:5])
    assert await store.sessions_with_work() == [session.id]
    assert (await store.claim(session.id)).handed_over


async def test_a_past_is_found_by_its_words(store: Store) -> None:
    session = await session_with(store)
    await store.seed(session.id, PAST)
    assert [(found.session, found.seq) for found in await store.search("ann", "hello")] == [(session.id, 2)]
