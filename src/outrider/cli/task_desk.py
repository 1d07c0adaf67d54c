"""What commands that look after tasks have in common.

Nothing is carried from here: ends of commands are written down, their sessions are not woken.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from outrider.app.acting import ReadOnlyApi
from outrider.channels.link.joined import HomeClient
from outrider.cli.beside import open_read_only
from outrider.config.load import Config
from outrider.core.events import Reply
from outrider.core.ports import Commands
from outrider.core.tasks import Task

_END_TIMEOUT = 10.0
"""Seconds an end that the disk knows of may take to be written down."""


@asynccontextmanager
async def open_tasks(config: Config, label: str) -> AsyncGenerator[ReadOnlyApi]:
    """The tasks of a home, whoever owns it. Ends that came while nobody owned it are written down."""
    async with open_read_only(config, label) as desk:
        if owns_home(desk):
            for task in await desk.tasks(open_only=True, limit=10_000):
                if task.spec.kind == "command":
                    await reconcile_task(desk, task)
        yield desk


def owns_home(desk: ReadOnlyApi) -> bool:
    """Whether no other process owns the home, so that nothing goes on there."""
    return isinstance(desk, HomeClient) and not desk.is_client


async def last_reply_text(desk: ReadOnlyApi, task: Task) -> str:
    """The last words of the child session that is this task's body."""
    journal = await desk.journal(await desk.find(task.child)) if task.child else ()
    replies = [entry.body for entry in journal if isinstance(entry.body, Reply)]
    return next((reply.text for reply in reversed(replies) if reply.text), "")


async def reconcile_task(desk: ReadOnlyApi, task: Task) -> Task:
    """This task as it is once an end that the disk knows of is written down."""
    task = await desk.find_task(task.id)
    if not task.is_open or not await command_ended(desk.commands, task):
        return task
    return await desk.wait_task(task, _END_TIMEOUT)


async def command_ended(commands: Commands, task: Task, seconds: float = 0.0) -> bool:
    """Whether the disk says that this command has ended, waiting at most so long for it."""
    if task.process is None:
        await anyio.sleep(seconds)
        return False
    with anyio.move_on_after(seconds):
        await commands.wait_for_end(task)
    return commands.has_ended(task)
