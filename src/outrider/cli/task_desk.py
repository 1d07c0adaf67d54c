"""Where commands that look after tasks and questions stand: in the home if it is free, beside its owner if it is not.

Nothing is carried from here: ends of commands are written down, their sessions are not woken.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import anyio

from outrider.app.agent import OWNER, Agent
from outrider.app.compose import Presence
from outrider.app.tasks import open_commands
from outrider.cli.opening import open_here
from outrider.config.load import Config
from outrider.core.approve import Grant
from outrider.core.errors import HomeBusy, Refused
from outrider.core.events import Entry, Reply
from outrider.core.ports import Commands, Session
from outrider.core.tasks import Task
from outrider.store.reader import is_held, open_reader

_SETTLING = 10.0
"""Seconds an end that the disk knows of may take to be written down."""
_LOOK = 0.1


class Reads(Protocol):
    """What both the store and a reader beside it can tell."""

    async def find(self, person: str, session: str) -> Session | None: ...
    async def read(self, session: str, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...
    async def waiting(self) -> Sequence[str]: ...
    async def find_task(self, person: str, task: str) -> Task | None: ...
    async def list_tasks(
        self, person: str, session: str = "", *, open_only: bool = False, limit: int = 100
    ) -> Sequence[Task]: ...
    async def grants(self, person: str) -> Sequence[Grant]: ...


class Desk:
    """The tasks of a home, whoever owns it."""

    def __init__(self, reads: Reads, commands: Commands, agent: Agent | None) -> None:
        self.reads = reads
        self.commands = commands
        self.agent = agent
        """None when another process owns the home."""

    async def session(self, name: str) -> Session:
        """Raises Refused when there is none of this name or id."""
        if name.isprintable() and (found := await self.reads.find(OWNER, name)):
            return found
        raise Refused(f"no session is called {name!r}; `outrider sessions list` shows them")

    async def find(self, name: str) -> Task:
        """Raises Refused when there is no task of this id."""
        if found := await self.reads.find_task(OWNER, name):
            return found
        raise Refused(f"there is no task {name!r}; `outrider tasks list` shows them")

    async def said(self, task: Task) -> str:
        """The last words of the child session that is this task's body."""
        replies = [entry.body for entry in await self.reads.read(task.child) if isinstance(entry.body, Reply)]
        return next((reply.text for reply in reversed(replies) if reply.text), "")

    async def kill(self, task: Task) -> Task:
        """End it and all it started; they are gone when this returns, and that is written down."""
        if self.agent:
            return await self.agent.kill_task(task)
        if not task.is_open:
            return task
        if task.wish.kind == "session":
            raise HomeBusy(f"task {task.id} is a session of the process that uses this home; stop it there")
        await self.commands.kill(task)
        return await self.settled(task)

    async def settled(self, task: Task) -> Task:
        """This task as it is once an end that the disk knows of is written down."""
        task = await self.find(task.id)
        if not task.is_open or not await has_ended(self.commands, task):
            return task
        if self.agent:
            return await self.agent.wait_task(task, _SETTLING)
        with anyio.move_on_after(_SETTLING):  # its owner is about to see it too
            while task.is_open:
                await anyio.sleep(_LOOK)
                task = await self.find(task.id)
        return task

    async def settle(self) -> None:
        """Have all ends written down that came while nobody owned the home."""
        for task in await self.reads.list_tasks(OWNER, open_only=True, limit=10_000):
            if task.wish.kind == "command":
                await self.settled(task)


async def has_ended(commands: Commands, task: Task, seconds: float = 0.0) -> bool:
    """Whether the disk says that this command has ended, waiting at most so long for it."""
    if task.mark is None:
        await anyio.sleep(seconds)
        return False
    with anyio.move_on_after(seconds):
        await commands.ended(task)
    return commands.is_over(task)


@asynccontextmanager
async def open_desk(config: Config, label: str) -> AsyncGenerator[Desk]:
    """In the home where it is free; where it is not, beside its owner, at once."""
    async with AsyncExitStack() as stack:
        try:
            desk = await stack.enter_async_context(_open_in(config, label))
        except HomeBusy:
            reads = await stack.enter_async_context(open_reader(config.home))
            desk = Desk(reads, open_commands(config), None)
        yield desk


@asynccontextmanager
async def open_resting(config: Config, label: str) -> AsyncGenerator[Agent]:
    """An agent that carries no turns, for what only has to be written down. Raises HomeBusy."""
    async with _open_in(config, label) as desk:
        if desk.agent is None:
            raise AssertionError("a desk in the home has its agent")
        yield desk.agent


@asynccontextmanager
async def _open_in(config: Config, label: str) -> AsyncGenerator[Desk]:
    presence = Presence(label, "none", 0.0 if is_held(config.home) else 2.0)
    async with open_here(config, presence) as agent:
        desk = Desk(agent.home.store, agent.commands, agent)
        await desk.settle()
        yield desk
