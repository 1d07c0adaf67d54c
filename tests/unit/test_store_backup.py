"""The dated backup of a store: when it is made, that writers continue meanwhile, and what is never in it."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from outrider.core.events import Input, Result
from outrider.store.backup import BackupStopped, back_up, find_backup, needs_backup
from outrider.store.database import connect_writing
from outrider.store.sqlite import open_store
from tests.contract.stores import write
from tests.support.damage import overwrite_page, root_page

pytestmark = pytest.mark.anyio

DAY = 86_400_000_000
NOON = 1_750_000_000_000_000


async def start(home: Path, now: int = NOON, text: str = "") -> None:
    """Start once, wait for the backup if one is due, and say something if there is a text."""
    async with open_store(home, clock=lambda: now) as store:
        await store.check()
        if text:
            session = await store.create("ann", "garden", "/folder")
            await store.accept(session.id, Input(text), None, queue=20)


def backups(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob("store.db.backup*"))


def entries_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM entries").fetchone()[0]


async def test_a_backup_is_made_at_the_next_start_once_a_day_and_replaces_the_older_one(tmp_path: Path) -> None:
    await start(tmp_path, text="one")
    assert backups(tmp_path) == []
    await start(tmp_path, text="two")
    assert backups(tmp_path) == ["store.db.backup-20250615"]
    await start(tmp_path)
    backup = find_backup(tmp_path / "store.db")
    assert backup
    assert (entries_in(backup), stat.S_IMODE(backup.stat().st_mode)) == (1, 0o600)
    await start(tmp_path, NOON + DAY)
    assert backups(tmp_path) == ["store.db.backup-20250616"]
    assert entries_in(tmp_path / "store.db.backup-20250616") == 2


async def test_a_store_that_did_not_change_is_not_backed_up_again(tmp_path: Path) -> None:
    await start(tmp_path, text="one")
    await start(tmp_path)
    await start(tmp_path, NOON + DAY)
    assert backups(tmp_path) == ["store.db.backup-20250615"]
    await start(tmp_path, NOON + DAY, text="two")
    await start(tmp_path, NOON + DAY)
    assert backups(tmp_path) == ["store.db.backup-20250616"]


async def test_without_room_on_the_disk_there_is_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await start(tmp_path, text="one")
    size = (tmp_path / "store.db").stat().st_size
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3 * size}))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert not needs_backup(tmp_path / "store.db")
    await start(tmp_path)
    assert backups(tmp_path) == []


async def test_a_damaged_store_does_not_replace_a_good_backup(tmp_path: Path) -> None:
    await start(tmp_path, text="one")
    await start(tmp_path, text="two")
    store = tmp_path / "store.db"
    overwrite_page(store, root_page(store, "tasks"))
    # As if the store were too large to be checked at every start.
    async with open_store(tmp_path, clock=lambda: NOON + DAY, always_checked_size=0) as opened:
        await opened.search("ann", "one")
        assert opened.is_damaged
    assert backups(tmp_path) == ["store.db.backup-20250615"]
    async with open_store(tmp_path, clock=lambda: NOON + DAY) as opened:
        assert "The store was damaged" in opened.notices[0]
    assert backups(tmp_path) == ["store.db.backup-20250615"]


async def test_a_deleted_session_leaves_no_text_in_the_backup(tmp_path: Path) -> None:
    await start(tmp_path, text="a most secret word")
    await start(tmp_path)
    backup = find_backup(tmp_path / "store.db")
    assert backup
    assert b"most secret" in backup.read_bytes()
    async with open_store(tmp_path, clock=lambda: NOON) as store:
        (session,) = await store.list("ann")
        assert not await store.delete("bob", session.id)
        assert await store.delete("ann", session.id)
    assert (b"most secret" in backup.read_bytes(), entries_in(backup)) == (False, 0)


async def test_a_backup_from_which_nothing_can_be_deleted_is_deleted_itself(tmp_path: Path) -> None:
    await start(tmp_path, text="a most secret word")
    await start(tmp_path)
    backup = find_backup(tmp_path / "store.db")
    assert backup
    overwrite_page(backup, 1)
    async with open_store(tmp_path, clock=lambda: NOON) as store:
        (session,) = await store.list("ann")
        assert await store.delete("ann", session.id)
    assert backups(tmp_path) == []


async def large_store(home: Path) -> Path:
    """A store that is copied in several steps."""
    async with open_store(home) as store:
        session = await store.create("ann", "large", "/folder")
        await write(store, session.id, *(Result(f"c{n}", "x" * 1_000_000) for n in range(20)))
    return home / "store.db"


async def test_writers_continue_while_a_backup_of_one_moment_is_made(tmp_path: Path) -> None:
    store = await large_store(tmp_path)
    steps: list[int] = []
    with closing(connect_writing(store)) as writer:

        def write_meanwhile() -> bool:
            writer.execute("UPDATE sessions SET name = ?", (f"name{len(steps)}",))
            steps.append(1)
            return False

        assert back_up(store, "20250615", write_meanwhile) == ""
    with closing(sqlite3.connect(tmp_path / "store.db.backup-20250615")) as db:
        assert (len(steps) > 1, db.execute("SELECT name FROM sessions").fetchall()) == (True, [("large",)])


async def test_a_backup_that_is_stopped_leaves_the_older_one(tmp_path: Path) -> None:
    store = await large_store(tmp_path)
    assert back_up(store, "20250615", lambda: False) == ""
    with pytest.raises(BackupStopped):
        back_up(store, "20250616", lambda: True)
    assert backups(tmp_path) == ["store.db.backup-20250615"]
