"""Setup of a command: settings, log, home, and an event loop that a signal cancels in an orderly way."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from outrider.app.api import DEFAULT_PERSON, OpenMode, ReadOnlyApi, require_session
from outrider.app.workspaces import terminal_workspace
from outrider.cli.logging import start_logging
from outrider.cli.output import check_text, warn
from outrider.config.load import find_home, load
from outrider.config.schema import Config
from outrider.core.approvals import Permission
from outrider.core.errors import HomeBusy, Refused
from outrider.core.events import Asked, Entry
from outrider.core.plan import fold
from outrider.core.ports import Commands
from outrider.core.store_port import Key, Session
from outrider.core.tasks import Task
from outrider.ipc.client import HomeClient
from outrider.ipc.takeover import open_home_client

if TYPE_CHECKING:
    from outrider.store.reader import StoreReader


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


_OWNER_TIMEOUT = 0.3
"""Seconds to wait for an owner that takes no guests, and may have gone by then."""
_END_TIMEOUT = 10.0
"""Seconds its owner may take to see that a command has ended."""
_POLL_INTERVAL = 0.1


class Beside:
    """Looks into a home that a program of the person's owns, and that nobody can join."""

    def __init__(self, reader: "StoreReader", commands: Commands) -> None:
        self._reader = reader
        self._commands = commands

    @property
    def commands(self) -> Commands:
        return self._commands

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._reader.list(DEFAULT_PERSON, limit)

    async def find(self, name: str) -> Session:
        return require_session(await self._reader.find(DEFAULT_PERSON, name) if name.isprintable() else None, name)

    async def find_by_prefix(self, name: str) -> Session:
        return require_session(await self._reader.look_up(DEFAULT_PERSON, name) if name.isprintable() else None, name)

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._reader.read(session.id, after, limit)

    async def unfinished(self) -> Sequence[Session]:
        found = [await self._reader.find(DEFAULT_PERSON, id) for id in await self._reader.sessions_with_work()]
        return [session for session in found if session]

    async def questions(self, session: Session) -> Sequence[Asked]:
        return tuple(fold(await self._reader.read(session.id)).questions.values())

    async def permissions(self) -> Sequence[Permission]:
        return await self._reader.list_permissions(DEFAULT_PERSON)

    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]:
        return await self._reader.list_tasks(
            DEFAULT_PERSON, session.id if session else "", open_only=open_only, limit=limit
        )

    async def find_task(self, name: str) -> Task:
        if found := await self._reader.find_task(DEFAULT_PERSON, name):
            return found
        raise Refused(f"there is no task {name!r}; `outrider tasks list` shows them")

    async def kill_task(self, task: Task) -> Task:
        if task.spec.kind == "session":
            raise HomeBusy(f"task {task.id} is a session of the process that uses this home; stop it there")
        await self._commands.kill(task)
        return await self.wait_task(task, _END_TIMEOUT)

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        with anyio.move_on_after(seconds):  # its owner is about to see it too
            while task.is_open:
                await anyio.sleep(_POLL_INTERVAL)
                task = await self.find_task(task.id)
        return task

    async def find_key(self, id: str) -> Key | None:
        return await self._reader.find_key(id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._reader.list_keys()

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._reader.spent(id, since)


@asynccontextmanager
async def open_read_only(config: Config, label: str) -> AsyncGenerator[ReadOnlyApi]:
    """In the home or through its owner; where that takes no guests, beside it. Carries nothing."""
    async with AsyncExitStack() as stack:
        try:
            looking: ReadOnlyApi = await stack.enter_async_context(
                open_home(config, OpenMode(label, "none", _OWNER_TIMEOUT))
            )
        except HomeBusy:
            from outrider.app.child_sessions import open_commands
            from outrider.store.reader import open_reader

            looking = Beside(await stack.enter_async_context(open_reader(config.home)), open_commands(config))
        yield looking
