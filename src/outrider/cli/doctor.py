"""`outrider doctor`: says what works here, what does not, and what to do about it. Works on a broken home too."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec

from outrider.cli.checks import (
    ProbeResult,
    check_discovered,
    check_home,
    check_installation,
    check_model,
    check_runtime,
    check_sandbox,
    check_settings,
    check_store,
    check_tasks,
)
from outrider.cli.lines import encode_json
from outrider.cli.logs import start_logging
from outrider.cli.opening import SignalWatch, run_async
from outrider.cli.plain import print_line
from outrider.cli.root import DONE, FAILED
from outrider.config.load import Config, find_home, load
from outrider.core.errors import Refused

_MARKS = {"fine": "✓", "odd": "!", "broken": "✗"}


@click.command("doctor")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--online", "is_online", is_flag=True, help="Ask the model a tiny question.")
def command(is_json: bool, is_online: bool) -> int:
    """Check this installation and say what to do about problems."""
    home = find_home()
    start_logging(home)
    return run_async(partial(_run_checks, home, is_json, is_online))


async def _run_checks(home: Path, is_json: bool, is_online: bool, halt: SignalWatch) -> int:
    return await report(is_json, _checks(home, is_online))


async def report(is_json: bool, *streams: AsyncGenerator[ProbeResult, None]) -> int:
    """Print findings as they come, and a summary; the exit code."""
    found: list[ProbeResult] = []
    for stream in streams:
        async for check in stream:
            found.append(check)
            if not is_json:
                print_line(_check_line(check))
    is_broken = any(check.verdict == "broken" for check in found)
    if is_json:
        print_line(encode_json({"ok": not is_broken, "checks": msgspec.to_builtins(found)}, is_pretty=True))
    else:
        print_line(_summary(found))
    return FAILED if is_broken else DONE


async def _checks(home: Path, is_online: bool) -> AsyncGenerator[ProbeResult, None]:
    for check in (*check_installation(), *check_home(home)):
        yield check
    config = _load_config()
    for check in check_settings(config):
        yield check
    async for check in check_store(home):
        yield check
    for check in check_tasks(home):
        yield check
    if isinstance(config, Config):
        async for check in check_sandbox(config):
            yield check
        async for check in check_runtime(config):
            yield check
        async for check in check_model(config, online=is_online):
            yield check
    async for check in check_discovered():
        yield check


def _load_config() -> Config | Refused:
    try:
        return load()
    except Refused as error:
        return error


def _check_line(check: ProbeResult) -> str:
    advice = f" → {check.advice}" if check.advice else ""
    return f"{_MARKS[check.verdict]} {check.name:<9} {check.text}{advice}"


def _summary(found: Sequence[ProbeResult]) -> str:
    broken = sum(check.verdict == "broken" for check in found)
    odd = sum(check.verdict == "odd" for check in found)
    if not broken and not odd:
        return "\nall is well"
    return f"\n{broken} broken, {odd} to look at"
