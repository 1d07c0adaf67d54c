"""What all processes of a command use together: its processor time and the disk of its workspace are bounded."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from outrider.core.errors import Unavailable
from outrider.testing.scripted_model import ScriptedModel, call, says
from outrider.workspaces.command_usage import (
    RunningCommand,
    UsageLimits,
    UsageMonitor,
    measure_usage,
    require_free_space,
)
from tests.support.mounts import small_disk
from tests.support.tasking import open_scripted, results, say_and_wait

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7"), pytest.mark.promise("S15")]
MANY_SHORT_PROCESSES = """
burn() { i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; }
while :; do (burn) & (burn) & wait; done
"""


@pytest.fixture
def burnt() -> Generator[int]:
    """A process that has used processor time in children that have ended, and waits now."""
    script = "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); echo ready; read x"
    with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def command(pid: int, folder: Path, id: str = "t-1") -> RunningCommand:
    return RunningCommand(id, str(folder), lambda: pid)


@pytest.mark.needs("sandbox")
async def test_a_command_of_many_short_processes_is_stopped_at_its_processor_time(tmp_path: Path) -> None:
    model = ScriptedModel(says("", call("shell", command=MANY_SHORT_PROCESSES, timeout=600)), says("fine"))
    async with open_scripted(tmp_path, model, sandbox_cpu="3") as agent:
        (result,) = await results(agent, await say_and_wait(agent, "go"))
    assert (result["status"], result["reason"]) == (
        "killed",
        "it used more processor time than sandbox.cpu allows (3.0 s)",
    )


def test_processor_time_of_ended_processes_counts(tmp_path: Path, burnt: int) -> None:
    assert measure_usage([command(burnt, tmp_path)])["t-1"].cpu > 0.05


def test_a_command_is_measured_when_it_could_have_reached_its_limit(tmp_path: Path, burnt: int) -> None:
    def unmeasured() -> int | None:
        raise AssertionError("it cannot have used this much yet")

    quiet = RunningCommand("t-2", str(tmp_path), unmeasured)
    exceeded, seconds = UsageMonitor(UsageLimits(cpu=86_400, reserve=0), processors=2).check([quiet])
    assert (exceeded, 1.0 <= seconds <= 30.0) == ({}, True)
    exceeded, seconds = UsageMonitor(UsageLimits(cpu=0, reserve=0), processors=2).check([command(burnt, tmp_path)])
    assert (list(exceeded), seconds) == (["t-1"], 1.0)


@pytest.mark.needs("sandbox")
async def test_the_command_that_fills_the_disk_is_stopped_and_no_other_starts(tmp_path: Path) -> None:
    with small_disk(tmp_path / "work", "40m"):
        fill = "i=0; while :; do head -c 500000 /dev/zero >$i; i=$((i+1)); sleep 0.05; done"
        model = ScriptedModel(
            says("", call("shell", command="sleep 300", background=True)),
            says("", call("shell", command=fill, timeout=600)),
            says("", call("shell", command="echo never")),
            says("fine"),
        )
        async with open_scripted(tmp_path, model) as agent:
            session = await say_and_wait(agent, "go")
            tasks = {task.spec.command: task for task in await agent.tasks(session)}
            for task in tasks.values():
                await agent.kill_task(task)
    assert (tasks["sleep 300"].state, tasks[fill].state) == ("running", "killed")
    assert tasks[fill].why.startswith("the disk has less free space than sandbox.reserve keeps, and it wrote the most")
    assert tasks["echo never"].state == "failed"
    assert "sandbox.reserve keeps 4.0 MiB free" in tasks["echo never"].why


def test_a_command_that_wrote_nothing_is_not_stopped_for_a_full_disk(tmp_path: Path, burnt: int) -> None:
    with small_disk(tmp_path / "disk", "10m") as disk:
        (disk / "others").write_bytes(bytes(9_800_000))
        idle = UsageMonitor(UsageLimits(cpu=86_400, reserve=1 << 40), processors=1)
        assert idle.check([command(burnt, disk)]) == ({}, 1.0)
        with pytest.raises(Unavailable, match="delete something first"):
            require_free_space(os.open(disk, os.O_RDONLY), 1 << 40)
