"""`outrider doctor`: says what works here, what does not, and what to do about it. Works on a broken home too.

What `outrider doctor` looks at, one question a function. A broken home is a finding, never an error.
"""

import errno
import os
import platform
import shutil
import stat
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import click
import msgspec

from outrider import __version__
from outrider.cli.commands import DONE, FAILED
from outrider.cli.logging import log_path, start_logging
from outrider.cli.output import encode_json, one_line, print_line
from outrider.cli.setup import SignalWatch, run_async
from outrider.config.discover import find_keys, find_local_servers
from outrider.config.load import find_home, load
from outrider.config.models import ModelChoice, choose_models, default_model
from outrider.config.schema import CONFIG_FILE, Config
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Input
from outrider.core.ports import NATIVE
from outrider.core.prompt import Prompt, UserMessage
from outrider.runtimes.base import ProbeResult, ProbeVerdict

_LOW_DISK_BYTES = 500 * 1024 * 1024
_MODEL_TIMEOUT = 30.0
_OTHER_HOME_HINT = "name another home with OUTRIDER_HOME"


def check_installation() -> Iterator[ProbeResult]:
    """Python, the version, and the parts that may be missing."""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.release()} ({platform.machine()})"
    yield ProbeResult("outrider", "fine", f"{__version__}, {python}")
    if sys.flags.optimize:
        yield ProbeResult("python", "odd", "runs with -O", "start it without -O")
    has_providers = find_spec("pydantic_ai") is not None
    yield ProbeResult("extras", "fine", "providers: " + ("installed" if has_providers else "not installed (optional)"))


def check_home(home: Path) -> Iterator[ProbeResult]:
    """The home folder, who may read and write it, and the room left."""
    try:
        yield _check_home_folder(home)
        free = shutil.disk_usage(_nearest_folder(home)).free
    except OSError as error:
        yield ProbeResult("home", "broken", f"{home}: {error.strerror}", _OTHER_HOME_HINT)
        return
    verdict: ProbeVerdict = "odd" if free < _LOW_DISK_BYTES else "fine"
    yield ProbeResult("disk", verdict, f"{free / 1e9:,.1f} GB free", "free some space" if verdict == "odd" else "")
    log = log_path(home)
    yield ProbeResult("log", "fine", str(log) if log.is_file() else f"{log} (nothing was logged yet)")


def _check_home_folder(home: Path) -> ProbeResult:
    if not home.exists():
        above = _nearest_folder(home)
        if not os.access(above, os.W_OK):
            return ProbeResult(
                "home", "broken", f"{home} cannot be made: {above} cannot be written to", _OTHER_HOME_HINT
            )
        return ProbeResult("home", "fine", f"{home} is not there yet; it is made at first use")
    if not home.is_dir():
        return ProbeResult("home", "broken", f"{home} is not a folder", f"move it away, or {_OTHER_HOME_HINT}")
    if not os.access(home, os.W_OK | os.X_OK):
        return ProbeResult("home", "broken", f"{home} cannot be written to", f"chmod u+rwx it, or {_OTHER_HOME_HINT}")
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o077:
        return ProbeResult("home", "odd", f"{home} can be read by others (mode {mode:o})", f"chmod 700 {home}")
    return ProbeResult("home", "fine", str(home))


def _nearest_folder(path: Path) -> Path:
    """The deepest part of this path that is there. Raises NotADirectoryError when that is a file."""
    found = next(each for each in (path, *path.parents) if each.exists())
    if not found.is_dir() and found != path:
        raise NotADirectoryError(errno.ENOTDIR, f"{found} is not a folder")
    return found


async def check_sandbox(config: Config) -> AsyncGenerator[ProbeResult, None]:
    """Whether commands are confined here, and by what; found out by trying."""
    from outrider.app.child_sessions import open_commands
    from outrider.workspaces.sandbox.types import NoSandbox

    commands = open_commands(config)
    sandbox = await anyio.to_thread.run_sync(lambda: commands.sandbox)
    if isinstance(sandbox, NoSandbox):
        is_refused = config.sandbox.mode == "required"
        then = "no command may run (sandbox.mode is required)" if is_refused else "every command is asked for"
        verdict: ProbeVerdict = "broken" if is_refused else "odd"
        yield ProbeResult("sandbox", verdict, f"none, so {then}: {one_line(sandbox.why)}", one_line(sandbox.hint))
        return
    network = "with the network" if config.sandbox.network else "without the network"
    yield ProbeResult("sandbox", "fine", f"commands run confined, {network}, by {one_line(sandbox.why)}")
    limits = sandbox.limits
    how = "all together, by cgroups" if sandbox.cgroups else "by rlimits, memory for each process"
    most = f"{limits.processes:,} processes, {limits.memory >> 20:,} MiB of memory"
    yield ProbeResult("limits", "fine", f"a command may have {most} ({how})")


async def check_runtime(config: Config) -> AsyncGenerator[ProbeResult, None]:
    """What carries turns here, in a line; nothing of our own loop, whose model is looked at by itself."""
    name = config.runtime.name
    if name == NATIVE:
        return
    from outrider.app.runtimes import probe

    told: list[str] = []
    async for check in probe(config, name):
        if check.verdict == "broken":
            advice = check.advice or f"outrider runtime doctor {name}"
            yield ProbeResult("runtime", "broken", one_line(f"{name}: {check.text}"), one_line(advice))
            return
        told += [check.text] if check.name in ("version", "login") else []
    yield ProbeResult("runtime", "fine", one_line(", ".join((name, *told))))


def check_tasks(home: Path) -> Iterator[ProbeResult]:
    """What is left on the disk of what ran."""
    count, size = _folder_usage(home / "tasks")
    if count:
        what = "1 task takes" if count == 1 else f"{count:,} tasks take"
        yield ProbeResult("tasks", "fine", f"the output of {what} {size / 1e6:,.1f} MB in {home / 'tasks'}")


def _folder_usage(folder: Path) -> tuple[int, int]:
    """How many folders are in this one, and how many bytes the files in them take."""
    count = size = 0
    for root, folders, files in os.walk(folder):
        count = count or len(folders)
        for name in files:
            with suppress(OSError):  # gone since
                size += os.lstat(os.path.join(root, name)).st_blocks * 512
    return count, size


def check_settings(config: Config | Refused) -> Iterator[ProbeResult]:
    """Whether what is set can be read."""
    if isinstance(config, Refused):
        yield ProbeResult(
            "settings", "broken", one_line(str(config)), f"correct {CONFIG_FILE} or the variable it names"
        )
        return
    count = len(config.sources)
    yield ProbeResult(
        "settings", "fine", f"{count} set; `outrider config list` shows them" if count else "all as shipped"
    )
    for warning in config.warnings:
        yield ProbeResult("settings", "odd", one_line(warning))


async def check_store(home: Path) -> AsyncGenerator[ProbeResult, None]:
    """Opens the store as every command does, and looks through all of it."""
    from outrider.store.sqlite import open_store

    if not _exists(home / "store.db"):
        yield ProbeResult("store", "fine", "not there yet; it is made at first use")
        return
    findings: list[ProbeResult] = []
    try:
        async with open_store(home, label="outrider doctor") as store:
            findings += [ProbeResult("store", "odd", one_line(notice)) for notice in store.notices]
            findings += [
                ProbeResult("store", "broken", one_line(problem), "start Outrider again: it recovers what can be read")
                for problem in await store.check()
            ]
            waiting, tasks = len(await store.sessions_with_work()), await store.open_tasks()
    except HomeBusy as busy:
        yield ProbeResult("store", "odd", f"in use, so it was not looked through: {one_line(str(busy))}")
        return
    except (Refused, Unavailable) as error:
        yield ProbeResult("store", "broken", one_line(str(error)))
        return
    for finding in findings or [ProbeResult("store", "fine", f"sound ({_store_size(home)})")]:
        yield finding
    if waiting:
        yield ProbeResult("turns", "odd", f"{waiting} unfinished", "outrider resume")
    if tasks:
        yield ProbeResult("tasks", "fine", f"{len(tasks)} open when last looked at; `outrider tasks list` shows them")


def _exists(path: Path) -> bool:
    """Not, too, where it cannot be looked at: then the home's own check has told why."""
    return os.path.exists(path)


def _store_size(home: Path) -> str:
    return f"{(home / 'store.db').stat().st_size / 1e6:,.1f} MB"


async def check_model(config: Config, *, online: bool) -> AsyncGenerator[ProbeResult, None]:
    """Which model is asked, why that one, and whether it can be."""
    try:
        picked = default_model(config)
        choices = choose_models(config)
    except Refused as error:
        yield ProbeResult("model", "broken", one_line(str(error)), "see `outrider config list`")
        return
    main = choices[0]
    if main.wire == "practice":
        yield ProbeResult(
            "model",
            "odd" if not config.model.name else "fine",
            f"practice, which only plays a model ({picked.reason})",
            "" if config.model.name else "outrider config set model <provider>:<model>, and set its key",
        )
        return
    key = "its key is set" if main.key else "without a key"
    yield ProbeResult("model", "fine", f"{main.name} at {main.url} ({picked.reason}), {key}")
    if len(choices) > 1:
        yield ProbeResult("model", "fine", "then " + ", ".join(choice.name for choice in choices[1:]))
    yield await (_ask_model(main) if online else _check_reachable(main))


async def _check_reachable(choice: ModelChoice) -> ProbeResult:
    """Without sending anything: a server on this machine must at least answer the door."""
    parts = urlsplit(choice.url)
    if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        return ProbeResult("reach", "fine", f"{parts.hostname} was not asked; --online asks it a tiny question")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with anyio.fail_after(2):
            stream = await anyio.connect_tcp(parts.hostname, port)
            await stream.aclose()
    except (OSError, TimeoutError):
        return ProbeResult(
            "reach", "broken", f"nothing answers at {choice.url}", "start the model server, or set model.url"
        )
    return ProbeResult("reach", "fine", f"something answers at {choice.url}")


async def _ask_model(choice: ModelChoice) -> ProbeResult:
    from outrider.models.resilience import open_models

    prompt = Prompt("Answer in one word.", [UserMessage(Input("Say: ready").text)], saw=1)
    try:
        with anyio.fail_after(_MODEL_TIMEOUT):
            async with open_models([choice], _NoBlobs()) as model:
                reply = await model.reply(prompt, lambda delta: None)
    except (Refused, Unavailable) as error:
        return ProbeResult("reach", "broken", one_line(str(error)))
    except TimeoutError:
        return ProbeResult("reach", "broken", f"{choice.name} did not answer within {_MODEL_TIMEOUT:g} s")
    return ProbeResult("reach", "fine", f"{choice.name} answers: {one_line(reply.text, 40)}")


class _NoBlobs:
    """The question shows no pictures."""

    def put(self, content: bytes) -> str:
        raise Refused("nothing is kept here")

    def get(self, name: str) -> bytes:
        raise Refused("nothing is kept here")


async def check_discovered() -> AsyncGenerator[ProbeResult, None]:
    """Keys in the environment and model servers on this machine."""
    for key in find_keys():
        yield ProbeResult("found", "fine", f"{key.variable} is set: {key.command}")
    for offer in await find_local_servers():
        yield ProbeResult("found", "fine", f"{offer.provider} answers at {offer.url}: {offer.command}")


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
