"""The usage watcher: stops running commands that use more processor time or disk space than they may."""

import logging
from collections.abc import Awaitable, Callable

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import Task
from outrider.engine.task_services import TaskServices

log = logging.getLogger("outrider.tasks")
_FIRST_CHECK = 1.0
"""Seconds after the first of some commands has started: most have ended by then and cost nothing."""


class UsageWatcher:
    """Checks all running commands together, as rarely as their limits permit."""

    def __init__(self, services: TaskServices, kill: Callable[[Task, str], Awaitable[object]]) -> None:
        self._services = services
        self._kill = kill
        self._tasks: dict[str, Task] = {}
        self._has_tasks = anyio.Event()

    def add(self, task: Task) -> None:
        self._tasks[task.id] = task
        self._has_tasks.set()

    def drop(self, task: Task) -> None:
        self._tasks.pop(task.id, None)

    async def run(self) -> None:
        """Check while there are commands, until cancelled."""
        seconds = _FIRST_CHECK
        while True:
            if not self._tasks:
                self._has_tasks = anyio.Event()
                await self._has_tasks.wait()
                seconds = _FIRST_CHECK
            await anyio.sleep(seconds)
            seconds = await self._check()

    async def _check(self) -> float:
        try:
            check = await anyio.to_thread.run_sync(self._services.commands.check_usage, tuple(self._tasks.values()))
            for id, reason in check.exceeded.items():
                if task := self._tasks.get(id):
                    await self._kill(task, reason)
        except (Unavailable, Refused, OSError) as error:
            log.warning("what the tasks use could not be checked: %s", error)
            return _FIRST_CHECK
        return check.seconds
