"""Following a session: every entry once; the deltas of a reply from its beginning, before it, or not at all."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from outrider.core.events import Delta, Ended, Entry, Event, Input, Reply, Started
from outrider.core.store_port import Session, Store
from outrider.engine.event_hub import BUFFER, FELL_BEHIND, EventHub, LiveDelta
from outrider.store.sqlite import open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with open_store(tmp_path / "home") as opened:
        yield opened


async def begun(store: Store) -> Session:
    session = await store.create("ann", "", "/a")
    await store.seed(session.id, [Input("hi"), Started()])
    return session


def spoken(hub: EventHub, session: Session, text: str, offset: int = 0, head: int = 2) -> None:
    for at, letter in enumerate(text, offset):
        hub.publish(session.id, LiveDelta(Delta(letter), head, at))


async def heard(stream: AsyncGenerator[Event], count: int) -> list[str]:
    """So many events, in short."""
    found = [await anext(stream) for _ in range(count)]
    return [one.text if isinstance(one, Delta) else type(one.body).__name__ for one in found]


async def test_a_follower_who_comes_in_the_middle_of_a_reply_is_spared_half_of_it(store: Store) -> None:
    hub, session = EventHub(store), await begun(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await heard(stream, 2) == ["Input", "Started"]
        spoken(hub, session, "rest", offset=5)
        hub.publish(session.id, LiveDelta(Delta("busy", "reset"), 2, 9))
        spoken(hub, session, "new")
        assert await heard(stream, 4) == ["busy", "n", "e", "w"]


async def test_deltas_that_come_after_their_reply_was_read_are_left_out(store: Store) -> None:
    hub, session = EventHub(store), await begun(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await heard(stream, 1) == ["Input"]
        hub.publish(session.id)
        spoken(hub, session, "one")
        claim = await store.claim(session.id)
        for body in (Reply("one", 2), Ended("done", 2)):
            await store.append(session.id, body, claim.generation)
            hub.publish(session.id)
        spoken(hub, session, "two", head=4)
        assert await heard(stream, 6) == ["Started", "Reply", "Ended", "t", "w", "o"]


async def test_a_slow_follower_is_told_so_and_reads_the_rest_as_an_entry(store: Store) -> None:
    hub, session = EventHub(store), await begun(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await heard(stream, 2) == ["Input", "Started"]
        spoken(hub, session, "x" * BUFFER * 2)
        assert await anext(stream) == FELL_BEHIND
        claim = await store.claim(session.id)
        await store.append(session.id, Reply("x" * BUFFER * 2, 2), claim.generation)
        hub.publish(session.id)
        told = await anext(stream)
    assert isinstance(told, Entry)
    assert isinstance(told.body, Reply)


async def test_entries_handed_over_are_told_once_and_in_order_whatever_is_between(store: Store) -> None:
    hub, session = EventHub(store), await begun(store)
    claim = await store.claim(session.id)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await heard(stream, 2) == ["Input", "Started"]
        reply = await store.append(session.id, Reply("one", 2), claim.generation)
        hub.publish(session.id, reply)
        assert await heard(stream, 1) == ["Reply"]
        hub.publish(session.id, reply)
        await store.append(session.id, Ended("done", 2), claim.generation)
        await store.accept(session.id, Input("more"), None, 20)
        hub.publish(session.id, await store.append(session.id, Started(), claim.generation))
        assert await heard(stream, 3) == ["Ended", "Input", "Started"]
