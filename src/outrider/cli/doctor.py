"""`outrider doctor`: checks this installation and suggests fixes.

One function per subject; each yields findings. A broken home is a finding, not an error.
"""

import errno
import os
import platform
import shutil
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import click

from outrider import __version__
from outrider.cli.commands import DONE, FAILED, JSON_OPTION
from outrider.cli.logging import log_path, start_logging
from outrider.cli.output import one_line, print_json, print_line
from outrider.cli.setup import run_async
from outrider.config.discover import find_keys, find_local_servers
from outrider.config.load import find_home, load
from outrider.config.models import ModelChoice, choose_models, default_model
from outrider.config.schema import CONFIG_FILE, Config
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Input
from outrider.core.ports import NATIVE
from outrider.core.prompt import Prompt, UserMessage
from outrider.core.text import plural
from outrider.runtimes.base import ProbeResult, ProbeVerdict
from outrider.system.lock import last_holder

_LOW_DISK_BYTES = 500 * 1024 * 1024
_MODEL_TIMEOUT = 30.0
_OWNER_TIMEOUT = 10.0
_OTHER_HOME_HINT = "set OUTRIDER_HOME to another path"


def check_installation() -> Iterator[ProbeResult]:
    """The version, Python, and the optional parts."""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.release()} ({platform.machine()})"
    yield ProbeResult("outrider", "fine", f"{__version__}, {python}")
    if sys.flags.optimize:
        yield ProbeResult("python", "odd", "Python runs with -O", "start it without -O")
    has_providers = find_spec("pydantic_ai") is not None
    yield ProbeResult("extras", "fine", "providers: " + ("installed" if has_providers else "not installed (optional)"))


def check_home(home: Path) -> Iterator[ProbeResult]:
    """The home folder, its permissions, and the free space."""
    try:
        yield _check_home_folder(home)
        free = shutil.disk_usage(_nearest_folder(home)).free
    except OSError as error:
        yield ProbeResult("home", "broken", f"{home}: {error.strerror}", _OTHER_HOME_HINT)
        return
    verdict: ProbeVerdict = "odd" if free < _LOW_DISK_BYTES else "fine"
    yield ProbeResult("disk", verdict, f"{free / 1e9:,.1f} GB free", "free some space" if verdict == "odd" else "")
    log = log_path(home)
    yield ProbeResult("log", "fine", str(log) if log.is_file() else f"{log} (empty so far)")


def _check_home_folder(home: Path) -> ProbeResult:
    if not home.exists():
        above = _nearest_folder(home)
        if not os.access(above, os.W_OK):
            return ProbeResult(
                "home", "broken", f"{home} cannot be created: {above} cannot be written to", _OTHER_HOME_HINT
            )
        return ProbeResult("home", "fine", f"{home} does not exist yet; the first command creates it")
    if not home.is_dir():
        return ProbeResult("home", "broken", f"{home} is not a folder", f"move that file, or {_OTHER_HOME_HINT}")
    if not os.access(home, os.W_OK | os.X_OK):
        advice = f"run chmod u+rwx {home}, or {_OTHER_HOME_HINT}"
        return ProbeResult("home", "broken", f"{home} cannot be written to", advice)
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o077:
        return ProbeResult("home", "odd", f"{home} can be read by others (mode {mode:o})", f"chmod 700 {home}")
    return ProbeResult("home", "fine", str(home))


def _nearest_folder(path: Path) -> Path:
    """The deepest part of this path that exists. Raises NotADirectoryError when that is a file."""
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir() and nearest != path:
        raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a folder")
    return nearest


async def check_sandbox(config: Config) -> AsyncGenerator[ProbeResult, None]:
    """Whether commands run in a sandbox here, and in which one. Tries it."""
    from outrider.app.child_sessions import open_commands
    from outrider.workspaces.sandbox.landlock import NOT_HELD, LandlockSandbox
    from outrider.workspaces.sandbox.types import NoSandbox

    commands = open_commands(config)
    sandbox = await anyio.to_thread.run_sync(lambda: commands.sandbox)
    if isinstance(sandbox, NoSandbox):
        is_required, mode = config.sandbox.mode != "auto", config.sandbox.mode
        effect = f"no command may run (sandbox.mode is {mode})" if is_required else "every command needs approval"
        verdict: ProbeVerdict = "broken" if is_required else "odd"
        yield ProbeResult("sandbox", verdict, f"none, so {effect}: {one_line(sandbox.why)}", one_line(sandbox.hint))
        return
    if sandbox.kind == "off":
        advice = "outrider config set sandbox.mode auto, unless this machine is itself disposable"
        yield ProbeResult("sandbox", "odd", f"off: {one_line(sandbox.why)}", advice)
    else:
        network = "with network access" if config.sandbox.network else "without network access"
        yield ProbeResult("sandbox", "fine", f"commands run in a sandbox {network}: {one_line(sandbox.why)}")
    if isinstance(sandbox, LandlockSandbox):
        yield ProbeResult("sandbox", "fine", f"Landlock protects less than bubblewrap: {'; '.join(NOT_HELD)}")
        if sandbox.instead:
            text = f"bubblewrap would protect more, but {one_line(sandbox.instead.why)}"
            yield ProbeResult("sandbox", "fine", text, one_line(sandbox.instead.hint))
    limits = sandbox.limits
    method = "cgroups, for all its processes together" if sandbox.cgroups else "rlimits, memory for each process"
    amounts = f"{limits.processes:,} processes, {limits.memory >> 20:,} MiB of memory"
    yield ProbeResult("limits", "fine", f"{amounts} for each command ({method})")


async def check_runtime(config: Config) -> AsyncGenerator[ProbeResult, None]:
    """The runtime, unless it is the built-in loop: there the model is checked."""
    name = config.default_runtime
    if name == NATIVE:
        return
    from outrider.app.runtimes import probe

    details: list[str] = []
    async for check in probe(config, name):
        if check.verdict == "broken":
            advice = check.advice or f"outrider runtime doctor {name}"
            yield ProbeResult("runtime", "broken", one_line(f"{name}: {check.text}"), one_line(advice))
            return
        details += [check.text] if check.name in ("version", "login") else []
    yield ProbeResult("runtime", "fine", one_line(", ".join((name, *details))))


def check_tasks(home: Path) -> Iterator[ProbeResult]:
    """The disk space that the output of tasks takes."""
    count, size = _folder_usage(home / "tasks")
    if count:
        text = f"the output of {plural(count, 'task')} takes {size / 1e6:,.1f} MB in {home / 'tasks'}"
        yield ProbeResult("tasks", "fine", text)


def _folder_usage(folder: Path) -> tuple[int, int]:
    """The number of folders in this one, and the disk space of all files below it."""
    count = size = 0
    for root, folders, files in os.walk(folder):
        count = count or len(folders)
        for name in files:
            with suppress(OSError):  # The file was deleted meanwhile.
                size += os.lstat(os.path.join(root, name)).st_blocks * 512
    return count, size


def check_settings(config: Config | Refused) -> Iterator[ProbeResult]:
    """Whether the settings can be read."""
    if isinstance(config, Refused):
        yield ProbeResult(
            "settings", "broken", one_line(str(config)), f"correct {CONFIG_FILE} or the variable it mentions"
        )
        return
    count = len(config.sources)
    yield ProbeResult(
        "settings", "fine", f"{count} set; `outrider config list` shows them" if count else "all defaults"
    )
    for warning in config.warnings:
        yield ProbeResult("settings", "odd", one_line(warning))


async def check_store(home: Path) -> AsyncGenerator[ProbeResult, None]:
    """Opens the store as every command does, and checks all of it."""
    from outrider.store.sqlite import open_store

    size = _store_size(home)
    if size is None:
        yield ProbeResult("store", "fine", "does not exist yet; the first command creates it")
        return
    findings: list[ProbeResult] = []
    try:
        async with open_store(home, label="outrider doctor") as store:
            findings += [ProbeResult("store", "odd", one_line(notice)) for notice in store.notices]
            findings += [
                ProbeResult("store", "broken", one_line(problem), "restart Outrider: it recovers what can be read")
                for problem in await store.check()
            ]
            waiting, tasks = len(await store.sessions_with_work()), await store.open_tasks()
    except HomeBusy as busy:
        yield await _check_store_in_use(home, busy)
        return
    except (Refused, Unavailable) as error:
        yield ProbeResult("store", "broken", one_line(str(error)))
        return
    for finding in findings or [ProbeResult("store", "fine", f"intact ({size / 1e6:,.1f} MB)")]:
        yield finding
    if waiting:
        yield ProbeResult("turns", "odd", f"{waiting} unfinished", "outrider resume")
    if tasks:
        yield ProbeResult("tasks", "fine", f"{len(tasks)} not ended; `outrider tasks list` shows them")


async def _check_store_in_use(home: Path, busy: HomeBusy) -> ProbeResult:
    """Whether the process that uses the store can read it. Its file cannot be checked meanwhile."""
    from outrider.app.operations import OPERATIONS
    from outrider.ipc.client import connect_to_owner
    from outrider.ipc.protocol import ConnectionLost

    try:
        async with connect_to_owner(home) as owner:
            if owner:
                with anyio.fail_after(_OWNER_TIMEOUT):
                    await owner.call(OPERATIONS["sessions"], (1,), {})
                holder = last_holder(home)
                text = (
                    f"{holder.what} (process {holder.pid}) uses it and can read it, so the file itself was not checked"
                )
                return ProbeResult("store", "fine", one_line(text))
    except (HomeBusy, ConnectionLost, TimeoutError):
        pass  # It is of another version, or has just left, or is stuck.
    except (Refused, Unavailable) as error:
        return ProbeResult("store", "broken", f"the process that uses it cannot read it: {one_line(str(error))}")
    return ProbeResult("store", "odd", f"in use, so it was not checked: {one_line(str(busy))}")


def _store_size(home: Path) -> int | None:
    """None where there is no store, or the home cannot be read: its own check has reported that."""
    try:
        return (home / "store.db").stat().st_size
    except OSError:
        return None


async def check_model(config: Config, *, online: bool) -> AsyncGenerator[ProbeResult, None]:
    """Which model is used, why, and whether it can be reached."""
    if config.remote.url:
        yield ProbeResult("model", "fine", "none is used here: remote.url forwards every turn")
        return
    try:
        default = default_model(config)
        choices = choose_models(config)
    except Refused as error:
        yield ProbeResult("model", "broken", one_line(str(error)), "see `outrider config list`")
        return
    main = choices[0]
    if main.wire == "practice":
        yield ProbeResult(
            "model",
            "odd" if not config.model.name else "fine",
            f"practice model ({default.reason})",
            "" if config.model.name else "outrider config set model <provider>:<model>, and set its key",
        )
        return
    key = "its key is set" if main.key else "no key"
    yield ProbeResult("model", "fine", f"{main.name} at {main.url} ({default.reason}), {key}")
    if len(choices) > 1:
        yield ProbeResult("model", "fine", "fallbacks: " + ", ".join(choice.name for choice in choices[1:]))
    yield await (_ask_model(main) if online else _check_reachable(main))


async def _check_reachable(choice: ModelChoice) -> ProbeResult:
    """Whether a model server on this machine accepts connections. Sends no request."""
    parts = urlsplit(choice.url)
    if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        return ProbeResult("reach", "fine", f"{parts.hostname} was not contacted; --online sends it a short prompt")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with anyio.fail_after(2):
            stream = await anyio.connect_tcp(parts.hostname, port)
            await stream.aclose()
    except (OSError, TimeoutError):
        return ProbeResult(
            "reach", "broken", f"nothing answers at {choice.url}", "start the model server, or change model.url"
        )
    return ProbeResult("reach", "fine", f"a server answers at {choice.url}")


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
    """A blob store that is never used: the prompt has no images."""

    def put(self, content: bytes) -> str:
        raise Refused("this prompt has no images")

    def get(self, name: str) -> bytes:
        raise Refused("this prompt has no images")


async def check_discovered() -> AsyncGenerator[ProbeResult, None]:
    """Provider keys in the environment, and model servers on this machine."""
    for key in find_keys():
        yield ProbeResult("found", "fine", f"{key.variable} is set: {key.command}")
    for offer in await find_local_servers():
        yield ProbeResult("found", "fine", f"{offer.provider} answers at {offer.url}: {offer.command}")


_MARKS = {"fine": "✓", "odd": "!", "broken": "✗"}


@click.command("doctor")
@JSON_OPTION
@click.option("--online", "is_online", is_flag=True, help="Also send the model a short prompt.")
def command(is_json: bool, is_online: bool) -> int:
    """Check this installation and suggest fixes. Exits with 1 if something is broken."""
    home = find_home()
    start_logging(home)
    return run_async(partial(print_report, is_json, _checks(home, is_online)))


async def print_report(is_json: bool, *streams: AsyncGenerator[ProbeResult, None]) -> int:
    """Print findings as they arrive, then a summary; returns the exit code."""
    findings: list[ProbeResult] = []
    for stream in streams:
        async for check in stream:
            findings.append(check)
            if not is_json:
                advice = f" → {check.advice}" if check.advice else ""
                print_line(f"{_MARKS[check.verdict]} {check.name:<9} {check.text}{advice}")
    broken = sum(check.verdict == "broken" for check in findings)
    odd = sum(check.verdict == "odd" for check in findings)
    if is_json:
        print_json({"ok": not broken, "checks": findings}, is_pretty=True)
    elif broken or odd:
        print_line(f"\n{plural(broken, 'problem')}, {plural(odd, 'warning')}")
    else:
        print_line("\nno problems found")
    return FAILED if broken else DONE


async def _checks(home: Path, is_online: bool) -> AsyncGenerator[ProbeResult, None]:
    for check in (*check_installation(), *check_home(home)):
        yield check
    try:
        config = load()
    except Refused as error:
        config = error
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
