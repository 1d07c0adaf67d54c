"""Damage on disk where tasks and permissions are stored: what can be read is recovered, and every loss is named."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import Permission
from outrider.core.errors import StoreDamaged
from outrider.core.tasks import Task
from outrider.store.migrations import MIGRATIONS
from outrider.store.recovery import LOST_KEYS, LOST_PERMISSIONS, LOST_TASKS, LOST_WEBHOOKS, TASK_END_LOST
from outrider.store.sqlite import open_store
from tests.support.damage import execute, last_leaf, overwrite_page, root_page
from tests.support.task_child import DONE, command_task, notice_about

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L10")]
ALL_LOSSES = (LOST_TASKS, LOST_PERMISSIONS, LOST_KEYS, LOST_WEBHOOKS)


class TasksAndPermissions(Struct, frozen=True):
    tasks: Sequence[Task]
    permissions: Sequence[Permission]


async def open_again(home: Path) -> tuple[tuple[str, ...], TasksAndPermissions]:
    """The notices, and the tasks and permissions as they are now. A backup that is due is complete afterwards."""
    async with open_store(home) as store:
        assert await store.check() == []
        listed = await store.list_tasks("ann", limit=1000), await store.list_permissions("ann")
        return store.notices, TasksAndPermissions(*listed)


async def fill(home: Path, *, backup: bool = True) -> TasksAndPermissions:
    """Fill a home with tasks in a few sessions, every other of them ended, and some permissions."""
    async with open_store(home) as store:
        for number in range(10):
            session = await store.create("ann", f"s{number}", "/folder")
            await store.add_permission("ann", "session", session.id, "network")
            for call in range(10):
                task, _ = await store.create_task(session.id, command_task(f"c{call}"), 20)
                if call % 2:
                    await store.end_task_and_notify(task.id, DONE, notice_about(task.id))
        await store.add_permission("ann", "workspace", "/folder", "host")
    _, stored = await open_again(home)
    assert list(home.glob("store.db.backup-*"))
    if not backup:
        remove_backup(home)
    return stored


def remove_backup(home: Path) -> None:
    for path in home.glob("store.db.backup-*"):
        path.unlink()


def as_lost(task: Task, ended: int) -> Task:
    """A task as it comes from a backup: one that was open then may have ended since."""
    return replace(task, state="lost", ended=ended, why=TASK_END_LOST) if task.is_open else task


def assert_from_backup(after: Sequence[Task], before: Sequence[Task]) -> None:
    assert list(after) == [as_lost(task, now.ended) for task, now in zip(before, after, strict=True)]


@pytest.mark.parametrize("backup", [False, True])
async def test_without_its_first_page_every_task_and_permission_is_recovered(tmp_path: Path, backup: bool) -> None:
    before = await fill(tmp_path, backup=backup)
    overwrite_page(tmp_path / "store.db", 1)
    notices, after = await open_again(tmp_path)
    assert (after, len(notices), "The store was damaged" in notices[0]) == (before, 1, True)
    assert await open_again(tmp_path) == ((), after)


async def upgrade(home: Path, first: Path) -> None:
    """A home that began with the first version of the schema and was upgraded."""
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_journal.sql", first)
    async with open_store(home, migrations=first):
        pass
    row = "INSERT INTO sessions VALUES (?, 'ann', ?, '/folder', '', 1, 1000, 0, 0, 0, 0, 0, 0, NULL)"
    for number in range(200):
        execute(home / "store.db", row, f"{number:032x}", f"old{number}")
    async with open_store(home) as store:
        assert "was upgraded from version 1" in store.notices[0]


async def test_an_upgraded_store_is_recovered_without_its_first_page_by_its_backup(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await upgrade(home, tmp_path / "sql")
    before = await fill(home)
    overwrite_page(home / "store.db", 1)
    notices, after = await open_again(home)
    assert (after, len(notices)) == (before, 1)
    assert "Recovered: 210 sessions with 50 entries." in notices[0]


async def test_an_upgraded_store_without_first_page_and_backup_names_all_that_may_be_lost(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await upgrade(home, tmp_path / "sql")
    await fill(home, backup=False)
    overwrite_page(home / "store.db", 1)
    notices, after = await open_again(home)
    assert (notices[1:], after) == (ALL_LOSSES, TasksAndPermissions([], []))
    assert "Recovered: 210 sessions with 50 entries." in notices[0]


async def test_a_lost_page_of_tasks_without_a_backup_costs_those_tasks_and_is_named(tmp_path: Path) -> None:
    before = await fill(tmp_path, backup=False)
    overwrite_page(tmp_path / "store.db", last_leaf(tmp_path / "store.db", "tasks"))
    notices, after = await open_again(tmp_path)
    assert (LOST_TASKS in notices, after.permissions) == (True, before.permissions)
    assert [task for task in before.tasks if task in after.tasks] == after.tasks
    assert 0 < len(after.tasks) < len(before.tasks)


async def test_a_lost_page_of_tasks_comes_from_the_backup_and_open_tasks_are_lost(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    overwrite_page(tmp_path / "store.db", last_leaf(tmp_path / "store.db", "tasks"))
    notices, after = await open_again(tmp_path)
    assert (LOST_TASKS in notices, after.permissions) == (True, before.permissions)
    pairs = list(zip(before.tasks, after.tasks, strict=True))
    assert all(now in (task, as_lost(task, now.ended)) for task, now in pairs)
    assert 0 < sum(task == now for task, now in pairs) < len(pairs)


async def test_when_the_root_of_tasks_is_lost_they_are_as_in_the_backup(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "tasks"))
    notices, after = await open_again(tmp_path)
    assert (notices[1:], after.permissions) == ((LOST_TASKS,), before.permissions)
    assert_from_backup(after.tasks, before.tasks)
    async with open_store(tmp_path) as store:
        assert await store.open_tasks() == []


async def test_when_the_root_of_tasks_is_lost_without_a_backup_that_is_named(tmp_path: Path) -> None:
    before = await fill(tmp_path, backup=False)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "tasks"))
    notices, after = await open_again(tmp_path)
    assert (notices[1:], after) == ((LOST_TASKS,), TasksAndPermissions([], before.permissions))


async def test_a_lost_page_of_permissions_is_named_and_costs_no_task(tmp_path: Path) -> None:
    """None comes from the backup: it may have been revoked since."""
    before = await fill(tmp_path)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "grants"))
    notices, after = await open_again(tmp_path)
    assert (notices[1:], after) == ((LOST_PERMISSIONS,), TasksAndPermissions(before.tasks, []))


async def test_what_was_revoked_or_deleted_does_not_come_back_with_a_repair(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    async with open_store(tmp_path) as store:
        deleted = await store.find("ann", "s3")
        assert deleted
        assert await store.delete("ann", deleted.id)
        assert await store.revoke_permission("ann", before.permissions[-1].id)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "tasks"))
    _, after = await open_again(tmp_path)
    assert after.permissions == [each for each in before.permissions[:-1] if each.applies_to != deleted.id]
    assert {task.session for task in after.tasks} == {task.session for task in before.tasks} - {deleted.id}


async def test_tasks_of_a_session_that_is_lost_are_dropped_with_it(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    lost = before.tasks[0].session
    execute(tmp_path / "store.db", "DELETE FROM entries WHERE session = ?", lost)
    execute(tmp_path / "store.db", "DELETE FROM sessions WHERE id = ?", lost)
    async with open_store(tmp_path) as store:
        assert "a row of tasks refers to a row that does not exist" in await store.check()
    notices, after = await open_again(tmp_path)
    assert "The store was damaged" in notices[0]
    assert after == TasksAndPermissions(
        [task for task in before.tasks if task.session != lost],
        [permission for permission in before.permissions if permission.applies_to != lost],
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE tasks SET wish = x'7b' WHERE id = ?", "Input data was truncated"),
        ("UPDATE tasks SET state = 'flying' WHERE id = ?", "Invalid enum value 'flying'"),
    ],
)
@pytest.mark.parametrize("backup", [False, True])
async def test_an_unreadable_task_is_reported_and_replaced_or_dropped_by_the_next_start(
    tmp_path: Path, change: str, why: str, backup: bool
) -> None:
    before = await fill(tmp_path, backup=backup)
    torn, *rest = before.tasks
    assert not torn.is_open
    execute(tmp_path / "store.db", change, torn.id)
    async with open_store(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=rf"task {torn.id} is damaged .*{why}.*; start Outrider again"):
            await store.find_task("ann", torn.id)
        assert [problem for problem in await store.check() if problem.startswith(f"task {torn.id} cannot be read")]
    notices, after = await open_again(tmp_path)
    expected = TasksAndPermissions(before.tasks if backup else rest, before.permissions)
    assert (notices[1:], after) == ((LOST_TASKS,), expected)


async def test_an_unreadable_permission_is_reported_and_asked_for_again(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    torn, *rest = before.permissions
    execute(tmp_path / "store.db", "UPDATE grants SET scope = 'everywhere' WHERE id = ?", torn.id)
    async with open_store(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=rf"permission {torn.id} is damaged"):
            await store.list_permissions("ann")
    notices, after = await open_again(tmp_path)
    assert (notices[1:], after) == ((LOST_PERMISSIONS,), TasksAndPermissions(before.tasks, rest))
