"""The agents that run now: one for each person and folder, kept between turns, ended when idle and with the home."""

import logging
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from outrider.core.errors import Unavailable
from outrider.core.store_port import Session
from outrider.runtimes.acp.connection import AcpAgent
from outrider.runtimes.jsonrpc.connection import ConnectionOptions, open_connection
from outrider.runtimes.jsonrpc.process import Program, open_child
from outrider.system.processes import terminate_marked
from outrider.system.tasks import background_group

IDLE_TIMEOUT = 600.0
"""Seconds an agent is kept while nobody needs it."""
MAX_IDLE = 4
"""Agents that are kept while nobody needs them, at most."""
_log = logging.getLogger("outrider.acp")


class AcpCommand(Struct, frozen=True):
    """How agents are started."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    home: Path
    request_timeout: float
    idle_timeout: float = IDLE_TIMEOUT


class _PooledAgent:
    """An agent and who needs it."""

    def __init__(self, agent: AcpAgent) -> None:
        self.agent = agent
        self.users = 0
        self.changed = anyio.Event()
        self.closed = anyio.Event()

    def count(self, change: int) -> None:
        self.users += change
        self.changed.set()
        self.changed = anyio.Event()


class AcpAgentPool:
    """Agents by person and folder."""

    def __init__(self, command: AcpCommand, group: TaskGroup) -> None:
        self._command = command
        self._group = group
        self._agents: dict[tuple[str, str], _PooledAgent] = {}
        self._start_locks: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, session: Session) -> AsyncGenerator[AcpAgent]:
        """The agent for this session, started now if there is none. Raises Refused, Unavailable or RpcError."""
        key = (session.person, session.workspace)
        lock = self._start_locks.setdefault(key, anyio.Lock())
        async with lock:
            held = self._agents.get(key)
            if held and held.agent.retired.is_set():
                await held.closed.wait()
                held = None
            if held is None:
                self._retire_excess()
                held = await self._group.start(self._run_agent, key)
            held.count(1)
        try:
            yield held.agent
        finally:
            held.count(-1)

    def _retire_excess(self) -> None:
        idle = [held.agent for held in self._agents.values() if not held.users]
        for agent in idle[: max(0, len(idle) - MAX_IDLE + 1)]:
            agent.retired.set()

    async def _run_agent(self, key: tuple[str, str], *, task_status: TaskStatus[_PooledAgent]) -> None:
        terms, (person, folder) = self._command, key
        mark = marker_of(terms.home, person, folder)
        # What an earlier life of ours left behind must not write to the same sessions.
        await terminate_marked(mark)
        program = Program(terms.argv, Path(folder), terms.environ, mark)
        try:
            async with (
                open_child(program) as child,
                open_connection(child, ConnectionOptions("2.0", terms.request_timeout)) as peer,
                background_group() as group,
            ):
                agent = AcpAgent(child, peer, terms.request_timeout)
                agent.group = group
                group.start_soon(agent.route)
                await agent.initialize()
                held = self._agents[key] = _PooledAgent(agent)
                try:
                    task_status.started(held)
                    await self._wait_until_idle(held)
                finally:
                    agent.retired.set()
        except Unavailable as error:
            if key not in self._agents:
                raise
            _log.warning("%s", error)
        finally:
            if held := self._agents.pop(key, None):
                held.closed.set()

    async def _wait_until_idle(self, held: _PooledAgent) -> None:
        """Until it is retired, or nobody has needed it for a while."""
        async with background_group() as group:
            over = anyio.CancelScope()

            async def until_retired() -> None:
                await held.agent.retired.wait()
                over.cancel()

            group.start_soon(until_retired)
            with over:
                while True:
                    with anyio.move_on_after(math.inf if held.users else self._command.idle_timeout) as idle:
                        await held.changed.wait()
                    if idle.cancelled_caught and not held.users:
                        return


def marker_of(home: Path, person: str, folder: str) -> str:
    """The same in every life of this home, so that what was left behind is found."""
    return blake2b("\0".join(("acp", str(home), person, folder)).encode(), digest_size=16).hexdigest()
