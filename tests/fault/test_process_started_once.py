"""A crash while a command is being started: the command ran once, or it never will."""

import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import Refused
from outrider.workspaces.process_end import remove_folder
from outrider.workspaces.supervisor import adopt, start_detached, supervisor_argv
from outrider.workspaces.task_folder import Exit, poll_exit
from tests.support.tasks import LONG, StartedTask, StartedTasks, open_tasks

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L4")]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[StartedTasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


async def test_a_supervisor_that_did_start_is_found(tasks: StartedTasks) -> None:
    task = tasks.run_from_another("echo ran >>count; echo ready; sleep 1000")
    await task.wait_for_output(b"ready")
    assert (adopt(task.folder), adopt(task.folder)) == (task.identity, task.identity)
    assert (tasks.home / "count").read_text() == "ran\n"


async def test_a_command_that_has_ended_is_found_with_its_end(tasks: StartedTasks) -> None:
    task = tasks.run("echo ran >>count; exit 3")
    await task.wait()
    identity = adopt(task.folder)
    assert identity
    assert (identity, await StartedTask(task.folder, identity).wait()) == (task.identity, Exit(3, "exit"))


async def test_a_supervisor_that_starts_too_late_does_not_run_the_command(tasks: StartedTasks) -> None:
    spec = tasks.spec("echo ran >>count")
    spec.folder.mkdir()
    (spec.folder / "record").write_text("pipe pipe:[0]\n")
    assert (poll_exit(spec.folder, None), adopt(spec.folder), adopt(spec.folder)) == (None, None, None)
    late = _supervisor(supervisor_argv(spec), tasks.home)
    assert late != 0
    assert [path for path in (tasks.home / "count", spec.folder / "output") if path.exists()] == []
    end = poll_exit(spec.folder, None)
    assert (end and end.reason, adopt(spec.folder)) == ("lost", None)
    with pytest.raises(Refused, match="given up before its start"):
        start_detached(spec)
    remove_folder(spec.folder)
    assert _supervisor(supervisor_argv(spec), tasks.home) != 0
    assert not (tasks.home / "count").exists()


async def test_supervisor_and_adopter_never_both_win(tasks: StartedTasks) -> None:
    outcomes: list[tuple[bool, bool]] = []
    for _ in range(60):
        spec = tasks.spec("echo ran")
        identity = start_detached(spec)
        # Somewhere in the middle of the supervisor's first steps.
        await anyio.sleep(0.0001 * (len(outcomes) % 30))
        adopted = adopt(spec.folder)
        end = await StartedTask(spec.folder, identity).wait()
        assert adopted in (None, identity)
        outcomes.append((adopted is not None, end == Exit(0, "exit")))
    assert [outcome for outcome in outcomes if outcome[0] != outcome[1]] == []


async def test_a_start_that_died_before_its_folder_was_made_never_happens(tasks: StartedTasks) -> None:
    spec = tasks.spec("echo ran >>count")
    assert adopt(spec.folder) is None
    with pytest.raises(Refused, match="given up before its start"):
        start_detached(spec)
    shutil.rmtree(spec.folder)


def _supervisor(argv: Sequence[str], cwd: Path) -> int:
    reads, writes = os.pipe()
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=writes, stderr=reads, cwd=cwd, timeout=LONG, check=False
        ).returncode
    finally:
        os.close(reads)
        os.close(writes)
