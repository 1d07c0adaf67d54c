"""Looks now and then at the output of tasks that someone may have to react to: watched patterns, prompts left waiting.

Only tasks with a pattern or an open stdin are looked at, once a second; all others cost nothing while they run.
"""

import logging

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import Task, is_prompt, stalled_notice, watch_notice
from outrider.core.text import clip
from outrider.engine.task_services import TaskServices

log = logging.getLogger("outrider.keeper")
INTERVAL = 1.0
QUIET_SECONDS = 3.0
"""Seconds of silence after which a question at the end of the output counts as a prompt left waiting."""
NOTICE_INTERVAL = 10_000
"""Milliseconds between two notices of one watch pattern; what matches meanwhile is told together."""
MOST_NOTICES = 20
MOST_LINES = 10
_READ_BYTES = 256 * 1024


class _WatchedTask:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.pattern = task.spec.watch
        self.matches: list[str] = []
        self.left_out = 0
        self.last_notice = 0
        self.offset = -1
        """How far the output was read; what matched since the last notice is remembered by that notice only."""
        self.is_stalled = task.state == "stalled"


class OutputWatcher:
    def __init__(self, services: TaskServices) -> None:
        self._services = services
        self._tasks: dict[str, _WatchedTask] = {}
        self._has_tasks = anyio.Event()

    def add(self, task: Task) -> None:
        if task.spec.watch or task.spec.keeps_stdin_open:
            self._tasks[task.id] = _WatchedTask(task)
            self._has_tasks.set()

    def drop(self, task: Task) -> None:
        self._tasks.pop(task.id, None)

    async def run(self) -> None:
        """Look once a second while there is something to look at, until cancelled."""
        while True:
            if not self._tasks:
                self._has_tasks = anyio.Event()
                await self._has_tasks.wait()
            for seen in tuple(self._tasks.values()):
                try:
                    await self._check_output(seen)
                except (Unavailable, Refused, OSError) as error:
                    log.warning("a task could not be looked at: %s", error, extra={"task": seen.task.id})
            await anyio.sleep(INTERVAL)

    async def _check_output(self, seen: _WatchedTask) -> None:
        if seen.pattern and seen.task.notices < MOST_NOTICES:
            await self._check_pattern(seen)
        if seen.task.spec.keeps_stdin_open and not seen.is_stalled:
            await self._check_prompt(seen)

    async def _check_pattern(self, seen: _WatchedTask) -> None:
        task = seen.task
        if seen.offset < 0:
            seen.offset = self._services.commands.load_number(task, "watched")
        fresh = await anyio.to_thread.run_sync(self._services.commands.read, task, seen.offset, _READ_BYTES)
        # A line that is longer than all that is read at once is taken in parts.
        whole = fresh if len(fresh) == _READ_BYTES and b"\n" not in fresh else fresh[: fresh.rfind(b"\n") + 1]
        seen.offset += len(whole)
        lines = self._services.redact(whole.decode("utf-8", "replace")).splitlines()
        numbers = await self._services.match_lines(seen.pattern, lines) if lines else ()
        if numbers is None:
            seen.pattern = ""
            slow = f"[Task {task.id} is not watched any more: finding {clip(task.spec.watch, 80)} takes too long]"
            await self._notify(seen, slow, "slow")
            return
        room = MOST_LINES - len(seen.matches)
        seen.matches += [lines[number] for number in numbers[:room]]
        seen.left_out += len(numbers[room:])
        if seen.matches and self._services.now() - seen.last_notice >= NOTICE_INTERVAL:
            last = task.notices + 1 == MOST_NOTICES
            notice = watch_notice(task, seen.matches, seen.left_out)
            if last:
                notice += f"\n[This pattern was told {MOST_NOTICES} times and is not watched any more.]"
            await self._notify(seen, notice, str(seen.offset))
            seen.matches, seen.left_out, seen.last_notice = [], 0, self._services.now()
        if whole and not seen.matches:
            self._services.commands.save_number(task, "watched", seen.offset)

    async def _notify(self, seen: _WatchedTask, notice: str, key: str) -> None:
        task = seen.task
        seen.task = await self._services.store.update_task_and_notify(
            task.id, task.state, notice, f"task/{task.id}/watch/{key}"
        )
        self._services.wake(task.session)

    async def _check_prompt(self, seen: _WatchedTask) -> None:
        task = seen.task
        if self._services.commands.idle_seconds(task) < QUIET_SECONDS:
            return
        tail = await anyio.to_thread.run_sync(self._services.commands.read, task, -1_000, 1_000)
        text = self._services.redact(tail.decode("utf-8", "replace"))
        if is_prompt(text):
            seen.is_stalled = True
            seen.task = await self._services.store.update_task_and_notify(
                task.id, "stalled", stalled_notice(task, text), f"task/{task.id}/stalled"
            )
            self._services.wake(task.session)
