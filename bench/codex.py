"""What turns of Codex cost through Outrider, compared with a minimal client, and the memory of many sessions."""

import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

import outrider
from bench.codex_bare import BareCodex, codex, provider
from bench.table import Row, progress, spread
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.runtimes.codex.launch import codex_command, codex_environment, codex_program
from outrider.system.processes import living_processes, new_marker, with_relatives
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer

ASKS = {"approvalPolicy": "on-request", "sandbox": "workspace-write"}
SCRIPT = Script(
    rules=(
        ScriptRule("command", ((says("", call("exec_command", cmd="true")),), (says("ok"),))),
        ScriptRule(
            "wait",
            ((says("", call("exec_command", cmd="touch began; until [ -e go ]; do sleep 0.1; done")),), (says("ok"),)),
        ),
        ScriptRule(".*", ((says("ok"),),)),
    )
)
_AT_ONCE = 20
_SESSIONS = (1, 4, 20)
Turn = Callable[[str, str], Coroutine[Any, Any, None]]
"""Says this in the thread of this name."""


@contextmanager
def home(folder: Path) -> Generator[None]:
    """An empty home folder, because the commands of Codex read files there: for a fair comparison."""
    before = os.environ.get("HOME", "")
    os.environ["HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ["HOME"] = before


def config(folder: Path, url: str) -> Config:
    """Settings for a home whose Codex sends its requests to this address only."""
    own = folder / "codex"
    own.mkdir()
    (own / "config.toml").write_text("\n".join(provider(url)))
    more = {"limits.turns": str(_AT_ONCE), "codex.home": str(own)}
    return load(folder / "home", {}, {"runtime.name": "codex", **more})


@asynccontextmanager
async def _bare(config: Config, folder: Path, url: str) -> AsyncGenerator[tuple[BareCodex, Turn]]:
    own = folder / "bare"
    (own / "tmp").mkdir(parents=True)
    binary = codex_program(config, folder, new_marker()).argv[0]
    threads: dict[str, str] = {}
    async with codex(binary, own, provider(url), {"TMPDIR": str(own / "tmp")}) as client:

        async def turn(thread: str, text: str) -> None:
            if thread not in threads:
                threads[thread] = await client.start_thread(folder / "work", **ASKS)
            status, _ = await client.turn(threads[thread], text)
            if status != "completed":
                raise RuntimeError(status)

        yield client, turn


def _through(agent: Agent) -> Turn:
    async def turn(session: str, text: str) -> None:
        ended = await agent.say(text, session=session)
        if ended.outcome != "done":
            raise RuntimeError(ended.error)

    return turn


async def _timed(turn: Turn, thread: str, text: str) -> float:
    start = time.perf_counter()
    await turn(thread, text)
    return time.perf_counter() - start


def _compared(what: str, ours: Sequence[float], bare: Sequence[float]) -> Row:
    more = statistics.median(ours) - statistics.median(bare)
    ratio = statistics.median(ours) / statistics.median(bare)
    return Row("codex", what, spread(ours), f"bare client {spread(bare)}: {ratio:.2f} ×, {more * 1000:+.1f} ms")


async def codex_turns(times: int) -> list[Row]:
    """First turns, later turns and turns with a command, alternating with the bare client; many sessions at once."""
    with tempfile.TemporaryDirectory() as name, ScriptedServer(SCRIPT) as server, home(Path(name)):
        folder = Path(name)
        (folder / "work").mkdir()
        chosen = config(folder, server.url)
        try:
            codex_command(chosen, codex_environment(chosen))
        except Refused as error:
            return [Row("codex", "not measured", "", str(error).partition(".")[0])]
        async with (
            outrider.open(config=chosen, workspace=folder / "work") as agent,
            _bare(chosen, folder, server.url) as (_, bare),
        ):
            turns = (_through(agent), bare)
            progress("turns of Codex, through Outrider and bare")
            await _measured(turns, 3, lambda n: (f"warm-up {n}", "command"))
            return [
                _compared("first turn of a session", *await _measured(turns, times, lambda n: (f"new {n}", "hello"))),
                _compared("later turns", *await _measured(turns, times * 2, lambda n: ("warm-up 0", "hello"))),
                _compared("one command, sandboxed", *await _measured(turns, times, lambda n: ("warm-up 1", "command"))),
                await _at_once(turns[0]),
            ]


async def _measured(
    turns: tuple[Turn, Turn], times: int, each: Callable[[int], tuple[str, str]]
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    bare: list[float] = []
    for n in range(times):
        ours.append(await _timed(turns[0], *each(n)))
        bare.append(await _timed(turns[1], *each(n)))
    return ours, bare


async def _at_once(turn: Turn) -> Row:
    progress(f"{_AT_ONCE} sessions of Codex at once")
    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for n in range(_AT_ONCE):
            group.start_soon(turn, f"beside {n}", "command")
    taken = time.perf_counter() - start
    note = f"first turns with a command, in one process; {taken / _AT_ONCE * 1000:.0f} ms each"
    return Row("codex", f"{_AT_ONCE} sessions at once", f"{taken * 1000:.0f} ms", note)


async def codex_memory() -> list[Row]:
    """What the processes of Codex need for running turns, each in a workspace of its own, and after them."""
    with tempfile.TemporaryDirectory() as name, ScriptedServer(SCRIPT) as server, home(Path(name)):
        chosen = config(Path(name), server.url)
        return [await _memory_of(chosen, Path(name), count) for count in _SESSIONS]


async def _memory_of(chosen: Config, folder: Path, count: int) -> Row:
    progress(f"memory of {count} sessions of Codex in {count} workspaces")
    workspaces, running = [folder / f"{count}-{n}" for n in range(count)], ""
    async with outrider.open(config=chosen) as agent:
        async with anyio.create_task_group() as group:
            for workspace in workspaces:
                workspace.mkdir()
                group.start_soon(_through(agent.in_workspace(workspace)), workspace.name, "wait")
            while not all((workspace / "began").exists() for workspace in workspaces):
                await anyio.sleep(0.05)
            running = _memory()
            for workspace in workspaces:
                (workspace / "go").touch()
        idle = _memory()
    return Row(
        "codex", f"{count} sessions in {count} workspaces", running, f"in turns, with their commands; after them {idle}"
    )


def _memory() -> str:
    """The memory of everything this process started; what several processes share is divided among them."""
    total = 0
    rows = with_relatives(living_processes(), set(), os.getpid())
    for row in rows:
        with suppress(OSError):
            lines = Path("/proc", str(row.pid), "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    servers = sum(b"app-server" in _command_line(row.pid) for row in rows)
    return f"{total / 1024:.0f} MB, {servers} app-servers"


def _command_line(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    return []
