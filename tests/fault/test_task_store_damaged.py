"""Damage on disk where tasks and grants are kept: what can be read goes on, what is lost is said."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Struct

from outrider.core.approvals import Permission
from outrider.core.errors import StoreDamaged
from outrider.core.tasks import Task
from outrider.store.migrations import MIGRATIONS
from outrider.store.recovery import LOST_PERMISSIONS, LOST_TASKS
from outrider.store.sqlite import open_store
from tests.support.task_child import DONE, wish

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L10")]
PAGE = 4096


class Kept(Struct, frozen=True):
    tasks: Sequence[Task]
    grants: Sequence[Permission]


async def kept(home: Path) -> tuple[tuple[str, ...], Kept]:
    """What the person is told, and what tasks and grants there are."""
    async with open_store(home) as store:
        assert await store.check() == []
        return store.notices, Kept(await store.list_tasks("ann", limit=1000), await store.list_permissions("ann"))


async def furnish(home: Path) -> Kept:
    """A home with tasks in a few sessions, every other of which has ended, and some grants."""
    async with open_store(home) as store:
        for number in range(10):
            session = await store.create("ann", f"s{number}", "/folder")
            await store.add_permission("ann", "session", session.id, "network")
            for call in range(10):
                task, _ = await store.create_task(session.id, wish(f"c{call}"), 20)
                if call % 2:
                    await store.end_task_and_notify(task.id, DONE, f"{task.id} is done")
        await store.add_permission("ann", "workspace", "/folder", "host")
    return (await kept(home))[1]


def root_of(store: Path, table: str) -> int:
    db = sqlite3.connect(store)
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    db.close()
    return page


def last_leaf_of(store: Path, table: str) -> int:
    """The page that the root, an inner one, names last in its header."""
    start = (root_of(store, table) - 1) * PAGE
    root = store.read_bytes()[start : start + PAGE]
    assert root[0] == 2
    return int.from_bytes(root[8:12], "big")


def overwrite(path: Path, page: int, content: bytes = b"rubbish!" * (PAGE // 8)) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(content)


async def test_without_its_first_page_every_task_is_recovered_and_grants_are_asked_for_again(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    overwrite(tmp_path / "store.db", 1)
    notices, after = await kept(tmp_path)
    assert after == Kept(before.tasks, [])
    assert ("The store was damaged" in notices[0], notices[1:]) == (True, (LOST_PERMISSIONS,))
    assert await kept(tmp_path) == ((), after)


async def test_a_store_that_was_upgraded_is_recovered_without_its_first_page_too(tmp_path: Path) -> None:
    home, old = tmp_path / "home", tmp_path / "sql"
    old.mkdir()
    (old / "0001_journal.sql").write_text((MIGRATIONS / "0001_journal.sql").read_text())
    async with open_store(home, migrations=old) as store:
        for number in range(200):
            await store.create("ann", f"old{number}", "/folder")
    before = await furnish(home)
    overwrite(home / "store.db", 1)
    notices, after = await kept(home)
    assert after == Kept(before.tasks, [])
    assert "Recovered: 210 sessions with 50 entries." in notices[0]


async def test_a_lost_page_of_tasks_costs_those_tasks_and_is_said(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    overwrite(tmp_path / "store.db", last_leaf_of(tmp_path / "store.db", "tasks"))
    notices, after = await kept(tmp_path)
    assert (LOST_TASKS in notices, after.grants) == (True, before.grants)
    assert [task for task in before.tasks if task in after.tasks] == after.tasks
    assert 0 < len(after.tasks) < len(before.tasks)


async def test_when_the_root_of_the_tasks_is_gone_the_leaves_are_still_read(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    overwrite(tmp_path / "store.db", root_of(tmp_path / "store.db", "tasks"))
    notices, after = await kept(tmp_path)
    assert (LOST_TASKS in notices, after.grants) == (True, before.grants)
    assert [task for task in before.tasks if task in after.tasks] == after.tasks
    assert len(after.tasks) > 0.8 * len(before.tasks)


async def test_a_lost_page_of_grants_is_said_and_costs_no_task(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    overwrite(tmp_path / "store.db", root_of(tmp_path / "store.db", "grants"))
    notices, after = await kept(tmp_path)
    assert (notices[1:], after) == ((LOST_PERMISSIONS,), Kept(before.tasks, []))


async def test_what_was_taken_back_or_deleted_does_not_come_back_with_a_repair(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    async with open_store(tmp_path) as store:
        gone = await store.find("ann", "s3")
        assert gone
        assert await store.delete("ann", gone.id)
        assert await store.revoke_permission("ann", before.grants[-1].id)
    overwrite(tmp_path / "store.db", root_of(tmp_path / "store.db", "tasks"))
    _, after = await kept(tmp_path)
    assert after.grants == [grant for grant in before.grants[:-1] if grant.applies_to != gone.id]
    assert gone.id not in {task.session for task in after.tasks}


async def test_tasks_of_a_session_that_is_lost_are_dropped_with_it(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    lost = before.tasks[0].session
    db = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    db.execute("DELETE FROM entries WHERE session = ?", (lost,))
    db.execute("DELETE FROM sessions WHERE id = ?", (lost,))
    db.close()
    async with open_store(tmp_path) as store:
        assert "a row of tasks points nowhere" in await store.check()
    notices, after = await kept(tmp_path)
    assert "The store was damaged" in notices[0]
    assert after == Kept(
        [task for task in before.tasks if task.session != lost],
        [grant for grant in before.grants if grant.applies_to != lost],
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE tasks SET wish = x'7b' WHERE id = ?", "Input data was truncated"),
        ("UPDATE tasks SET state = 'flying' WHERE id = ?", "Invalid enum value 'flying'"),
    ],
)
async def test_a_task_that_cannot_be_read_is_told_and_dropped_by_the_next_start(
    tmp_path: Path, change: str, why: str
) -> None:
    before = await furnish(tmp_path)
    torn, *rest = before.tasks
    db = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    db.execute(change, (torn.id,))
    db.close()
    async with open_store(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=rf"task {torn.id} is damaged .*{why}.*; start Outrider again"):
            await store.find_task("ann", torn.id)
        assert [problem for problem in await store.check() if problem.startswith(f"task {torn.id} cannot be read")]
    notices, after = await kept(tmp_path)
    assert (notices[1:], after) == ((LOST_TASKS,), Kept(rest, before.grants))


async def test_a_grant_that_cannot_be_read_is_told_and_asked_for_again(tmp_path: Path) -> None:
    before = await furnish(tmp_path)
    torn, *rest = before.grants
    db = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    db.execute("UPDATE grants SET scope = 'everywhere' WHERE id = ?", (torn.id,))
    db.close()
    async with open_store(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=rf"grant {torn.id} is damaged"):
            await store.list_permissions("ann")
    notices, after = await kept(tmp_path)
    assert (notices[1:], after) == ((LOST_PERMISSIONS,), Kept(before.tasks, rest))
