"""The event hub: every entry once; the deltas of a reply from its first character, or not at all."""

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
    async with open_store(tmp_path / "home") as store:
        yield store


async def create_started(store: Store) -> Session:
    session = await store.create("ann", "", "/a")
    await store.seed(session.id, [Input("hi"), Started()])
    return session


def publish_text(hub: EventHub, session: Session, text: str, offset: int = 0, head: int = 2) -> None:
    for at, letter in enumerate(text, offset):
        hub.publish(session.id, LiveDelta(Delta(letter), head, at))


async def read(stream: AsyncGenerator[Event], count: int) -> list[str]:
    """The next events: the text of a delta, the kind of an entry."""
    events = [await anext(stream) for _ in range(count)]
    return [event.text if isinstance(event, Delta) else type(event.body).__name__ for event in events]


async def test_a_follower_that_joins_during_a_reply_gets_no_half_reply(store: Store) -> None:
    hub, session = EventHub(store), await create_started(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await read(stream, 2) == ["Input", "Started"]
        publish_text(hub, session, "rest", offset=5)
        hub.publish(session.id, LiveDelta(Delta("busy", "reset"), 2, 9))
        publish_text(hub, session, "new")
        assert await read(stream, 4) == ["busy", "n", "e", "w"]


async def test_deltas_of_a_reply_that_was_read_already_are_dropped(store: Store) -> None:
    hub, session = EventHub(store), await create_started(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await read(stream, 1) == ["Input"]
        hub.publish(session.id)
        publish_text(hub, session, "one")
        claim = await store.claim(session.id)
        for body in (Reply("one", 2), Ended("done", 2)):
            await store.append(session.id, body, claim.generation)
            hub.publish(session.id)
        publish_text(hub, session, "two", head=4)
        assert await read(stream, 6) == ["Started", "Reply", "Ended", "t", "w", "o"]


async def test_a_slow_follower_gets_a_reset_and_reads_the_reply_as_an_entry(store: Store) -> None:
    hub, session = EventHub(store), await create_started(store)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await read(stream, 2) == ["Input", "Started"]
        publish_text(hub, session, "x" * BUFFER * 2)
        assert await anext(stream) == FELL_BEHIND
        claim = await store.claim(session.id)
        await store.append(session.id, Reply("x" * BUFFER * 2, 2), claim.generation)
        hub.publish(session.id)
        event = await anext(stream)
    assert isinstance(event, Entry)
    assert isinstance(event.body, Reply)


async def test_published_entries_come_once_and_in_order_with_those_in_between(store: Store) -> None:
    hub, session = EventHub(store), await create_started(store)
    claim = await store.claim(session.id)
    async with aclosing(hub.follow(session.id)) as stream:
        assert await read(stream, 2) == ["Input", "Started"]
        reply = await store.append(session.id, Reply("one", 2), claim.generation)
        hub.publish(session.id, reply)
        assert await read(stream, 1) == ["Reply"]
        hub.publish(session.id, reply)
        await store.append(session.id, Ended("done", 2), claim.generation)
        await store.accept(session.id, Input("more"), None, 20)
        hub.publish(session.id, await store.append(session.id, Started(), claim.generation))
        assert await read(stream, 3) == ["Ended", "Input", "Started"]
