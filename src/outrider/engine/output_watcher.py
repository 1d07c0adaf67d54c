"""The output watcher: looks for watched patterns and for prompts that wait for input in the output of tasks.

Only tasks with a pattern or an open stdin are checked, once a second; all others cost nothing while they run.
"""

import logging

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import Task, TaskNotice, TaskState, is_prompt, stalled_notice, unwatched_notice, watch_notice
from outrider.engine.task_services import TaskServices

log = logging.getLogger("outrider.tasks")
INTERVAL = 1.0
QUIET_SECONDS = 3.0
"""Seconds without output after which a question at its end counts as a prompt that waits for input."""
NOTICE_INTERVAL = 10_000
"""Milliseconds between two notices of one pattern; the matches in between are reported together."""
MOST_NOTICES = 20
MOST_LINES = 10
_READ_BYTES = 256 * 1024


class OutputWatcher:
    def __init__(self, services: TaskServices) -> None:
        self._services = services
        self._tasks: dict[str, _WatchedTask] = {}
        self._has_tasks = anyio.Event()

    def add(self, task: Task) -> None:
        if task.spec.watch or task.spec.keeps_stdin_open:
            self._tasks[task.id] = _WatchedTask(self._services, task)
            self._has_tasks.set()

    def drop(self, task: Task) -> None:
        self._tasks.pop(task.id, None)

    async def run(self) -> None:
        """Check once a second while there are tasks to check, until cancelled."""
        while True:
            if not self._tasks:
                self._has_tasks = anyio.Event()
                await self._has_tasks.wait()
            for id, watched in tuple(self._tasks.items()):
                try:
                    await watched.check()
                except (Unavailable, Refused, OSError) as error:
                    log.warning("the output of a task could not be checked: %s", error, extra={"task": id})
            await anyio.sleep(INTERVAL)


class _WatchedTask:
    def __init__(self, services: TaskServices, task: Task) -> None:
        self._services = services
        self._task = task
        self._pattern = task.spec.watch
        self._matches: list[str] = []
        self._left_out = 0
        self._last_notice = 0
        self._offset = -1
        """How far the output was read. It is saved only when all matches up to there are in a notice."""
        self._is_stalled = task.state == "stalled"

    async def check(self) -> None:
        if self._pattern and self._task.notices < MOST_NOTICES:
            await self._check_pattern()
        if self._task.spec.keeps_stdin_open and not self._is_stalled:
            await self._check_prompt()

    async def _check_pattern(self) -> None:
        task, commands = self._task, self._services.commands
        if self._offset < 0:
            self._offset = commands.load_number(task, "watched")
        content = await anyio.to_thread.run_sync(commands.read, task, self._offset, _READ_BYTES)
        # A line that is longer than one read is matched in parts.
        is_part = len(content) == _READ_BYTES and b"\n" not in content
        whole = content if is_part else content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = self._services.redact(whole.decode("utf-8", "replace")).splitlines()
        numbers = await self._services.match_lines(self._pattern, lines) if lines else ()
        if numbers is None:
            self._pattern = ""
            await self._notify(unwatched_notice(task), "slow")
            return
        room = MOST_LINES - len(self._matches)
        self._matches += [lines[number] for number in numbers[:room]]
        self._left_out += len(numbers[room:])
        if self._matches and self._services.now() - self._last_notice >= NOTICE_INTERVAL:
            is_last = task.notices + 1 == MOST_NOTICES
            await self._notify(watch_notice(task, self._matches, self._left_out, is_last=is_last), str(self._offset))
            self._matches, self._left_out, self._last_notice = [], 0, self._services.now()
        if whole and not self._matches:
            commands.save_number(task, "watched", self._offset)

    async def _check_prompt(self) -> None:
        task = self._task
        if self._services.commands.idle_seconds(task) < QUIET_SECONDS:
            return
        tail = await anyio.to_thread.run_sync(self._services.commands.read, task, -1_000, 1_000)
        text = self._services.redact(tail.decode("utf-8", "replace"))
        if is_prompt(text):
            self._is_stalled = True
            await self._update(task, "stalled", stalled_notice(task, text), f"task/{task.id}/stalled")

    async def _notify(self, notice: TaskNotice, key: str) -> None:
        await self._update(self._task, self._task.state, notice, f"task/{self._task.id}/watch/{key}")

    async def _update(self, task: Task, state: TaskState, notice: TaskNotice, key: str) -> None:
        self._task = await self._services.store.update_task_and_notify(task.id, state, notice, key)
        self._services.wake(task.session)
