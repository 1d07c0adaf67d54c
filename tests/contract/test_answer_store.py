"""What every store promises of answers and grants, told through `core.ports` alone."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from outrider.core.approvals import Permission
from outrider.core.errors import Refused
from outrider.core.events import Answered, Asked, Started
from tests.contract.stores import STORES, Opener, WholeStore, bodies, session_with, write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncGenerator[WholeStore]:
    async with opener(tmp_path / "home") as opened:
        yield opened


async def test_an_answer_is_recorded_once_and_fences_nobody_out(store: WholeStore) -> None:
    session = await session_with(store, "push it")
    claim = await store.claim(session.id)
    for body in (Started(), Asked("a1", "may I?", choices=("once", "no")), Asked("a2", "and this?")):
        await store.append(session.id, body, claim.generation)
    entry = await store.answer(session.id, "a1", "once", "ann")
    assert entry
    assert (entry.seq, entry.body) == (5, Answered("a1", "once", "ann"))
    assert await store.answer(session.id, "a1", "no", "ann") is None
    assert await store.append(session.id, Answered("a2", "no"), claim.generation)
    assert await store.answer(session.id, "a2", "once", "ann") is None
    assert (await bodies(store, session.id))[4:] == [Answered("a1", "once", "ann"), Answered("a2", "no")]
    assert await store.append(session.id, Answered("a1", "no"), claim.generation, "answer/a1") is None
    assert await store.sessions_with_work() == [session.id]


async def test_what_was_not_asked_in_a_session_cannot_be_answered_there(store: WholeStore) -> None:
    session, other = await session_with(store), await session_with(store)
    await write(store, other.id, Started(), Asked("a1", "may I?"))
    with pytest.raises(Refused, match="there is no question 'a1' in this session"):
        await store.answer(session.id, "a1", "once", "ann")
    with pytest.raises(Refused, match="this session does not exist"):
        await store.answer("gone", "a1", "once", "ann")
    assert await store.read(session.id) == []


async def test_of_many_answers_at_once_one_counts(store: WholeStore) -> None:
    session = await session_with(store)
    await write(store, session.id, Started(), Asked("a1", "may I?"))
    counted: list[str] = []

    async def answer(person: str) -> None:
        if await store.answer(session.id, "a1", "once", person):
            counted.append(person)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(answer, f"p{number}")
    assert (await bodies(store, session.id))[2:] == [Answered("a1", "once", counted[0])]
    assert len(counted) == 1


async def test_a_grant_holds_until_it_is_taken_back(store: WholeStore) -> None:
    grant = await store.add_permission("ann", "workspace", "/garden", "network")
    assert grant == Permission(grant.id, "ann", "workspace", "/garden", "network", grant.created)
    assert (grant.id[:2], len(grant.id)) == ("g-", 8)
    assert await store.add_permission("ann", "workspace", "/garden", "network") == grant
    other = await store.add_permission("ann", "workspace", "/garden", "host")
    assert await store.list_permissions("ann") == [other, grant]
    assert await store.revoke_permission("ann", grant.id)
    assert not await store.revoke_permission("ann", grant.id)
    assert await store.list_permissions("ann") == [other]


async def test_what_one_person_allowed_is_nothing_to_another(store: WholeStore) -> None:
    grant = await store.add_permission("ann", "workspace", "/garden", "network")
    theirs = await store.add_permission("bob", "workspace", "/garden", "network")
    assert theirs.id != grant.id
    assert not await store.revoke_permission("bob", grant.id)
    assert (await store.list_permissions("ann"), await store.list_permissions("bob")) == ([grant], [theirs])


async def test_a_yes_to_one_call_is_no_grant(store: WholeStore) -> None:
    with pytest.raises(Refused):
        await store.add_permission("ann", "once", "/garden", "network")
    assert await store.list_permissions("ann") == []
