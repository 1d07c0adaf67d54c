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
from outrider.core.ports import Session
from outrider.runtimes.acp.process import Agent
from outrider.runtimes.jsonrpc import PeerTraits, Program, end_marked, open_child, open_peer
from outrider.runtimes.jsonrpc.group import open_group

IDLE = 600.0
"""Seconds an agent is kept while nobody needs it."""
SPARE = 4
"""Agents that are kept while nobody needs them, at most."""
_log = logging.getLogger("outrider.acp")


class Terms(Struct, frozen=True):
    """How agents are started."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    home: Path
    patience: float
    idle: float = IDLE


class _Held:
    """An agent and who needs it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.users = 0
        self.changed = anyio.Event()
        self.gone = anyio.Event()

    def count(self, change: int) -> None:
        self.users += change
        self.changed.set()
        self.changed = anyio.Event()


class Pool:
    """Agents by person and folder."""

    def __init__(self, terms: Terms, group: TaskGroup) -> None:
        self._terms = terms
        self._group = group
        self._held: dict[tuple[str, str], _Held] = {}
        self._opening: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def lent(self, session: Session) -> AsyncGenerator[Agent]:
        """The agent for this session, started now if there is none. Raises Refused, Unavailable or RpcError."""
        key = (session.person, session.workspace)
        lock = self._opening.setdefault(key, anyio.Lock())
        async with lock:
            held = self._held.get(key)
            if held and held.agent.retired.is_set():
                await held.gone.wait()
                held = None
            if held is None:
                self._make_room()
                held = await self._group.start(self._hold, key)
            held.count(1)
        try:
            yield held.agent
        finally:
            held.count(-1)

    def _make_room(self) -> None:
        idle = [held.agent for held in self._held.values() if not held.users]
        for agent in idle[: max(0, len(idle) - SPARE + 1)]:
            agent.retired.set()

    async def _hold(self, key: tuple[str, str], *, task_status: TaskStatus[_Held]) -> None:
        terms, (person, folder) = self._terms, key
        mark = mark_of(terms.home, person, folder)
        # What an earlier life of ours left behind must not write to the same sessions.
        await end_marked(mark)
        program = Program(terms.argv, Path(folder), terms.environ, mark)
        try:
            async with (
                open_child(program) as child,
                open_peer(child, PeerTraits("2.0", terms.patience)) as peer,
                open_group() as group,
            ):
                agent = Agent(child, peer, terms.patience)
                agent.group = group
                group.start_soon(agent.route)
                await agent.initialize()
                held = self._held[key] = _Held(agent)
                try:
                    task_status.started(held)
                    await self._needed(held)
                finally:
                    agent.retired.set()
        except Unavailable as error:
            if key not in self._held:
                raise
            _log.warning("%s", error)
        finally:
            if held := self._held.pop(key, None):
                held.gone.set()

    async def _needed(self, held: _Held) -> None:
        """Until it is retired, or nobody has needed it for a while."""
        async with open_group() as group:
            over = anyio.CancelScope()

            async def until_retired() -> None:
                await held.agent.retired.wait()
                over.cancel()

            group.start_soon(until_retired)
            with over:
                while True:
                    with anyio.move_on_after(math.inf if held.users else self._terms.idle) as idle:
                        await held.changed.wait()
                    if idle.cancelled_caught and not held.users:
                        return


def mark_of(home: Path, person: str, folder: str) -> str:
    """The same in every life of this home, so that what was left behind is found."""
    return blake2b("\0".join(("acp", str(home), person, folder)).encode(), digest_size=16).hexdigest()
