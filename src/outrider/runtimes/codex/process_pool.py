"""The processes of one home: one for each person and workspace, kept for the next turn, ended when idle."""

import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Session
from outrider.runtimes.codex.app_server import AppServer, run_app_server
from outrider.runtimes.codex.launch import codex_program
from outrider.system.processes import terminate_marked

IDLE_TIMEOUT = 120.0
"""Seconds after which a process that nobody uses is ended."""
MAX_IDLE = 4
"""Processes that are kept while nobody uses them, at most."""
log = logging.getLogger("outrider.codex")


class AppServerPool:
    """Starts processes, and finds those that run. What an earlier owner of this home left behind is ended first."""

    def __init__(self, config: Config, group: TaskGroup) -> None:
        self._config = config
        self._group = group
        self._servers: dict[tuple[str, str], AppServer] = {}
        self._start_locks: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()
        self._marker_folder = config.home / "codex" / "marks"

    @asynccontextmanager
    async def acquire(self, session: Session) -> AsyncGenerator[AppServer]:
        """The process for this session. Raises Refused when none can be started, or what its handshake raises."""
        who = (session.person, session.workspace)
        lock = self._start_locks.setdefault(who, anyio.Lock())
        try:
            with ExitStack() as use:
                async with lock:
                    server = await self._get(who)
                    use.enter_context(server.in_use())
                yield server
        finally:
            self._retire_excess()

    async def _get(self, who: tuple[str, str]) -> AppServer:
        server = self._servers.get(who)
        if server and server.is_alive:
            return server
        if server:
            # Until it has let go of its threads no other can have them.
            await server.closed.wait()
        server = self._servers[who] = await self._group.start(self._run, who[1])
        return server

    def _retire_excess(self) -> None:
        """End the longest idle ones of too many."""
        idle = [server for server in self._servers.values() if server.is_alive and not server.users]
        for server in sorted(idle, key=lambda server: server.idle_since)[: max(0, len(idle) - MAX_IDLE)]:
            server.retire()

    async def _run(self, workspace: str, *, task_status: anyio.abc.TaskStatus[AppServer]) -> None:
        program = codex_program(self._config, Path(workspace))
        mark = self._marker_folder / program.marker
        await anyio.to_thread.run_sync(_write_marker, mark)
        try:
            await run_app_server(program, task_status=task_status)
        finally:
            mark.unlink(missing_ok=True)

    async def terminate_leftovers(self) -> None:
        """End what processes of an earlier owner left behind."""
        for mark in await anyio.to_thread.run_sync(_markers, self._marker_folder):
            try:
                if count := await terminate_marked(mark.name):
                    log.warning("ended %d processes that Codex had left behind", count)
            except (Refused, Unavailable) as error:
                log.warning("what Codex left behind was not ended: %s", error)
            mark.unlink(missing_ok=True)

    async def retire_idle(self) -> None:
        """End what nobody has used for a while, for as long as this runs."""
        while True:
            await anyio.sleep(IDLE_TIMEOUT / 10)
            for who, server in list(self._servers.items()):
                if server.closed.is_set():
                    del self._servers[who]
                elif not server.users and anyio.current_time() - server.idle_since > IDLE_TIMEOUT:
                    server.retire()


def _write_marker(mark: Path) -> None:
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark.touch(mode=0o600)


def _markers(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
