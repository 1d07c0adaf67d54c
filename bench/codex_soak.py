"""Random kills of Codex during many turns: `./dev soak codex`.

Every turn makes the model run one command that pays one bill. Each turn must end with a reply or an explanation, and no
bill may be paid twice. In the end no process may be left, and memory and open files must not have grown.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import msgspec

import outrider
from bench.codex import config, home
from outrider.app.agent import Agent
from outrider.core.turn_result import TurnResult
from outrider.runtimes.codex.errors import USE_NATIVE_HINT
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer

SESSIONS = 4
WARM = 8
"""Turns before memory and open files are first measured."""
_DRAW = 0.4
"""Seconds from the start of a turn within which it is killed."""
_PATIENCE = 60.0


class Verdict(msgspec.Struct):
    """What was counted outside of Outrider."""

    turns: int
    kills: int
    done: int
    failed: int
    silent: int
    """Turns that ended without a reason, or not at all."""
    paid_twice: int
    unpaid: int
    """Unpaid bills of turns whose outcome is done."""
    left: int
    """Processes that are left when the home is closed."""
    files: int
    """More open files than after the first turns."""
    megabytes: float
    """More memory than after the first turns, in MB."""

    @property
    def is_bad(self) -> bool:
        return bool(self.silent or self.paid_twice or self.unpaid or self.left or self.files > 5 or self.megabytes > 24)


def processes(folder: Path) -> list[int]:
    """The living processes that were started in this folder, app-servers first."""
    mark = os.fsencode(folder)
    servers: list[int] = []
    others: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                is_dead = (entry / "stat").read_bytes().rpartition(b") ")[2].startswith(b"Z")
                if not is_dead and mark in (entry / "environ").read_bytes():
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    (servers if b"app-server" in words else others).append(int(entry.name))
    return servers + others


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _memory() -> float:
    """Megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Soak:
    """One run, in one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self.killed = 0
        self.ended: dict[str, TurnResult | None] = {}

    async def turn(self, agent: Agent, number: int, *, is_killed: bool) -> None:
        bill = f"b{number}"
        self.ended[bill] = None
        with anyio.move_on_after(_PATIENCE):
            async with anyio.create_task_group() as group:
                if is_killed:
                    group.start_soon(self._kill, self._chance.random() * _DRAW)
                self.ended[bill] = await agent.say(f"pay {bill}.", session=f"s{number % SESSIONS}")

    async def _kill(self, after: float) -> None:
        await anyio.sleep(after)
        for pid in processes(self._folder)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def _script(turns: int) -> Script:
    def rule(n: int) -> ScriptRule:
        # A message about an interrupted turn names its bill too.
        return ScriptRule(
            rf"pay b{n}\.", ((says("", call("exec_command", cmd=f"echo b{n} >> paid")),), (says("paid"),))
        )

    return Script(rules=(*(rule(n) for n in range(turns)), ScriptRule(".*", ((says("ok"),),))))


@contextmanager
def scripted_codex_model(turns: int) -> Generator[str]:
    """The URL of a model that pays this many bills. It has its own process, as it keeps every request in memory."""
    words = (sys.executable, "-m", "bench.codex_soak", "--serve", "--turns", str(turns))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process needs pipes")
        yield process.stdout.readline().strip()
        process.stdin.close()


def serve(turns: int) -> None:
    with ScriptedServer(_script(turns)) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


async def soak(folder: Path, turns: int, kills: int, seed: int) -> Verdict:
    """Run this many turns, kill Codex in `kills` of them, and count."""
    work = folder / "work"
    work.mkdir()
    run = Soak(folder, seed)
    doomed = set(random.Random(seed).sample(range(WARM, turns), kills))
    with scripted_codex_model(turns) as url, home(folder):
        files, memory = 0, 0.0
        async with outrider.open(config=config(folder, url), workspace=work) as agent:
            for n in range(turns):
                if n == WARM:
                    files, memory = _open_files(), _memory()
                await run.turn(agent, n, is_killed=n in doomed)
                sys.stderr.write(f"\rturn {n + 1} of {turns}, {run.killed} kills ")
            sys.stderr.write("\n")
            # One more turn, so that an idle Codex is compared with an idle Codex.
            await agent.say("hello", session="s0")
            files, memory = _open_files() - files, _memory() - memory
    return _judge(run, work, kills=run.killed, left=len(processes(folder)), grown=(files, memory))


def _judge(run: Soak, work: Path, *, kills: int, left: int, grown: tuple[int, float]) -> Verdict:
    paid = Counter((work / "paid").read_text().split())
    done = {bill for bill, turn in run.ended.items() if turn and turn.outcome == "done"}
    failed = {
        bill for bill, turn in run.ended.items() if turn and turn.outcome == "failed" and USE_NATIVE_HINT in turn.error
    }
    return Verdict(
        turns=len(run.ended),
        kills=kills,
        done=len(done),
        failed=len(failed),
        silent=len(run.ended) - len(done) - len(failed),
        paid_twice=sum(count > 1 for count in paid.values()),
        unpaid=len([bill for bill in done if not paid[bill]]),
        left=left,
        files=max(0, grown[0]),
        megabytes=max(0.0, round(grown[1], 1)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak codex", description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.turns)
        return
    with tempfile.TemporaryDirectory() as name:
        verdict = anyio.run(soak, Path(name), options.turns, options.kills, options.seed)
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    sys.exit(1 if verdict.is_bad else 0)


if __name__ == "__main__":
    main()
