"""kill -9 of a writing process, at a commit and at any moment: everything that was acknowledged is there."""

import random
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import HomeBusy
from outrider.store.sqlite import open_store
from tests.support.damage import overwrite_page

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L1")]
CHILD = Path(__file__).parents[1] / "support" / "store_child.py"


@contextmanager
def child(home: Path, action: str, fail: str = "") -> Generator["subprocess.Popen[str]"]:
    """A child process with an open store, killed afterwards."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(home), action],
        env={"OUTRIDER_FAIL": fail},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def acknowledged_until_dead(process: "subprocess.Popen[str]", kill_after: int = 0) -> dict[str, int]:
    """The last entry of each session that the child saw acknowledged."""
    acknowledged: dict[str, int] = {}
    assert process.stdout
    for number, line in enumerate(process.stdout, 1):
        if line.endswith("\n"):
            session, seq = line.split()
            acknowledged[session] = int(seq)
        if number == kill_after:
            process.kill()
    return acknowledged


async def assert_all_stored(home: Path, acknowledged: dict[str, int]) -> None:
    async with open_store(home, wait=60) as store:
        assert (store.notices, await store.check()) == ((), [])
        assert set(acknowledged) <= {session.id for session in await store.list("ann")}
        for session, seq in acknowledged.items():
            seqs = [entry.seq for entry in await store.read(session)]
            assert seqs == list(range(1, len(seqs) + 1))
            # At most the one entry that was being written may be there without having been acknowledged.
            assert seq <= len(seqs) <= seq + 1


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("hit", [1, 9, 60])
async def test_killed_at_a_commit_nothing_that_was_acknowledged_is_lost(tmp_path: Path, point: str, hit: int) -> None:
    with child(tmp_path / "home", "write", f"{point}:{hit}") as process:
        acknowledged = acknowledged_until_dead(process)
        assert process.wait(60) == -9
    await assert_all_stored(tmp_path / "home", acknowledged)


@pytest.mark.parametrize("seed", range(6))
async def test_killed_at_any_moment_nothing_that_was_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(2):
        with child(tmp_path / "home", "write") as process:
            acknowledged = acknowledged_until_dead(process, kill_after=moments.randint(1, 2000))
        await assert_all_stored(tmp_path / "home", acknowledged)


@pytest.mark.promise("L10")
@pytest.mark.parametrize("has_backup", [False, True])
async def test_killed_and_then_without_its_first_page_a_store_loses_nothing_acknowledged(
    tmp_path: Path, has_backup: bool
) -> None:
    for _ in range(2 if has_backup else 0):
        async with open_store(tmp_path) as store:
            assert await store.check() == []
    with child(tmp_path, "write") as process:
        acknowledged = acknowledged_until_dead(process, kill_after=500)
    assert (len(list(tmp_path.glob("store.db.backup-*"))) == 1) == has_backup
    assert (tmp_path / "store.db-wal").stat().st_size
    overwrite_page(tmp_path / "store.db", 1)
    async with open_store(tmp_path, wait=20) as store:
        assert await store.check() == []
        for session, seq in acknowledged.items():
            assert seq <= len(await store.read(session))


async def test_a_home_in_use_names_its_user_and_is_free_when_the_user_is_killed(tmp_path: Path) -> None:
    with child(tmp_path / "home", "hold") as process:
        with pytest.raises(HomeBusy, match=rf"outrider child \(process {process.pid}\) has been using .* since 20"):
            async with open_store(tmp_path / "home", wait=0):
                pass
        process.kill()
        process.wait(60)
        async with open_store(tmp_path / "home", wait=0) as store:
            assert store.notices == ()


async def test_a_process_that_waits_for_a_home_gets_it_when_its_user_exits(tmp_path: Path) -> None:
    with child(tmp_path / "home", "hold") as process:
        assert process.stdin
        process.stdin.close()
        async with open_store(tmp_path / "home", wait=60) as store:
            assert await store.list("ann") == []
        assert process.wait(60) == 0


async def test_killed_before_a_backup_is_in_place_the_older_one_stays(tmp_path: Path) -> None:
    for second in range(2):
        async with open_store(tmp_path, clock=lambda: 1) as store:
            await store.create("ann", f"s{second}", "/folder")
            assert await store.check() == []
    command = [sys.executable, str(CHILD), str(tmp_path), "hold"]
    with anyio.fail_after(60):
        killed = await anyio.run_process(command, env={"OUTRIDER_FAIL": "backup_not_renamed"}, check=False)
    assert killed.returncode == -9
    assert (tmp_path / "store.db.backup.unchecked").exists()
    assert [path.name for path in tmp_path.glob("store.db.backup-*")] == ["store.db.backup-19700101"]
    async with open_store(tmp_path) as store:
        assert (store.notices, await store.check(), len(await store.list("ann"))) == ((), [], 2)
    assert len(list(tmp_path.glob("store.db.backup*"))) == 1
    assert not (tmp_path / "store.db.backup-19700101").exists()
