"""Where commands that look after tasks and questions stand: in the home if it is free, beside its owner if it is not.

Nothing is carried from here: ends of commands are written down, their sessions are not woken.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import anyio

from outrider.app.agent import OWNER, Agent, Home
from outrider.app.compose import only
from outrider.app.tasks import ChildSessions, open_commands
from outrider.cli.plain import notice
from outrider.config.load import Config
from outrider.config.redact import redactor
from outrider.core.approve import Grant
from outrider.core.errors import HomeBusy, Refused
from outrider.core.events import Entry, Reply
from outrider.core.ports import Commands, Runtime, Session
from outrider.core.tasks import Task
from outrider.engine.door import Door
from outrider.engine.follow import Hub
from outrider.engine.keeper import Keeper
from outrider.engine.keeping import Keeping
from outrider.engine.worker import Limits, Worker
from outrider.store.open import open_store
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
        return True
    return False


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
    wait = 0.0 if is_held(config.home) else 2.0
    limits, redact = config.limits, redactor(config).redact
    async with open_store(config.home, label=label, wait=wait) as store:
        for text in (*config.warnings, *store.notices):
            notice(text)
        hub, commands = Hub(store), open_commands(config)
        worker = Worker(store, hub, _no_runtime, Limits())  # never run: nothing it is woken for is begun
        door = Door(store, worker.wake, longest=limits.input, queue=limits.queue, redact=redact)
        children = ChildSessions(store, door, worker)
        keeper = Keeper(Keeping(store, commands, children, worker.wake, _now, redact), most=config.shell.tasks)
        home = Home(config, store, store, store.blobs, commands, door, store.notices)
        try:
            async with anyio.create_task_group() as group:
                await group.start(keeper.run)
                desk = Desk(store, commands, Agent(home, hub, worker, keeper))
                await desk.settle()
                yield desk
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise only(several) from several


def _no_runtime(name: str) -> Runtime:
    raise AssertionError("no turn is carried here")


def _now() -> int:
    return time.time_ns() // 1_000_000
