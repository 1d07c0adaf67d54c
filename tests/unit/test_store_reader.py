"""Reading a store beside the process that owns it."""

from pathlib import Path

import pytest

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Input
from outrider.core.tasks import TaskSpec
from outrider.store.database import connect
from outrider.store.reader import open_reader
from outrider.store.sqlite import open_store
from outrider.system.lock import is_locked

pytestmark = pytest.mark.anyio


async def test_a_reader_sees_every_commit_of_the_owner_and_nobody_elses(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, open_reader(tmp_path) as reader:
        session = await store.create("ada", "s", "/work")
        entry, _ = await store.accept(session.id, Input("hello"), None, 9)
        task, _ = await store.create_task(session.id, TaskSpec(kind="command", call="c1", command="true"), 9)
        grant = await store.add_permission("ada", "session", session.id, "network")
        found = await reader.find("ada", "s")
        assert found == await store.find("ada", "s")
        assert await reader.read(session.id) == [entry]
        assert await reader.sessions_with_work() == [session.id]
        assert await reader.find_task("ada", task.id[:6]) == task
        assert await reader.list_tasks("ada", open_only=True) == [task]
        assert await reader.list_permissions("ada") == [grant]
        assert await reader.find("bob", "s") is None
        assert await reader.find_task("bob", task.id) is None
        assert await reader.list_tasks("bob") == []


async def test_the_owner_goes_on_after_a_reader_has_come_and_gone(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        async with open_reader(tmp_path) as reader:
            assert await reader.sessions_with_work() == []
        await store.create("ada", "s", "/work")
        async with open_reader(tmp_path) as reader:
            assert (found := await reader.find("ada", "s")) is not None
            assert found.name == "s"


async def test_a_home_without_a_store_or_with_one_of_another_version_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no store"):
        async with open_reader(tmp_path):
            pass
    async with open_store(tmp_path):
        pass
    db = connect(tmp_path / "store.db")
    db.execute("PRAGMA user_version = 1")
    db.close()
    with pytest.raises(Unavailable, match="another version"):
        async with open_reader(tmp_path):
            pass


async def test_whether_a_home_is_held_is_known_without_taking_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "nowhere")
    async with open_store(tmp_path):
        assert is_locked(tmp_path)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
