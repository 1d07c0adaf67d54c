"""Damage on disk is noticed, the damaged file is kept, what can be read is recovered, and every loss is named."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.core.errors import StoreDamaged
from outrider.core.events import Body, Ended, Entry, Input, Reply, Result, Started
from outrider.store.recovery import LOST_KEYS, LOST_PERMISSIONS, LOST_TASKS, LOST_WEBHOOKS, SESSION_END_LOST
from outrider.store.sqlite import open_store
from tests.contract.stores import write
from tests.support.damage import PAGE, execute, last_leaf, overwrite, overwrite_page, page_with, root_page

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L10")]
Journals = dict[str, Sequence[Entry]]
BACKUP_DAY = 1_750_000_000_000_000


async def fill(home: Path) -> Journals:
    """Fill a home with a few dozen sessions, one of them with an open turn; the journals."""
    async with open_store(home) as store:
        for number in range(30):
            session = await store.create("ann", f"s{number}", "/folder")
            await store.accept(session.id, Input(f"question {number}", person="ann"), "k", queue=20)
            results = [Result(f"c{n}", f"{number}/{n} " * 100) for n in range(12)]
            ended: list[Body] = [] if number == 7 else [Ended("done", 1)]
            await write(store, session.id, Started(), *results, Reply(f"answer {number}", 1), *ended)
        return {session.name: await store.read(session.id) for session in await store.list("ann")}


async def open_again(home: Path) -> tuple[tuple[str, ...], Journals]:
    """The notices, and the journals as they are now. A backup that is due is complete afterwards."""
    async with open_store(home, clock=lambda: BACKUP_DAY) as store:
        assert await store.check() == []
        return store.notices, {session.name: await store.read(session.id) for session in await store.list("ann")}


def damaged_files(home: Path) -> list[bytes]:
    return [path.read_bytes() for path in home.glob("store.db.damaged-*") if not path.name.endswith(("-wal", "-shm"))]


def assert_beginning(whole: Sequence[Entry], rest: Sequence[Entry]) -> None:
    """`rest` is the beginning of `whole`; where work was cut off it has an honest end."""
    if rest and isinstance(rest[-1].body, Ended) and rest[-1].body.reason == SESSION_END_LOST:
        rest = rest[:-1]
    assert rest == whole[: len(rest)]


def assert_losses_are_named(before: Journals, after: Journals, notices: Sequence[str]) -> None:
    """Every session that is not as it was is named, or could not be named and is said to be lost."""
    text = "\n".join(notices)
    for name, journal in before.items():
        if after.get(name) != journal:
            assert f"'{name}'" in text or "could not be recovered" in text or "now called" in text


@pytest.mark.parametrize(
    ("at", "rubbish"),
    [(0, b"garbage " * 2), (0, b"\xff" * 100), (0, b"\xff" * PAGE), (100, bytes(200))],
    ids=["no magic", "no header", "no first page", "no schema"],
)
@pytest.mark.parametrize("has_backup", [False, True])
async def test_without_its_first_page_the_whole_store_is_recovered(
    tmp_path: Path, at: int, rubbish: bytes, has_backup: bool
) -> None:
    before = await fill(tmp_path / "home")
    if has_backup:
        await open_again(tmp_path / "home")
    store = tmp_path / "home" / "store.db"
    overwrite(store, at, rubbish)
    damaged = store.read_bytes()
    notices, after = await open_again(tmp_path / "home")
    assert after == before
    assert damaged_files(tmp_path / "home") == [damaged]
    assert len(notices) == 1
    assert "The store was damaged" in notices[0]
    assert "Recovered: 30 sessions with 479 entries." in notices[0]
    assert str(next((tmp_path / "home").glob("store.db.damaged-*"))) in notices[0]
    assert await open_again(tmp_path / "home") == ((), before)


async def test_the_first_page_is_replaced_also_after_sessions_were_deleted(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    async with open_store(tmp_path) as store:
        for name in ("s3", "s4", "s5"):
            del before[name]
            session = await store.find("ann", name)
            assert session
            assert await store.delete("ann", session.id)
    overwrite_page(tmp_path / "store.db", 1)
    for backup in tmp_path.glob("store.db.backup-*"):
        backup.unlink()
    notices, after = await open_again(tmp_path)
    assert (len(notices), after) == (1, before)


@pytest.mark.parametrize("page", [2, 3, 4, 5, 6, 7, 9, 12, 20, 30, 40])
async def test_without_a_backup_a_page_of_rubbish_costs_only_the_ends_of_some_sessions(
    tmp_path: Path, page: int
) -> None:
    before = await fill(tmp_path / "home")
    overwrite_page(tmp_path / "home" / "store.db", page)
    notices, after = await open_again(tmp_path / "home")
    assert "The store was damaged" in notices[0]
    assert len(damaged_files(tmp_path / "home")) == 1
    for name, journal in after.items():
        assert_beginning(before.get(name, journal), journal)
    assert_losses_are_named(before, after, notices)
    assert await open_again(tmp_path / "home") == ((), after)


@pytest.mark.parametrize("page", [2, 3, 4, 5, 6, 7, 9, 12, 20, 30, 40])
async def test_with_a_backup_a_page_of_rubbish_costs_no_entry(tmp_path: Path, page: int) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    overwrite_page(tmp_path / "store.db", page)
    notices, after = await open_again(tmp_path)
    assert "Recovered: 30 sessions with 479 entries." in notices[0]
    assert after.keys() == before.keys()
    for name, journal in before.items():
        # A session of which only the backup has the name may have gone on since: an open turn is not run again.
        assert_beginning(after[name], journal)
        assert after[name] == journal or (name, len(after[name])) == ("s7", len(journal) + 1)


async def test_without_a_backup_a_lost_root_of_entries_leaves_the_sessions_and_names_each_loss(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "entries"))
    notices, after = await open_again(tmp_path)
    assert after == {name: [] for name in before}
    assert sorted(notices[1:]) == sorted(
        f"Session {name!r} lost its last {len(journal)} entries." for name, journal in before.items()
    )


async def test_when_the_root_of_entries_is_lost_the_sessions_are_as_in_the_backup(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "entries"))
    notices, after = await open_again(tmp_path)
    assert after == before
    assert len(notices) == 1
    assert "Recovered: 30 sessions with 479 entries. Of these entries, 479 came from the backup" in notices[0]


async def test_what_was_written_after_the_backup_and_cannot_be_read_is_named(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    async with open_store(tmp_path, clock=lambda: BACKUP_DAY) as store:
        for name in ("s3", "s9"):
            session = await store.find("ann", name)
            assert session
            await write(store, session.id, *(Result(f"late{n}", "x") for n in range(5)))
    overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", "entries"))
    notices, after = await open_again(tmp_path)
    assert after == before
    assert sorted(notices[1:]) == [f"Session '{name}' lost its last 5 entries." for name in ("s3", "s9")]


async def test_entries_after_a_lost_page_are_kept_where_the_backup_fills_the_gap(tmp_path: Path) -> None:
    await fill(tmp_path)
    await open_again(tmp_path)
    async with open_store(tmp_path, clock=lambda: BACKUP_DAY) as store:
        session = await store.find("ann", "s9")
        assert session
        await write(store, session.id, *(Result(f"late{n}", "late " * 500) for n in range(9)))
        before = {each.name: await store.read(each.id) for each in await store.list("ann")}
    # The backup has everything on this page: the late entries are two pages further on.
    overwrite_page(tmp_path / "store.db", page_with(tmp_path / "store.db", b'"9/0 9/0 9/0'))
    notices, after = await open_again(tmp_path)
    assert (len(notices), after) == (1, before)


async def test_a_lost_table_of_sessions_comes_from_the_backup_and_says_so(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    for table in ("sessions", "sessions_by_name", "entries"):
        overwrite_page(tmp_path / "store.db", root_page(tmp_path / "store.db", table))
    notices, after = await open_again(tmp_path)
    assert after == before | {"s7": after["s7"]}
    assert_beginning(after["s7"], before["s7"])
    assert after["s7"][-1].body == Ended("failed", 15, SESSION_END_LOST)
    assert sorted(notices[1:]) == sorted(
        f"Session {name!r} was recovered from the backup of 2025-06-15; what was written to it since may be lost."
        for name in before
    )


async def test_a_name_that_another_session_took_since_the_backup_stays_with_it(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        first = await store.create("ann", "garden", "/first")
        await store.accept(first.id, Input("first", person="ann"), None, queue=20)
    await open_again(tmp_path)
    async with open_store(tmp_path) as store:
        await store.rename("ann", first.id, "meadow")
        second = await store.create("ann", "garden", "/second")
        store.mark_damaged()
    execute(tmp_path / "store.db", "DELETE FROM sessions WHERE id = ?", first.id)
    async with open_store(tmp_path) as store:
        names = {session.id: session.name for session in await store.list("ann")}
        assert names == {first.id: f"recovered-{first.id[:8]}", second.id: "garden"}
        assert f"Session {first.id} lost its name, 'garden', which another session has." in store.notices
        assert [entry.body for entry in await store.read(first.id)][:1] == [Input("first", person="ann")]


@pytest.mark.parametrize("tables", [["entries"], ["sessions", "sessions_by_name", "entries"]])
async def test_what_was_deleted_does_not_come_back_with_a_repair(tmp_path: Path, tables: list[str]) -> None:
    before = await fill(tmp_path / "home")
    await open_again(tmp_path / "home")
    async with open_store(tmp_path / "home", clock=lambda: BACKUP_DAY) as opened:
        for name in ("s3", "s4", "s5"):
            session = await opened.find("ann", name)
            assert session
            assert await opened.delete("ann", session.id)
    store = tmp_path / "home" / "store.db"
    for table in tables:
        overwrite_page(store, root_page(store, table))
    _, after = await open_again(tmp_path / "home")
    assert set(after) == set(before) - {"s3", "s4", "s5"}


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("has_backup", [False, True])
async def test_a_store_cut_short_keeps_what_is_left(tmp_path: Path, part: float, has_backup: bool) -> None:
    before = await fill(tmp_path / "home")
    if has_backup:
        await open_again(tmp_path / "home")
    path = tmp_path / "home" / "store.db"
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))
    notices, after = await open_again(tmp_path / "home")
    assert "The store was damaged" in notices[0]
    assert after
    assert_losses_are_named(before, after, notices)
    for name, journal in after.items():
        assert_beginning(before.get(name, journal), journal)
    if has_backup:
        assert {name: journal[: len(before[name])] for name, journal in after.items()} == before


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\x00", b"x" * 50_000])
async def test_a_file_that_is_no_store_at_all_is_kept_and_every_kind_of_loss_is_named(
    tmp_path: Path, content: bytes
) -> None:
    await fill(tmp_path / "home")
    (tmp_path / "home" / "store.db").write_bytes(content)
    notices, after = await open_again(tmp_path / "home")
    assert "Recovered: 0 sessions with 0 entries." in notices[0]
    assert notices[1:] == (LOST_TASKS, LOST_PERMISSIONS, LOST_KEYS, LOST_WEBHOOKS)
    assert (after, damaged_files(tmp_path / "home")) == ({}, [content])


@pytest.mark.parametrize("content", [b"", b"x" * 50_000])
async def test_a_file_that_is_no_store_at_all_is_replaced_by_the_backup(tmp_path: Path, content: bytes) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    (tmp_path / "store.db").write_bytes(content)
    notices, after = await open_again(tmp_path)
    assert {name: journal[: len(before[name])] for name, journal in after.items()} == before
    assert all(f"Session '{name}' was recovered from the backup" in "\n".join(notices) for name in before)


async def test_a_store_that_vanished_is_reported(tmp_path: Path) -> None:
    await fill(tmp_path / "home")
    (tmp_path / "home" / "store.db").unlink()
    notices, after = await open_again(tmp_path / "home")
    assert (len(notices), "was missing" in notices[0], after) == (1, True, {})


async def test_a_store_that_vanished_after_a_kill_is_reported(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with open_store(tmp_path) as store:
        await store.search("ann", "question")
    (tmp_path / "lock").write_text("{}")
    (tmp_path / "store.db").unlink()
    notices, after = await open_again(tmp_path)
    assert ("was missing" in notices[0], after) == (True, {})


async def test_the_backup_of_a_store_that_vanished_is_kept_and_can_be_put_back(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    await open_again(tmp_path)
    (tmp_path / "store.db").unlink()
    notices, after = await open_again(tmp_path)
    kept = re.search(r"is kept as (\S+); to restore it, stop Outrider and rename it", notices[1])
    assert kept
    assert ("was missing" in notices[0], after) == (True, {})
    await open_again(tmp_path)
    Path(kept[1]).replace(tmp_path / "store.db")
    assert await open_again(tmp_path) == ((), before)


async def test_an_unreadable_entry_is_reported_and_the_next_start_repairs_the_store(tmp_path: Path) -> None:
    before = await fill(tmp_path / "home")
    path = tmp_path / "home" / "store.db"
    overwrite(path, path.read_bytes().index(b"answer 7"), b'ans"":{\x00')
    async with open_store(tmp_path / "home") as store:
        assert store.notices == ()
        session = await store.find("ann", "s7")
        assert session
        with pytest.raises(StoreDamaged, match=r"entry 15 .* is damaged .*; start Outrider again"):
            await store.read(session.id)
        assert [hit.name for hit in await store.search("ann", "answer 6")] == ["s6"]
    for backup in (tmp_path / "home").glob("store.db.backup-*"):
        backup.unlink()  # it holds the same entry
    notices, after = await open_again(tmp_path / "home")
    assert "Session 's7' lost its last 1 entry." in notices
    assert [entry.body for entry in after["s7"]][14:] == [Ended("failed", 14, SESSION_END_LOST)]
    assert_beginning(before["s7"], after["s7"])
    assert {name: after[name] for name in after if name != "s7"} == {n: j for n, j in before.items() if n != "s7"}


async def test_damage_found_while_running_is_reported_and_the_next_start_repairs_the_store(tmp_path: Path) -> None:
    before = await fill(tmp_path / "home")
    store = tmp_path / "home" / "store.db"
    overwrite_page(store, root_page(store, "entries"))
    # As if the store were too large to be checked at every start.
    async with open_store(tmp_path / "home", always_checked_size=0) as opened:
        session = await opened.find("ann", "s7")
        assert session
        with pytest.raises(StoreDamaged, match="start Outrider again"):
            await opened.read(session.id)
        with pytest.raises(StoreDamaged, match="start Outrider again"):
            await opened.accept(session.id, Input("lost?"), None, queue=20)
        with pytest.raises(StoreDamaged, match="start Outrider again"):
            await opened.search("ann", "question")
    notices, after = await open_again(tmp_path / "home")
    assert ("The store was damaged" in notices[0], set(after)) == (True, set(before))


async def test_a_repair_that_was_cut_before_its_last_rename_is_finished(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = await fill(home)
    (home / "store.db").rename(home / "store.db.salvaged")
    (home / "store.db").write_bytes(b"damaged")
    notices, after = await open_again(home)
    assert ("recovered" in notices[0], after, damaged_files(home)) == (True, before, [b"damaged"])


async def test_a_damaged_search_index_is_rebuilt_without_a_notice(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home)
    for content in (b"rubbish" * 2000, b""):
        async with open_store(home) as store:
            assert [hit.name for hit in await store.search("ann", "question 3")] == ["s3"]
        (home / "search.db").write_bytes(content)
    async with open_store(home) as store:
        assert len(await store.search("ann", "question")) == 20


async def test_a_lost_leaf_of_entries_without_a_backup_is_named(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    overwrite_page(tmp_path / "store.db", last_leaf(tmp_path / "store.db", "entries"))
    notices, after = await open_again(tmp_path)
    assert 0 < sum(map(len, after.values())) < sum(map(len, before.values()))
    assert_losses_are_named(before, after, notices)
