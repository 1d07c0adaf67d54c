"""Opening a home: what is created there, who may use it, and how it is upgraded."""

import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Input
from outrider.core.store_port import TaskEnd
from outrider.core.tasks import TaskSpec
from outrider.store.migrations import MIGRATIONS, load_migrations
from outrider.store.sqlite import open_store

pytestmark = pytest.mark.anyio

NEWEST = load_migrations(MIGRATIONS)[-1].version


async def fill(home: Path) -> str:
    """A home with one session and one input."""
    async with open_store(home) as store:
        session = await store.create("ann", "garden", "/folder")
        await store.accept(session.id, Input("hello"), "k", queue=20)
        await store.create_task(session.id, TaskSpec(kind="command", call="c1", command="make"), max_open=1)
        await store.search("ann", "hello")
        store.blobs.put(b"long")
        return session.id


def migrations(folder: Path, **scripts: str) -> Path:
    """The real migrations and these after them."""
    shutil.copytree(MIGRATIONS, folder)
    for name, script in scripts.items():
        (folder / f"{name.removeprefix('m')}.sql").write_text(script)
    return folder


async def test_only_its_owner_can_read_a_home(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    async with open_store(home) as store:
        session = await store.create("ann", "garden", "/folder")
        await store.accept(session.id, Input("hello"), None, queue=20)
        await store.search("ann", "hello")
        store.blobs.put(b"long")
        paths = [home, *home.rglob("*")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}
    assert {path.name for path in home.iterdir()} == {"store.db", "search.db", "blobs", "lock"}


async def test_a_home_is_open_once_at_a_time_even_in_one_process(tmp_path: Path) -> None:
    async with open_store(tmp_path, label="outrider chat"):
        with pytest.raises(HomeBusy, match=rf"outrider chat \(process {os.getpid()}\)"):
            async with open_store(tmp_path, wait=0):
                pass
    async with open_store(tmp_path, wait=0) as store:
        assert store.notices == ()


async def test_the_lock_file_says_who_uses_the_home_and_how_that_ended(tmp_path: Path) -> None:
    async with open_store(tmp_path, label="outrider up"):
        during = json.loads((tmp_path / "lock").read_text())
    left = json.loads((tmp_path / "lock").read_text())
    assert (during["pid"], during["what"], during["left"], left["left"]) == (os.getpid(), "outrider up", "", "clean")


async def test_a_closed_store_refuses_calls(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        pass
    with pytest.raises(Unavailable, match="the store is closed"):
        await store.create("ann", "late", "/folder")


async def test_closing_finishes_what_was_queued_even_when_cancelled(tmp_path: Path) -> None:
    session = await fill(tmp_path)
    with anyio.CancelScope() as scope:
        async with open_store(tmp_path) as store, anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(store.accept, session, Input(f"{number}"), None, 100)
            await anyio.lowlevel.checkpoint()
            scope.cancel()
    assert scope.cancelled_caught
    async with open_store(tmp_path, wait=0) as store:
        assert (await store.check(), len(await store.read(session))) == ([], 51)


async def test_time_in_a_session_never_runs_backwards_even_if_the_clock_does(tmp_path: Path) -> None:
    times = iter([9_000_000, 9_000_000, 3_000_000, 3_001_000, 12_000_000])
    async with open_store(tmp_path, clock=lambda: next(times)) as store:
        session = await store.create("ann", "garden", "/folder")
        written = [await store.accept(session.id, Input("x"), None, queue=20) for _ in range(4)]
    assert [entry.at for entry, _ in written] == [9000, 9000, 9000, 12000]


async def test_an_upgrade_keeps_the_previous_store_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    session = await fill(home)
    newer = migrations(tmp_path / "sql", m9001_notes="CREATE TABLE notes (x);", m9002_more="DROP TABLE notes;")
    async with open_store(home, migrations=newer) as store:
        backup = home / "store.db.before-9002"
        notice = f"The store was upgraded from version {NEWEST} to 9002; the previous one is kept as {backup}."
        assert store.notices == (notice,)
        assert [entry.body for entry in await store.read(session)] == [Input("hello")]
    async with open_store(home, migrations=newer) as store:
        assert store.notices == ()
    with sqlite3.connect(backup) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (NEWEST,)
        assert old.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    old.close()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    backup.replace(home / "store.db")
    async with open_store(home) as store:
        assert (store.notices, len(await store.read(session))) == ((), 1)


async def test_a_home_without_tasks_is_upgraded_and_can_be_downgraded(tmp_path: Path) -> None:
    home, first = tmp_path / "home", tmp_path / "sql"
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_journal.sql", first)
    async with open_store(home, migrations=first):
        pass
    session = _create_as_version_1(home)
    _write_as_version_1(home, session, "hello")
    spec = TaskSpec(kind="command", call="c1", command="make", notify="always")
    async with open_store(home) as store:
        backup = home / f"store.db.before-{NEWEST}"
        upgraded = f"The store was upgraded from version 1 to {NEWEST}; the previous one is kept as {backup}."
        assert store.notices == (upgraded,)
        task, _ = await store.create_task(session, spec, max_open=1)
        await store.end_task_and_notify(task.id, TaskEnd("succeeded", 0, "", 1), "done")
        notice = Input("done", "task", person="ann")
        assert [entry.body for entry in await store.read(session)] == [Input("hello"), notice]
        assert await store.check() == []
    async with open_store(home) as store:
        assert (store.notices, [each.id for each in await store.list_tasks("ann")]) == ((), [task.id])
    backup.replace(home / "store.db")
    async with open_store(home, migrations=first) as store:
        assert (store.notices, len(await store.read(session))) == ((), 1)


def _create_as_version_1(home: Path) -> str:
    """Create a session as version 1 of the schema has it; its id."""
    columns = ("5f" * 16, "ann", "garden", "/garden", "", 1, 1000, 0, 0, 0, 0, 0, 0, None)
    with closing(sqlite3.connect(home / "store.db", isolation_level=None)) as db:
        db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)
    return columns[0]


def _write_as_version_1(home: Path, session: str, text: str) -> None:
    """Write an input as version 1 of the schema has it."""
    body = f'{{"type":"input","text":"{text}"}}'.encode()
    with closing(sqlite3.connect(home / "store.db", isolation_level=None)) as db:
        db.execute("INSERT INTO entries VALUES (?, 1, 1, 'input', 'k', ?)", (session, body))
        db.execute("UPDATE sessions SET head = 1, newest_input = 1, title = ?, waits_since = touched", (text,))


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_store_without_tasks_is_repaired_only_if_it_is_damaged(tmp_path: Path, is_damaged: bool) -> None:
    home, first = tmp_path / "home", tmp_path / "sql"
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_journal.sql", first)
    async with open_store(home, migrations=first) as store:
        store.mark_damaged()  # so that the next start checks everything
    _create_as_version_1(home)
    other = sqlite3.connect(home / "store.db", isolation_level=None)
    other.execute("UPDATE sessions SET head = ?", (5 * is_damaged,))
    other.close()
    async with open_store(home) as store:
        notices = "\n".join(store.notices)
        assert (f"upgraded from version 1 to {NEWEST}" in notices) == (not is_damaged)
        assert ("Session 'garden' lost its last 5 entries." in notices) == is_damaged
        assert await store.check() == []
        assert await store.open_tasks() == []


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE x (y); SELECT nonsense;",
        "DELETE FROM entries;",
        "CREATE TABLE x (y); DELETE FROM sessions;",
        "DELETE FROM tasks;",
        "DROP TABLE grants;",
        "COMMIT;",
    ],
    ids=["an error", "lost entries", "lost sessions", "lost tasks", "lost grants", "a cut transaction"],
)
async def test_an_upgrade_that_fails_its_rehearsal_does_not_change_the_store(tmp_path: Path, script: str) -> None:
    home = tmp_path / "home"
    session = await fill(home)
    before = (home / "store.db").read_bytes()
    with pytest.raises(Refused, match=r"failed in rehearsal .*; nothing was changed"):
        async with open_store(home, migrations=migrations(tmp_path / "sql", m9001_wrong=script)):
            pass
    assert (home / "store.db").read_bytes() == before
    assert not list(home.glob("*rehearsal*"))
    async with open_store(home) as store:
        assert [entry.body for entry in await store.read(session)] == [Input("hello")]


async def test_a_store_of_a_newer_outrider_is_refused_unchanged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home)
    async with open_store(home, migrations=migrations(tmp_path / "sql", m9001_notes="CREATE TABLE notes (x);")):
        pass
    before = (home / "store.db").read_bytes()
    with pytest.raises(Refused, match=r"has version 9001, made by a newer Outrider; .*: upgrade Outrider"):
        async with open_store(home):
            pass
    assert (home / "store.db").read_bytes() == before
    assert not list(home.glob("*damaged*"))


async def test_a_store_that_another_program_has_locked_is_reported_as_such(tmp_path: Path) -> None:
    await fill(tmp_path)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    async with open_store(tmp_path, busy_timeout=0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match=r"another program has locked the store"):
            await store.create("ann", "b", "/folder")
        other.execute("ROLLBACK")
        assert (await store.create("ann", "b", "/folder")).name == "b"
    other.close()


async def test_the_check_finds_what_does_not_agree(tmp_path: Path) -> None:
    session = await fill(tmp_path)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("UPDATE sessions SET head = 5")
    other.close()
    blob = next((tmp_path / "blobs").glob("??/*"))
    blob.write_bytes(b"other")
    async with open_store(tmp_path) as store:
        assert await store.check() == [
            f"session {session} should have 5 entries, and has 1 up to 1",
            f"the stored content {blob.name} is damaged",
        ]
