"""Commands that say too much, on disks that take too little."""

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outrider.core.errors import Refused
from outrider.workspaces.supervisor import start_detached
from outrider.workspaces.task_folder import Exit, output_size
from tests.support.mounts import small_disk
from tests.support.tasks import Tasks, open_tasks, until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7")]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[Tasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


async def test_a_flood_is_cut_off_and_the_disk_keeps_no_more_than_was_allowed(tasks: Tasks) -> None:
    task = tasks.run("yes", output=300_000)
    assert (await task.ends()).reason == "output"
    assert output_size(task.folder) == 300_000 // 512 * 512
    assert sum(path.stat().st_size for path in task.folder.iterdir()) < 310_000
    assert task.said() == b"y\n" * (output_size(task.folder) // 2)


async def test_a_command_that_goes_on_after_its_flood_is_ended_with_all_its_children(tasks: Tasks) -> None:
    task = tasks.run("trap '' TERM PIPE; sleep 1000 & echo $!; yes; yes; sleep 1000", output=4096)
    assert await task.ends() == Exit(137, "output", 9)
    await until_gone(int(task.said().split()[0]))


async def test_output_that_just_fits_is_no_flood(tasks: Tasks) -> None:
    fits, more = (
        tasks.run(f"head -c {count} /dev/zero; sleep 0.1", output=1 << 20) for count in (1 << 20, (1 << 20) + 1)
    )
    assert (await fits.ends(), output_size(fits.folder)) == (Exit(0, "exit"), 1 << 20)
    assert ((await more.ends()).reason, output_size(more.folder)) == ("output", 1 << 20)


async def test_a_full_disk_hides_neither_that_a_command_ended_nor_how(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        async with open_tasks(disk) as tasks:
            quiet = tasks.run("echo ready >&2; read -r word; exit $word", stdin="open")
            await quiet.says(b"ready")
            flood = tasks.run("yes", output=10 << 20)
            assert (await flood.ends()).reason == "output"
            _fill(disk)
            assert await quiet.is_killed() == Exit(143, "killed", 15)
            with pytest.raises(Refused, match="No space left"):
                start_detached(tasks.spec("true"))


def _fill(disk: Path) -> None:
    free = shutil.disk_usage(disk).free
    (disk / "rest").write_bytes(b"x" * free)
