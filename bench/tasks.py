"""What commands cost as tasks: from their end to the notice, while they are quiet, and over a bare subprocess."""

import os
import re
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

import outrider
from bench.table import Row, progress, spread
from outrider.app.agent import Agent
from outrider.config.environment import child_environment
from outrider.config.load import load
from outrider.core.approvals import HOST
from outrider.core.events import Entry, Input, Reply
from outrider.core.ports import Commands, Emit
from outrider.core.prompt import Prompt, ToolMessage, UserMessage
from outrider.core.tasks import Task, TaskSpec
from outrider.core.types import Call, ModelTraits, call_id
from outrider.workspaces.commands import CommandSettings, LocalCommands
from outrider.workspaces.sandbox import detect
from outrider.workspaces.sandbox.types import NoSandbox

_TOGETHER = 100
_LONG = 300.0
GATE = "gate"
"""A named pipe that every command of a crowd reads before it goes on."""


class Starter:
    """Starts as many commands as it is told to, a hundred in a reply: a single one is waited for, several are not."""

    traits = ModelTraits("starter", "starter")

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        asked = [m.text for m in prompt.messages if isinstance(m, UserMessage) and m.source == "person"][-1]
        count, _, command = asked.partition(" ")
        begun = sum(len(m.results) for m in prompt.messages if isinstance(m, ToolMessage))
        wanted = range(begun, min(begun + _TOGETHER, int(count)))
        calls: list[dict[str, object]] = [
            {"command": command.replace("NUMBER", str(n)), "background": count != "1"} for n in wanted
        ]
        return Reply("ok", prompt.saw, tuple(Call(call_id(prompt.saw, n), "shell", c) for n, c in enumerate(calls)))


class End(Struct, frozen=True):
    """One end that was told."""

    number: int
    code: int
    late: float
    """Seconds from the command's last act to its notice in the journal."""


@asynccontextmanager
async def open_bench_agent(folder: Path, most: int = 5000) -> AsyncGenerator[Agent]:
    """An agent that may have so many tasks, in a folder with a gate."""
    work = folder / "work"
    work.mkdir()
    os.mkfifo(work / GATE)
    config = load(folder / "home", {}, {"shell.tasks": str(most), "limits.steps": "10000"})
    async with outrider.open(config=config, model=Starter(), workspace=work) as agent:
        yield agent


async def start_crowd(agent: Agent, count: int) -> Path:
    """So many commands, each waiting for a line of its own at the gate; the gate."""
    session = await agent.session("crowd")
    command = f"read word <{GATE}; echo NUMBER; date +%s%N; exit $((NUMBER % 50))"
    await agent.say(f"{count} {command}", session=session.id, address="terminal:bench")
    return Path(session.workspace) / GATE


async def release(agent: Agent, gate: Path, count: int, pause: float = 0.0) -> list[End]:
    """Let one after the other through the gate, so many seconds apart; every end that is told."""
    session = await agent.session("crowd")
    ends: list[End] = []
    with anyio.fail_after(_LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(_let_through, gate, count, pause)
            async for event in agent.follow(session):
                if isinstance(event, Entry) and isinstance(event.body, Input) and event.body.source == "task":
                    ends.append(_parse(event.body.text, event.at))
                    if len(ends) == count:
                        break
        await agent.wait(await agent.find(session.id))
    return ends


async def _let_through(gate: Path, count: int, pause: float) -> None:
    # Open for reading too, so that a line waits for whoever comes late.
    with open(gate, "r+b", buffering=0) as file:
        for _ in range(count):
            file.write(b"\n")
            await anyio.sleep(pause)
        while select.select([file], [], [], 0)[0]:
            await anyio.sleep(0.05)


def _parse(notice: str, at: int) -> End:
    found = re.search(r"^exit code: (\d+)\n(?:.*\n)*\| (\d+)\n\| (\d{19})$", notice, re.MULTILINE)
    if not found:
        raise RuntimeError(f"not the end of a command of ours: {notice}")
    return End(int(found[2]), int(found[1]), at / 1000 - int(found[3]) / 1e9)


def memory() -> int:
    """What this process holds now, in MiB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024


def _lateness(ends: Sequence[End]) -> str:
    late = sorted(max(0.0, end.late) * 1000 for end in ends)
    return f"{statistics.median(late):.0f} ms (p99 {late[int(len(late) * 0.99)]:.0f}, max {late[-1]:.0f})"


async def _notice_delays(count: int, pause: float, how: str) -> list[Row]:
    progress(f"{count:,} tasks, ending {how}")
    with tempfile.TemporaryDirectory() as name:
        async with open_bench_agent(Path(name)) as agent:
            begun = time.perf_counter()
            gate = await start_crowd(agent, count)
            each = (time.perf_counter() - begun) / count
            held = memory()
            ends = await release(agent, gate, count, pause)
    if sorted((end.number, end.code) for end in ends) != [(n, n % 50) for n in range(count)]:
        raise RuntimeError("some end was told wrongly, twice or not at all")
    return [
        Row("tasks", f"end to notice, {count:,} ending {how}", _lateness(ends), "median"),
        Row("tasks", f"starting each of {count:,} in the background", f"{each * 1000:.1f} ms"),
        Row("memory", f"with {count:,} tasks running", f"{held} MB", f"{memory()} MB when all are told"),
    ]


async def _quiet(count: int, seconds: float) -> Row:
    progress(f"{count} quiet tasks")
    with tempfile.TemporaryDirectory() as name:
        async with open_bench_agent(Path(name)) as agent:
            gate = await start_crowd(agent, count)
            await anyio.sleep(1)
            before = time.process_time()
            await anyio.sleep(seconds)
            used = time.process_time() - before
            await release(agent, gate, count)
    return Row("tasks", f"CPU with {count} quiet tasks", f"{used / seconds * 1000:.2f} ms a second")


async def _one(commands: Commands, work: Path, number: int, grants: tuple[str, ...]) -> float:
    wish = TaskSpec(kind="command", call=f"c{number}", command="true", grants=grants)
    id = f"t{number:06}{''.join(grants)}"
    task = Task(id=id, session="s", person="p", workspace=str(work), spec=wish, state="queued", created=0)
    begun = time.perf_counter()
    mark = await anyio.to_thread.run_sync(commands.start, task)
    end = await commands.wait_for_end(msgspec.structs.replace(task, process=mark))
    taken = time.perf_counter() - begun
    if end.code:
        raise RuntimeError(f"true ended with {end}")
    return taken


async def _foreground(times: int) -> list[Row]:
    progress("true, in the foreground")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with open_bench_agent(folder) as agent:
            taken: list[float] = []
            for n in range(times):
                begun = time.perf_counter()
                await agent.say("1 true", session=f"w{n}", address="terminal:bench")
                taken.append(time.perf_counter() - begun)
        work, home = folder / "work", folder / "home"
        commands = LocalCommands(
            CommandSettings(home / "bare", detect, child_environment(), 1 << 20, hidden=(str(home),))
        )
        bare = [_bare() for _ in range(times)]
        rows.append(Row("tasks", "true, by subprocess.run", spread(bare), "/bin/sh -c"))
        host = [await _one(commands, work, n, (HOST,)) for n in range(times)]
        rows.append(Row("tasks", "true, as a task, without sandbox", spread(host), _over(host, bare)))
        if isinstance(commands.sandbox, NoSandbox):
            return rows
        boxed = [await _one(commands, work, n, ()) for n in range(times)]
        rows.append(Row("tasks", "true, as a task, in the sandbox", spread(boxed), _over(boxed, bare)))
        rows.append(Row("tasks", "true, by a turn that waits for it", spread(taken), _over(taken, bare)))
    return rows


def _bare() -> float:
    begun = time.perf_counter()
    subprocess.run(["/bin/sh", "-c", "true"], check=True)
    return time.perf_counter() - begun


def _over(taken: Sequence[float], bare: Sequence[float]) -> str:
    return f"{(statistics.median(taken) - statistics.median(bare)) * 1000:.1f} ms over that"


async def tasks(times: int, most: int) -> list[Row]:
    """All of it; crowds of up to `most` tasks."""
    rows = await _foreground(times)
    rows.append(await _quiet(100, 5.0))
    for count in (200, 1000):
        if count <= most:
            rows += await _notice_delays(count, 0.02, "20 ms apart")
            rows += (await _notice_delays(count, 0.0, "all at once"))[:1]
    return rows
