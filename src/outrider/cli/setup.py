"""How a command opens the agent: settings, log, home, and an event loop that signals end in an orderly way."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio

from outrider.app.api import OpenMode
from outrider.app.workspaces import terminal_workspace
from outrider.cli.logging import start_logging
from outrider.cli.output import check_text, warn
from outrider.config.load import find_home, load
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.ipc.client import HomeClient
from outrider.ipc.takeover import open_home_client


class SignalWatch:
    """Which signal asked this command to end, if one did."""

    signal: int = 0

    def watch(self) -> None:
        """Cancel the running task at the first signal; the next one has its usual, rough effect."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(number: int) -> None:
            self.signal = number
            for each in _STOP_SIGNALS:
                loop.remove_signal_handler(each)
            if task:
                task.cancel()

        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, end, number)

    @property
    def is_interrupt(self) -> bool:
        """Whether a person wants this turn stopped, rather than the process gone."""
        return self.signal == signal.SIGINT


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_async(command: Callable[[SignalWatch], Awaitable[int]]) -> int:
    """Run a command's coroutine; its exit code, or 128 and the signal that ended it.

    On asyncio's own loop: a single command never earns back what importing a faster one costs.
    """
    halt = SignalWatch()

    async def watched() -> int:
        halt.watch()
        return await command(halt)

    try:
        return anyio.run(watched)
    except asyncio.CancelledError:
        if not halt.signal:
            raise
        return 128 + halt.signal


def open_config(overrides: Mapping[str, str] | None = None) -> Config:
    """What is set, with the log begun."""
    _check_home(find_home())
    config = load(overrides={name: check_text(text, name) for name, text in (overrides or {}).items() if text})
    start_logging(config.home, config)
    return config


def _check_home(home: Path) -> None:
    for part in (home, *home.parents):
        if os.path.lexists(part) and not os.path.isdir(part):
            raise Refused(f"the home {home} cannot be: {part} is not a folder; name another with OUTRIDER_HOME")


@asynccontextmanager
async def open_home(
    config: Config, mode: OpenMode, *, workspace: Path | None = None, is_quiet: bool = False
) -> AsyncGenerator[HomeClient, None]:
    """Open the home, or join whoever owns it, telling on stderr what the person should know about that."""
    async with open_home_client(config, mode, workspace) as joined:
        for text in () if is_quiet else (*config.warnings, *joined.notices):
            warn(text)
        yield joined


def resolve_workspace(config: Config, path: str = "") -> Path | None:
    """The folder this command works in, or None when a new session gets one of its own."""
    check_text(path, "--workspace")
    try:
        return terminal_workspace(_current_folder(path), Path.home(), path, config.home)
    except RuntimeError:
        raise Refused("there is no home folder to stay out of; set HOME") from None


def _current_folder(path: str) -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        if path and Path(path).is_absolute():
            return Path("/")
        raise Refused("the current folder is gone; go to another, or name one with --workspace /its/path") from None


def open_read_only(config: Config, label: str) -> AbstractAsyncContextManager[HomeClient]:
    """Open the home only to look things up, which every owner allows. Runs no turns."""
    return open_home(config, OpenMode(label, "none", access="read"))
