"""What every store guarantees about answers and permissions, shown through its port alone."""

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


async def test_an_answer_is_recorded_once_and_invalidates_no_claim(store: WholeStore) -> None:
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


async def test_only_a_question_of_this_session_can_be_answered_in_it(store: WholeStore) -> None:
    session, other = await session_with(store), await session_with(store)
    await write(store, other.id, Started(), Asked("a1", "may I?"))
    with pytest.raises(Refused, match="there is no question 'a1' in this session"):
        await store.answer(session.id, "a1", "once", "ann")
    with pytest.raises(Refused, match="this session does not exist"):
        await store.answer("gone", "a1", "once", "ann")
    assert await store.read(session.id) == []


async def test_of_many_simultaneous_answers_one_counts(store: WholeStore) -> None:
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


async def test_a_permission_is_valid_until_it_is_revoked(store: WholeStore) -> None:
    permission = await store.add_permission("ann", "workspace", "/garden", "network")
    assert permission == Permission(permission.id, "ann", "workspace", "/garden", "network", permission.created)
    assert (permission.id[:2], len(permission.id)) == ("g-", 8)
    assert await store.add_permission("ann", "workspace", "/garden", "network") == permission
    other = await store.add_permission("ann", "workspace", "/garden", "host")
    assert await store.list_permissions("ann") == [other, permission]
    assert await store.revoke_permission("ann", permission.id)
    assert not await store.revoke_permission("ann", permission.id)
    assert await store.list_permissions("ann") == [other]


async def test_a_permission_is_valid_for_its_person_only(store: WholeStore) -> None:
    permission = await store.add_permission("ann", "workspace", "/garden", "network")
    theirs = await store.add_permission("bob", "workspace", "/garden", "network")
    assert theirs.id != permission.id
    assert not await store.revoke_permission("bob", permission.id)
    assert (await store.list_permissions("ann"), await store.list_permissions("bob")) == ([permission], [theirs])


async def test_an_approval_of_one_call_is_not_a_permission(store: WholeStore) -> None:
    with pytest.raises(Refused):
        await store.add_permission("ann", "once", "/garden", "network")
    assert await store.list_permissions("ann") == []
