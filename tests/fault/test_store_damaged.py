"""Damage on disk: noticed, set aside, said; what can be read goes on, and nothing is reset in silence."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.core.errors import StoreDamaged
from outrider.core.events import Body, Ended, Entry, Input, Reply, Result, Started
from outrider.store.recovery import SESSION_END_LOST
from outrider.store.sqlite import open_store
from tests.contract.stores import write

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L10")]
PAGE = 4096
Journals = dict[str, Sequence[Entry]]


async def furnish(home: Path) -> Journals:
    """A home with a few dozen sessions, one of them with an open turn; what their journals hold."""
    async with open_store(home) as store:
        for number in range(30):
            session = await store.create("ann", f"s{number}", "/folder")
            await store.accept(session.id, Input(f"question {number}", person="ann"), "k", queue=20)
            results = [Result(f"c{n}", f"{number}/{n} " * 100) for n in range(12)]
            ended: list[Body] = [] if number == 7 else [Ended("done", 1)]
            await write(store, session.id, Started(), *results, Reply(f"answer {number}", 1), *ended)
        return {session.name: await store.read(session.id) for session in await store.list("ann")}


async def open_again(home: Path) -> tuple[tuple[str, ...], Journals]:
    """What the person is told, and the journals there are now."""
    async with open_store(home) as store:
        assert await store.check() == []
        return store.notices, {session.name: await store.read(session.id) for session in await store.list("ann")}


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def kept_aside(home: Path) -> list[bytes]:
    return [path.read_bytes() for path in home.glob("store.db.damaged-*") if not path.name.endswith(("-wal", "-shm"))]


@pytest.mark.parametrize(
    ("at", "rubbish"),
    [(0, b"garbage " * 2), (0, b"\xff" * 100), (0, b"\xff" * PAGE), (100, bytes(200))],
    ids=["no magic", "no header", "no first page", "no schema"],
)
async def test_without_its_first_page_the_whole_store_is_recovered(tmp_path: Path, at: int, rubbish: bytes) -> None:
    before = await furnish(tmp_path / "home")
    store = tmp_path / "home" / "store.db"
    overwrite(store, at, rubbish)
    damaged = store.read_bytes()
    notices, after = await open_again(tmp_path / "home")
    assert after == before
    assert kept_aside(tmp_path / "home") == [damaged]
    assert len(notices) == 1
    assert "The store was damaged" in notices[0]
    assert "Recovered: 30 sessions with 479 entries." in notices[0]
    assert str(next((tmp_path / "home").glob("store.db.damaged-*"))) in notices[0]
    assert await open_again(tmp_path / "home") == ((), before)


@pytest.mark.parametrize("page", [2, 3, 4, 5, 6, 7, 9, 12, 20, 30, 40])
async def test_a_page_of_rubbish_costs_only_the_ends_of_some_sessions(tmp_path: Path, page: int) -> None:
    before = await furnish(tmp_path / "home")
    overwrite(tmp_path / "home" / "store.db", (page - 1) * PAGE, b"rubbish!" * (PAGE // 8))
    notices, after = await open_again(tmp_path / "home")
    assert "The store was damaged" in notices[0]
    assert len(kept_aside(tmp_path / "home")) == 1
    for name, journal in after.items():
        assert_beginning(before.get(name, journal), journal)
    told = "\n".join(notices)
    unharmed = [name for name, journal in before.items() if after.get(name) == journal]
    assert all(
        name in unharmed or name in told or "could not be recovered" in told or "now called" in told for name in before
    )
    assert await open_again(tmp_path / "home") == ((), after)


def root_of_entries(store: Path) -> int:
    db = sqlite3.connect(store)
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entries'").fetchone()
    db.close()
    return page


async def test_when_the_root_of_a_tree_is_gone_its_leaves_are_still_read(tmp_path: Path) -> None:
    before = await furnish(tmp_path / "home")
    store = tmp_path / "home" / "store.db"
    overwrite(store, (root_of_entries(store) - 1) * PAGE, b"rubbish!" * (PAGE // 8))
    _, after = await open_again(tmp_path / "home")
    assert set(after) == set(before)
    assert [name for name in before if after[name] == before[name]]
    assert sum(map(len, after.values())) > 0.8 * sum(map(len, before.values()))


async def test_what_was_deleted_does_not_come_back_with_a_repair(tmp_path: Path) -> None:
    before = await furnish(tmp_path / "home")
    async with open_store(tmp_path / "home") as opened:
        for name in ("s3", "s4", "s5"):
            session = await opened.find("ann", name)
            assert session
            assert await opened.delete("ann", session.id)
    store = tmp_path / "home" / "store.db"
    overwrite(store, (root_of_entries(store) - 1) * PAGE, b"rubbish!" * (PAGE // 8))
    _, after = await open_again(tmp_path / "home")
    assert set(after) == set(before) - {"s3", "s4", "s5"}


def assert_beginning(whole: Sequence[Entry], rest: Sequence[Entry]) -> None:
    """This is the beginning of that, ended honestly if work was cut off."""
    if rest and isinstance(rest[-1].body, Ended) and rest[-1].body.reason == SESSION_END_LOST:
        rest = rest[:-1]
    assert rest == whole[: len(rest)]


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
async def test_a_store_cut_short_keeps_what_is_left(tmp_path: Path, part: float) -> None:
    before = await furnish(tmp_path / "home")
    path = tmp_path / "home" / "store.db"
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))
    notices, after = await open_again(tmp_path / "home")
    assert "The store was damaged" in notices[0]
    assert after
    for name, journal in after.items():
        assert_beginning(before.get(name, journal), journal)


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\x00", b"x" * 50_000])
async def test_a_file_that_is_no_store_at_all_is_kept_and_said(tmp_path: Path, content: bytes) -> None:
    await furnish(tmp_path / "home")
    (tmp_path / "home" / "store.db").write_bytes(content)
    notices, after = await open_again(tmp_path / "home")
    assert "Recovered: 0 sessions with 0 entries." in notices[0]
    assert (after, kept_aside(tmp_path / "home")) == ({}, [content])


async def test_a_store_that_vanished_is_said(tmp_path: Path) -> None:
    await furnish(tmp_path / "home")
    (tmp_path / "home" / "store.db").unlink()
    notices, after = await open_again(tmp_path / "home")
    assert (len(notices), "was missing" in notices[0], after) == (1, True, {})


async def test_an_entry_that_cannot_be_read_is_told_and_mended_by_the_next_start(tmp_path: Path) -> None:
    before = await furnish(tmp_path / "home")
    path = tmp_path / "home" / "store.db"
    place = path.read_bytes().index(b"answer 7")
    overwrite(path, place, b'ans"":{\x00')
    async with open_store(tmp_path / "home") as store:
        assert store.notices == ()
        session = await store.find("ann", "s7")
        assert session
        with pytest.raises(StoreDamaged, match=r"entry 15 .* is damaged .*; start Outrider again"):
            await store.read(session.id)
        assert [found.name for found in await store.search("ann", "answer 6")] == ["s6"]
    notices, after = await open_again(tmp_path / "home")
    assert "Session 's7' lost its last 1 entries." in notices
    assert [entry.body for entry in after["s7"]][14:] == [Ended("failed", 14, SESSION_END_LOST)]
    assert_beginning(before["s7"], after["s7"])
    assert {name: after[name] for name in after if name != "s7"} == {n: j for n, j in before.items() if n != "s7"}


async def test_damage_met_while_running_is_told_and_mended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await furnish(tmp_path / "home")
    store = tmp_path / "home" / "store.db"
    overwrite(store, (root_of_entries(store) - 1) * PAGE, b"rubbish!" * (PAGE // 8))
    monkeypatch.setattr(
        "outrider.store.sqlite.ALWAYS_CHECKED_SIZE", 0
    )  # a store that is too large to be checked at every start
    async with open_store(tmp_path / "home") as opened:
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
    before = await furnish(home)
    (home / "store.db").rename(home / "store.db.salvaged")
    (home / "store.db").write_bytes(b"damaged")
    notices, after = await open_again(home)
    assert ("recovered" in notices[0], after, kept_aside(home)) == (True, before, [b"damaged"])


async def test_a_damaged_index_is_made_anew_in_silence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await furnish(home)
    for content in (b"rubbish" * 2000, b""):
        async with open_store(home) as store:
            assert [found.name for found in await store.search("ann", "question 3")] == ["s3"]
        (home / "search.db").write_bytes(content)
    async with open_store(home) as store:
        assert len(await store.search("ann", "question")) == 20
