"""A session that begins with history from elsewhere: what every store guarantees about it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outrider.core.errors import Refused
from outrider.core.events import Body, Changed, Ended, Input, Reply, Result, Started
from outrider.core.store_port import Store
from outrider.core.types import Call
from tests.contract.stores import STORES, Opener, bodies, session_with

pytestmark = pytest.mark.anyio

HISTORY: list[Body] = [
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


async def test_an_empty_session_takes_a_history_and_has_no_work(store: Store) -> None:
    session = await session_with(store)
    assert await store.seed(session.id, HISTORY)
    stored = await store.find("ann", session.id)
    assert await bodies(store, session.id) == HISTORY
    assert stored
    assert (stored.title, stored.head, stored.has_work) == ("hello", 7, False)
    assert await store.sessions_with_work() == []


async def test_a_session_with_entries_takes_no_history(store: Store) -> None:
    session = await session_with(store)
    assert [await store.seed(session.id, HISTORY), await store.seed(session.id, HISTORY[:2])] == [True, False]
    assert await bodies(store, session.id) == HISTORY


async def test_a_history_that_cannot_be_stored_leaves_nothing_behind(store: Store) -> None:
    session = await session_with(store)
    with pytest.raises(Refused):
        await store.seed(session.id, [*HISTORY, Input("half a pair: \ud800")])
    assert await bodies(store, session.id) == []
    with pytest.raises(Refused):
        await store.seed("0" * 32, HISTORY)


async def test_an_open_turn_in_a_history_is_resumed_as_handed_over(store: Store) -> None:
    session = await session_with(store)
    await store.seed(session.id, HISTORY[:5])
    assert await store.sessions_with_work() == [session.id]
    assert (await store.claim(session.id)).handed_over


async def test_a_history_is_searchable(store: Store) -> None:
    session = await session_with(store)
    await store.seed(session.id, HISTORY)
    assert [(hit.session, hit.seq) for hit in await store.search("ann", "hello")] == [(session.id, 2)]
