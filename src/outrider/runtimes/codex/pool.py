"""The processes of one home: one for each person and workspace, kept for the next turn, ended when idle."""

import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from outrider.config.load import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import Session
from outrider.runtimes.codex.launch import codex_program
from outrider.runtimes.codex.process import Server, serve
from outrider.runtimes.jsonrpc import end_marked

IDLE = 120.0
"""Seconds after which a process that nobody uses is ended."""
SPARE = 4
"""Processes that are kept while nobody uses them, at most."""
log = logging.getLogger("outrider.codex")


class Pool:
    """Starts processes, and finds those that run. What an earlier owner of this home left behind is ended first."""

    def __init__(self, config: Config, group: TaskGroup) -> None:
        self._config = config
        self._group = group
        self._servers: dict[tuple[str, str], Server] = {}
        self._starting: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()
        self._marks = config.home / "codex" / "marks"

    @asynccontextmanager
    async def lent(self, session: Session) -> AsyncGenerator[Server]:
        """The process for this session. Raises Refused when none can be started, or what its handshake raises."""
        who = (session.person, session.workspace)
        lock = self._starting.setdefault(who, anyio.Lock())
        try:
            with ExitStack() as use:
                async with lock:
                    server = await self._get(who)
                    use.enter_context(server.in_use())
                yield server
        finally:
            self._make_room()

    async def _get(self, who: tuple[str, str]) -> Server:
        server = self._servers.get(who)
        if server and server.is_alive:
            return server
        if server:
            # Until it has let go of its threads no other can have them.
            await server.closed.wait()
        server = self._servers[who] = await self._group.start(self._run, who[1])
        return server

    def _make_room(self) -> None:
        """End the longest idle ones of too many."""
        idle = [server for server in self._servers.values() if server.is_alive and not server.users]
        for server in sorted(idle, key=lambda server: server.idle_since)[: max(0, len(idle) - SPARE)]:
            server.retire()

    async def _run(self, workspace: str, *, task_status: anyio.abc.TaskStatus[Server]) -> None:
        program = codex_program(self._config, Path(workspace))
        mark = self._marks / program.mark
        await anyio.to_thread.run_sync(_write_down, mark)
        try:
            await serve(program, task_status=task_status)
        finally:
            mark.unlink(missing_ok=True)

    async def clear(self) -> None:
        """End what processes of an earlier owner left behind."""
        for mark in await anyio.to_thread.run_sync(_listed, self._marks):
            try:
                if count := await end_marked(mark.name):
                    log.warning("ended %d processes that Codex had left behind", count)
            except (Refused, Unavailable) as error:
                log.warning("what Codex left behind was not ended: %s", error)
            mark.unlink(missing_ok=True)

    async def tidy(self) -> None:
        """End what nobody has used for a while, for as long as this runs."""
        while True:
            await anyio.sleep(IDLE / 10)
            for who, server in list(self._servers.items()):
                if server.closed.is_set():
                    del self._servers[who]
                elif not server.users and anyio.current_time() - server.idle_since > IDLE:
                    server.retire()


def _write_down(mark: Path) -> None:
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark.touch(mode=0o600)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
