"""What every store guarantees about webhooks, and what recovery keeps of them."""

import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.store.recovery import LOST_WEBHOOKS
from outrider.store.sqlite import SqliteStore, open_store
from outrider.store.webhooks import WebhookCount

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with open_store(tmp_path / "home") as opened:
        yield opened


async def test_an_input_has_one_webhook_whose_id_never_changes(store: SqliteStore) -> None:
    session = await store.create("ann", "garden", "/garden")
    made = await store.add_webhook(session.id, 3)
    other = await store.add_webhook(session.id, 5)
    assert await store.add_webhook(session.id, 3) == made
    assert (made.id != other.id, made.person, made.state) == (True, "ann", "pending")
    assert {hook.id: hook for hook in await store.pending_webhooks()} == {made.id: made, other.id: other}
    await store.update_webhook(replace(made, state="sent"))
    assert (await store.add_webhook(session.id, 3)).state == "sent"
    assert list(await store.pending_webhooks()) == [other]


async def test_the_outcome_of_an_attempt_is_stored_and_a_final_state_does_not_change(store: SqliteStore) -> None:
    session = await store.create("ann", "garden", "/garden")
    first, second = await store.add_webhook(session.id, 1), await store.add_webhook(session.id, 2)
    tried = replace(first, tries=1, due=77, why="500")
    await store.update_webhook(tried)
    assert tried in await store.pending_webhooks()
    await store.update_webhook(replace(second, state="failed", why="410"))
    await store.update_webhook(second)
    assert await store.count_webhooks() == WebhookCount(pending=1, failed=1)


async def test_webhooks_are_deleted_with_their_session(store: SqliteStore) -> None:
    session = await store.create("ann", "garden", "/garden")
    made = await store.add_webhook(session.id, 1)
    assert await store.delete("ann", session.id)
    await store.update_webhook(replace(made, tries=1))
    assert (await store.pending_webhooks(), await store.count_webhooks()) == ([], WebhookCount())
    with pytest.raises(Refused, match="does not exist"):
        await store.add_webhook(session.id, 1)


async def test_a_damaged_store_keeps_the_webhooks_that_can_be_read(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        session = await store.create("ann", "garden", "/garden")
        made = [await store.add_webhook(session.id, seq) for seq in range(1, 4)]
        store.mark_damaged()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("UPDATE hooks SET state = 'nonsense' WHERE id = ?", (made[0].id,))
    other.close()
    async with open_store(tmp_path) as store:
        assert LOST_WEBHOOKS in store.notices
        assert sorted(hook.id for hook in await store.pending_webhooks()) == sorted(hook.id for hook in made[1:])
        assert await store.check() == []
