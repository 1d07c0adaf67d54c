"""kill -9 of the process that started a command: the command is not affected, and the next process sees its end."""

import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from outrider.core.tasks import ProcessIdentity
from outrider.system.processes import boot_id
from outrider.workspaces.task_folder import Exit, close_stdin, poll_exit, read_output, write_stdin
from tests.support.tasks import StartedTask, StartedTasks, is_gone, open_tasks, until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L6")]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[StartedTasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


async def test_a_command_outlives_its_starter_and_is_written_to_by_the_next(tasks: StartedTasks) -> None:
    task = tasks.run_from_another("echo $$; while read -r word; do echo got $word; done; exit 3", stdin="open")
    await task.wait_for_output(b"\n")
    assert task.poll() is None
    write_stdin(task.folder, b"hello\n")
    await task.wait_for_output(b"got hello")
    close_stdin(task.folder)
    assert await task.wait() == Exit(3, "exit")
    assert read_output(task.folder, 0, 100).split(b"\n")[1:] == [b"got hello", b""]


async def test_the_end_is_known_although_no_process_watched(tasks: StartedTasks) -> None:
    task = tasks.run_from_another("echo done; exit 4")
    await until_gone(task.identity.pid)
    assert (task.poll(), await task.wait(), task.output()) == (Exit(4, "exit"), Exit(4, "exit"), b"done\n")


async def test_a_command_whose_starter_is_dead_can_be_killed(tasks: StartedTasks) -> None:
    task = tasks.run_from_another("sleep 1000 & echo $!; wait")
    await task.wait_for_output(b"\n")
    assert await task.kill() == Exit(143, "killed", 15)
    assert is_gone(int(task.output().split()[0]))


async def test_another_process_with_the_same_pid_is_not_mistaken_for_the_supervisor(tasks: StartedTasks) -> None:
    task = tasks.run("exit 6")
    await task.wait()
    identity = task.identity
    for other in (
        # This very process, had it been given the number of the supervisor.
        ProcessIdentity(os.getpid(), identity.started, boot_id()),
        ProcessIdentity(identity.pid, identity.started, "another boot"),
        ProcessIdentity(0, 0, ""),
    ):
        assert await StartedTask(task.folder, other).wait() == Exit(6, "exit")
        assert await StartedTask(task.folder, other).kill() == Exit(6, "exit")


async def test_a_command_of_an_earlier_boot_is_lost_and_its_pid_is_not_signalled(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.wait_for_output(b"ready")
    before = StartedTask(task.folder, msgspec.structs.replace(task.identity, boot="another boot"))
    assert (before.poll(), await before.kill()) == (Exit(None, "lost"), Exit(None, "lost"))
    assert task.poll() is None


@pytest.mark.parametrize("wrapper", ["exec", "exec env -i"])
async def test_a_command_whose_supervisor_was_killed_is_lost_and_what_is_left_of_it_can_be_ended(
    tasks: StartedTasks, wrapper: str
) -> None:
    task = tasks.run(f"echo $$ ready; {wrapper} sleep 1000", stdin="open")
    await task.wait_for_output(b"ready")
    os.kill(task.identity.pid, signal.SIGKILL)
    pid = int(task.output().split()[0])
    assert (await task.wait(), is_gone(pid)) == (Exit(None, "lost"), False)
    assert (await task.kill(), is_gone(pid)) == (Exit(None, "lost"), True)


async def test_an_interrupted_kill_is_still_reported_as_a_kill(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.wait_for_output(b"ready")
    (task.folder / "killed").touch()
    os.killpg(task.group(), signal.SIGTERM)
    assert await task.wait() == Exit(143, "killed", 15)


async def test_a_command_that_ended_before_the_kill_is_reported_as_ended(tasks: StartedTasks) -> None:
    task = tasks.run("exit 2")
    await task.wait()
    later = (task.folder / "record").stat().st_mtime + 1
    (task.folder / "killed").touch()
    os.utime(task.folder / "killed", (later, later))
    assert task.poll() == Exit(2, "exit")


async def test_a_stopped_supervisor_does_not_keep_a_kill_from_ending_everything(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; sleep 1000")
    await task.wait_for_output(b"ready")
    os.kill(task.identity.pid, signal.SIGSTOP)
    assert await task.kill(grace=0.1) == Exit(None, "killed")
    assert is_gone(task.identity.pid)


async def test_a_task_that_was_removed_is_lost(tasks: StartedTasks) -> None:
    end = poll_exit(tasks.home / "never", None)
    assert end
    assert msgspec.structs.replace(end, at=0) == Exit(None, "lost")
