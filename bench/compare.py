"""This checkout beside another one, interleaved in one run: `./dev bench compare --other PATH`.

PATH is a checkout with its own `.venv` (run `./dev try` there). Only public surfaces are used, so that any two versions
can be compared. Every round measures both, in alternating order; what counts is the median of the ratios.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from bench.load import Load, Request, Response, load
from bench.table import Row, progress
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer

_TIMEOUT = 60.0
_TURNS = """
import sys, time, outrider
with outrider.open_blocking() as agent:
    agent.say("hello", session="s")
    started = time.process_time(), time.perf_counter()
    for _ in range(int(sys.argv[1])):
        turn = agent.say("hello", session="s")
        assert turn.outcome == "done", turn.error
    print(time.process_time() - started[0], time.perf_counter() - started[1])
"""


class Checkout:
    """One of the two versions, with a home of its own."""

    def __init__(self, root: Path, folder: Path, model_url: str) -> None:
        self.python = root / ".venv/bin/python"
        self.outrider = root / ".venv/bin/outrider"
        if not self.outrider.exists():
            raise SystemExit(f"{root} has no .venv/bin/outrider; run ./dev try there")
        folder.mkdir()
        self.folder = folder
        self.environ = {"PATH": os.defpath, "HOME": str(folder), "OUTRIDER_HOME": str(folder / "home")}
        self.model = {
            "OUTRIDER_MODEL": "openai-chat:scripted",
            "OUTRIDER_MODEL_URL": model_url,
            "OUTRIDER_MODEL_KEY": "k-12345678",
        }

    def run(self, *arguments: str, with_model: bool = False) -> tuple[float, float]:
        """Wall and CPU seconds of a command."""
        return self._measure([self.outrider, *arguments], self.environ | (self.model if with_model else {}))

    def turns(self, count: int) -> tuple[float, float]:
        """Wall and CPU seconds of one turn in a session of the Python API."""
        command = [self.python, "-c", _TURNS, str(count)]
        environ = self.environ | self.model | {"OUTRIDER_HOME": str(self.folder / "python")}
        out = subprocess.run(command, env=environ, cwd=self.folder, check=True, capture_output=True).stdout.split()
        return float(out[1]) / count, float(out[0]) / count

    def _measure(self, command: Sequence[Path | str], environ: dict[str, str]) -> tuple[float, float]:
        before, started = _children_cpu(), time.perf_counter()
        subprocess.run(command, env=environ, cwd=self.folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        return time.perf_counter() - started, _children_cpu() - before

    @contextmanager
    def up(self) -> Generator["RunningServer"]:
        """`outrider up`, with a key without limits."""
        environ = self.environ | self.model
        environ |= {"OUTRIDER_HOME": str(self.folder / "server"), "OUTRIDER_LIMITS_TURNS": "1000"}
        create = [self.outrider, "key", "create", "bench", "--rate", "1000000", "--concurrent", "1000"]
        key = subprocess.run(create, env=environ, check=True, capture_output=True).stdout.decode().strip()
        server = subprocess.Popen([self.outrider, "up", "--port", "0"], env=environ, stdout=subprocess.PIPE)
        try:
            line = server.stdout.readline() if server.stdout else b""
            yield RunningServer(server.pid, line.decode().split()[2], {"authorization": f"Bearer {key}"})
        finally:
            server.terminate()
            server.wait(_TIMEOUT)
            if server.stdout:
                server.stdout.close()


class RunningServer(Struct, frozen=True):
    """An `outrider up` and how to reach it."""

    pid: int
    url: str
    headers: dict[str, str]

    def cpu(self) -> float:
        """Seconds of CPU it has used, where the system says so."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except FileNotFoundError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(other: Path, rounds: int) -> list[Row]:
    """Rows of figures: this checkout, the other one, and the ratio of the two."""
    rows: list[Row] = []
    # A reply for every request: commands, warm-ups, turns of the Python API and of the server, in both checkouts.
    replies = script(*[says("hello")] * 3)
    with tempfile.TemporaryDirectory() as name, ScriptedServer(replies) as server:
        this = Checkout(Path(sys.prefix).parent, Path(name, "this"), server.url)
        that = Checkout(other.resolve(), Path(name, "that"), server.url)
        cases: list[tuple[str, Callable[[Checkout], tuple[float, float]], int]] = [
            ("outrider --version", lambda one: one.run("--version"), rounds),
            ("outrider --help", lambda one: one.run("--help"), rounds),
            ("outrider run, practice model", lambda one: one.run("run", "hello"), rounds),
            ("outrider run, instant HTTP model", lambda one: one.run("run", "hello", with_model=True), rounds),
            ("outrider sessions list", lambda one: one.run("sessions", "list"), rounds),
            ("a turn of the Python API", lambda one: one.turns(100), max(3, rounds // 3)),
        ]
        for what, measure, times in cases:
            progress(what)
            rows += _rows(what, _interleaved(lambda number: measure((this, that)[number]), times))  # noqa: B023
        with ExitStack() as stack:
            servers = [stack.enter_context(one.up()) for one in (this, that)]
            for clients, each in ((1, 60), (32, 10)):
                progress(f"chat completions, {clients} at once")
                pairs = _interleaved(lambda number: _load(servers[number], clients, each), max(3, rounds // 2))  # noqa: B023
                rows += _rows(f"chat completions, {clients} at once", pairs)
    return rows


Pairs = list[tuple[tuple[float, float], tuple[float, float]]]
"""Wall and CPU seconds of this checkout and of the other, one pair for each round."""


def _interleaved(measure: Callable[[int], tuple[float, float]], rounds: int) -> Pairs:
    """Measure 0 (this checkout) and 1 (the other one) in turns, after a warm-up of each."""
    for number in (0, 1):
        measure(number)
    pairs: Pairs = []
    for number in range(rounds):
        second_first = measure(1) if number % 2 else None
        first = measure(0)
        pairs.append((first, second_first or measure(1)))
    return pairs


def _load(server: RunningServer, clients: int, each: int) -> tuple[float, float]:
    """Wall and CPU seconds of the server for each chat completion with so many clients at once."""
    body = {"model": "outrider", "messages": [{"role": "user", "content": "hello"}]}

    def next_request(client: int, last: Response | None) -> Request:
        return Request("/v1/chat/completions", body, server.headers)

    before = server.cpu()
    done: Load = asyncio.run(load(server.url, clients, each, next_request, lambda one: one.status == 200))
    return done.seconds / (clients * each), (server.cpu() - before) / (clients * each)


def _rows(what: str, pairs: Pairs) -> list[Row]:
    rows: list[Row] = []
    for index, kind in enumerate(("wall", "CPU")):
        mine, theirs = [pair[0][index] for pair in pairs], [pair[1][index] for pair in pairs]
        if any(theirs):
            ratio = statistics.median(one / two for one, two in zip(mine, theirs, strict=True) if two)
            figure = f"{statistics.median(mine) * 1000:.1f} ms, other {statistics.median(theirs) * 1000:.1f} ms"
            rows.append(Row("compare", f"{what}, {kind}", figure, f"ratio {ratio:.2f} over {len(pairs)} rounds"))
    return rows
