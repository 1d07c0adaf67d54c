"""A full or read-only disk: one line says so, nothing is acknowledged that is not stored, and nothing is repaired."""

from pathlib import Path

import pytest

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Entry, Input, Result
from outrider.core.store_port import Store
from outrider.store.sqlite import open_store
from tests.support.mounts import make_read_only, small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L1"), pytest.mark.promise("L12")]


async def fill(store: Store, session: str, generation: int) -> int:
    """Append until the disk is full; how many entries were acknowledged."""
    acknowledged: list[Entry | None] = []

    async def append_forever() -> None:
        while True:
            acknowledged.append(await store.append(session, Result("c", "x" * 20_000), generation))

    with pytest.raises(Unavailable, match="is full, and nothing more can be saved; free some space, then try again"):
        await append_forever()
    return len(acknowledged)


def fill_the_rest(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_a_full_disk_is_reported_and_writing_continues_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        (disk / "ballast").write_bytes(bytes(1_000_000))
        async with open_store(disk / "home") as store:
            session = await store.create("ann", "a", "/folder")
            claim = await store.claim(session.id)
            acknowledged = await fill(store, session.id, claim.generation)
            with pytest.raises(Unavailable, match="is full"):
                store.blobs.put(bytes(5_000_000))
            assert len(await store.read(session.id)) == acknowledged
            (disk / "ballast").unlink()
            assert (await store.accept(session.id, Input("room again"), None, queue=20))[1]
        async with open_store(disk / "home") as store:
            assert (store.notices, await store.check()) == ((), [])
            assert len(await store.read(session.id)) == acknowledged + 1
            assert not list((disk / "home" / "blobs").glob("??/.*"))


async def test_a_home_on_a_full_disk_can_still_be_read_after_a_restart(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        async with open_store(disk / "home") as store:
            session = await store.create("ann", "a", "/folder")
            claim = await store.claim(session.id)
            acknowledged = await fill(store, session.id, claim.generation)
        ballast = disk / "ballast"
        with pytest.raises(OSError, match="No space"):
            fill_the_rest(ballast)
        async with open_store(disk / "home") as store:
            assert len(await store.read(session.id)) == acknowledged
        ballast.unlink()
        async with open_store(disk / "home") as store:
            assert (store.notices, len(await store.read(session.id))) == ((), acknowledged)


async def test_a_read_only_home_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        async with open_store(disk / "home") as store:
            await store.create("ann", "a", "/folder")
        make_read_only(disk)
        with pytest.raises(Refused, match=r"cannot be written to .*; make it a folder that you can write to"):
            async with open_store(disk / "home"):
                pass


async def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(Refused, match="cannot be written to"):
        async with open_store(tmp_path / "home"):
            pass
