"""kill -9 of the process that started a command: the command never notices, and whoever comes next sees its end."""

import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from outrider.core.tasks import ProcessIdentity
from outrider.system.processes import boot_id
from outrider.workspaces.task_folder import Exit, close_stdin, poll_exit, read_output, write_stdin
from tests.support.tasks import Task, Tasks, is_gone, open_tasks, until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L6")]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[Tasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


async def test_a_command_outlives_its_starter_and_is_written_to_by_the_next(tasks: Tasks) -> None:
    task = tasks.run_from_another("echo $$; while read -r word; do echo got $word; done; exit 3", stdin="open")
    await task.says(b"\n")
    assert task.looks() is None
    write_stdin(task.folder, b"hello\n")
    await task.says(b"got hello")
    close_stdin(task.folder)
    assert await task.ends() == Exit(3, "exit")
    assert read_output(task.folder, 0, 100).split(b"\n")[1:] == [b"got hello", b""]


async def test_the_end_is_known_though_nobody_watched(tasks: Tasks) -> None:
    task = tasks.run_from_another("echo done; exit 4")
    await until_gone(task.mark.pid)
    assert (task.looks(), await task.ends(), task.said()) == (Exit(4, "exit"), Exit(4, "exit"), b"done\n")


async def test_a_command_whose_starter_is_dead_can_be_killed(tasks: Tasks) -> None:
    task = tasks.run_from_another("sleep 1000 & echo $!; wait")
    await task.says(b"\n")
    assert await task.is_killed() == Exit(143, "killed", 15)
    assert is_gone(int(task.said().split()[0]))


async def test_another_process_with_the_same_number_is_not_mistaken_for_the_supervisor(tasks: Tasks) -> None:
    task = tasks.run("exit 6")
    await task.ends()
    mark = task.mark
    for other in (
        # This very process, had it been given the number of the supervisor.
        ProcessIdentity(os.getpid(), mark.started, boot_id()),
        ProcessIdentity(mark.pid, mark.started, "another boot"),
        ProcessIdentity(0, 0, ""),
    ):
        assert await Task(task.folder, other).ends() == Exit(6, "exit")
        assert await Task(task.folder, other).is_killed() == Exit(6, "exit")


async def test_a_running_command_of_an_earlier_boot_is_lost_and_its_number_is_left_alone(tasks: Tasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.says(b"ready")
    before = Task(task.folder, msgspec.structs.replace(task.mark, boot="another boot"))
    assert (before.looks(), await before.is_killed()) == (Exit(None, "lost"), Exit(None, "lost"))
    assert task.looks() is None


@pytest.mark.parametrize("wrapper", ["exec", "exec env -i"])
async def test_a_command_whose_supervisor_was_killed_is_lost_and_what_is_left_of_it_can_be_ended(
    tasks: Tasks, wrapper: str
) -> None:
    task = tasks.run(f"echo $$ ready; {wrapper} sleep 1000", stdin="open")
    await task.says(b"ready")
    os.kill(task.mark.pid, signal.SIGKILL)
    pid = int(task.said().split()[0])
    assert (await task.ends(), is_gone(pid)) == (Exit(None, "lost"), False)
    assert (await task.is_killed(), is_gone(pid)) == (Exit(None, "lost"), True)


async def test_a_kill_that_was_cut_short_is_still_told_as_a_kill(tasks: Tasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.says(b"ready")
    (task.folder / "killed").touch()
    os.killpg(task.group(), signal.SIGTERM)
    assert await task.ends() == Exit(143, "killed", 15)


async def test_a_command_that_ended_before_the_kill_is_told_as_ended(tasks: Tasks) -> None:
    task = tasks.run("exit 2")
    await task.ends()
    later = (task.folder / "record").stat().st_mtime + 1
    (task.folder / "killed").touch()
    os.utime(task.folder / "killed", (later, later))
    assert task.looks() == Exit(2, "exit")


async def test_a_stopped_supervisor_does_not_keep_a_kill_from_ending_everything(tasks: Tasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.says(b"ready")
    os.kill(task.mark.pid, signal.SIGSTOP)
    assert await task.is_killed(grace=0.1) == Exit(None, "killed")
    assert is_gone(task.mark.pid)


async def test_a_task_that_was_removed_is_lost(tasks: Tasks) -> None:
    end = poll_exit(tasks.home / "never", None)
    assert end
    assert msgspec.structs.replace(end, at=0) == Exit(None, "lost")
