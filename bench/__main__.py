"""Runs the measurements and prints one table: `./dev bench`, or `./dev bench --quick` for a rough look."""

import argparse
from pathlib import Path

import anyio

from bench.api import api
from bench.codex import codex_memory, codex_turns
from bench.compare import compare
from bench.journal import appends, recovery
from bench.startup import commands, imports, memory
from bench.table import Row, show
from bench.tasks import tasks
from bench.turns import turns


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument(
        "parts",
        nargs="*",
        help="startup, imports, memory, turns, journal, recovery, tasks, api, codex (default: all), compare",
    )
    parser.add_argument("--other", type=Path, help="for compare: another checkout with its own .venv")
    options = parser.parse_args()
    times = 3 if options.quick else 10
    parts = {
        "startup": lambda: list(commands(times)),
        "imports": lambda: list(imports(times)),
        "memory": lambda: list(memory()),
        "turns": lambda: anyio.run(turns, 20 if options.quick else 100),
        "journal": lambda: anyio.run(appends, 200 if options.quick else 2000),
        "recovery": lambda: anyio.run(recovery),
        "tasks": lambda: anyio.run(tasks, 20 if options.quick else 100, 200 if options.quick else 1000),
        "api": lambda: anyio.run(
            api,
            *((100, (320, 640)) if options.quick else (640, (1_024, 10_016))),
            backend_options={"use_uvloop": True},
        ),
        "codex": lambda: [*anyio.run(codex_turns, 5 if options.quick else 20), *anyio.run(codex_memory)],
    }
    if options.other:
        parts["compare"] = lambda: compare(options.other, times)
    if "compare" in options.parts and not options.other:
        parser.error("compare needs --other PATH, a checkout with its own .venv")
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(parts)}")
    rows: list[Row] = []
    for name, measure in parts.items():
        if not options.parts or name in options.parts:
            rows += measure()
    show(rows)


main()
