"""Commands that write more output than is allowed, or than the disk can take."""

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outrider.core.errors import Refused
from outrider.workspaces.supervisor import start_detached
from outrider.workspaces.task_folder import Exit, output_size
from tests.support.mounts import small_disk
from tests.support.tasks import StartedTasks, open_tasks, until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7")]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[StartedTasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


async def test_a_flood_of_output_is_cut_off_at_the_limit(tasks: StartedTasks) -> None:
    task = tasks.run("yes", output=300_000)
    assert (await task.wait()).reason == "output"
    assert output_size(task.folder) == 300_000 // 512 * 512
    assert sum(path.stat().st_size for path in task.folder.iterdir()) < 310_000
    assert task.output() == b"y\n" * (output_size(task.folder) // 2)


async def test_a_command_that_runs_on_after_its_flood_is_killed_with_all_its_children(tasks: StartedTasks) -> None:
    task = tasks.run("trap '' TERM PIPE; sleep 1000 & echo $!; yes; yes; sleep 1000", output=4096)
    assert await task.wait() == Exit(137, "output", 9)
    await until_gone(int(task.output().split()[0]))


async def test_output_up_to_the_limit_is_kept(tasks: StartedTasks) -> None:
    fits, more = (
        tasks.run(f"head -c {count} /dev/zero; sleep 0.1", output=1 << 20) for count in (1 << 20, (1 << 20) + 1)
    )
    assert (await fits.wait(), output_size(fits.folder)) == (Exit(0, "exit"), 1 << 20)
    assert ((await more.wait()).reason, output_size(more.folder)) == ("output", 1 << 20)


async def test_the_end_of_a_command_is_recorded_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        async with open_tasks(disk) as tasks:
            quiet = tasks.run("echo ready >&2; read -r word; exit $word", stdin="open")
            await quiet.wait_for_output(b"ready")
            flood = tasks.run("yes", output=10 << 20)
            assert (await flood.wait()).reason == "output"
            _fill(disk)
            assert await quiet.kill() == Exit(143, "killed", 15)
            with pytest.raises(Refused, match="No space left"):
                start_detached(tasks.spec("true"))


def _fill(disk: Path) -> None:
    free = shutil.disk_usage(disk).free
    (disk / "rest").write_bytes(b"x" * free)
