"""Setup of a command: settings, log, home, and an event loop that a signal cancels in an orderly way."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio

from outrider.app.api import AgentApi, OpenMode
from outrider.app.workspaces import find_identity, has_same_folder, terminal_workspace
from outrider.cli.logging import start_logging
from outrider.cli.output import check_text, warn
from outrider.config.load import find_home, load
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.store_port import Session
from outrider.ipc.client import HomeClient
from outrider.ipc.takeover import open_home_client

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """Cancels a command at its first stop signal and remembers which one it was."""

    def __init__(self) -> None:
        self.signal = 0
        """The signal that cancelled the command, or 0."""

    def watch(self) -> None:
        """Cancel the current task at the first signal; a second one has its default effect."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(number: int) -> None:
            self.signal = number
            for each in _STOP_SIGNALS:
                loop.remove_signal_handler(each)
            if task:
                task.cancel()

        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, cancel, number)

    @property
    def is_interrupt(self) -> bool:
        """Whether it was Ctrl-C: the user wants the turn stopped, not only this process ended."""
        return self.signal == signal.SIGINT


def run_async(command: Callable[[], Awaitable[int | None]], signals: SignalWatch | None = None) -> int:
    """Run a command's coroutine and return its exit code (None is success), or 128 plus the signal that ended it.

    Uses asyncio's own loop: one command never earns back the time it takes to import a faster one.
    """
    watch = signals or SignalWatch()

    async def watched() -> int | None:
        watch.watch()
        return await command()

    try:
        return anyio.run(watched) or 0
    except asyncio.CancelledError:
        if not watch.signal:
            raise
        return 128 + watch.signal


def open_config(overrides: Mapping[str, str] | None = None) -> Config:
    """Load the settings and start logging."""
    _check_home(find_home())
    config = load(overrides={name: check_text(text, name) for name, text in (overrides or {}).items() if text})
    start_logging(config.home, config)
    return config


def _check_home(home: Path) -> None:
    for part in (home, *home.parents):
        if os.path.lexists(part) and not os.path.isdir(part):
            raise Refused(f"{home} cannot be the home: {part} is not a folder; set OUTRIDER_HOME to another path")


@asynccontextmanager
async def open_home(
    config: Config, mode: OpenMode, *, workspace: Path | None = None, is_quiet: bool = False
) -> AsyncGenerator[HomeClient, None]:
    """Open the home, or connect to the process that owns it, and print its warnings on stderr unless `is_quiet`."""
    async with open_home_client(config, mode, workspace) as agent:
        for text in () if is_quiet else (*config.warnings, *agent.notices):
            warn(text)
        yield agent


def resolve_workspace(config: Config, path: str = "") -> Path | None:
    """The folder this command works in, or None where a new session gets its own."""
    check_text(path, "--workspace")
    try:
        return terminal_workspace(_current_folder(path), Path.home(), path, config.home)
    except RuntimeError:
        raise Refused("your home folder is unknown; set HOME") from None


def _current_folder(path: str) -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        if path and Path(path).is_absolute():
            return Path("/")
        raise Refused(
            "the current folder no longer exists; change to another, or use --workspace /absolute/path"
        ) from None


async def continue_in_folder(
    agent: AgentApi, session: Session, folder: Path | None, *, is_explicit: bool, is_quiet: bool = False
) -> Session:
    """The session, moved to the folder of this command when its own is no longer at its path.

    Without having named the folder, a person means it only if it is the session's own, at another path.
    """
    if folder is None or session.workspace == str(folder) or has_same_folder(session):
        return session
    is_own = session.identity is not None and find_identity(folder) == session.identity
    if not (is_explicit or is_own):
        return session
    moved = await agent.move(session)
    if not is_quiet:
        warn(f"session {moved.name!r} works in {moved.workspace} from now on; its folder was {session.workspace}")
    return moved


def open_read_only(config: Config, label: str) -> AbstractAsyncContextManager[HomeClient]:
    """Open the home only to look things up, which every owner allows. Runs no turns."""
    return open_home(config, OpenMode(label, "none", access="read"))
