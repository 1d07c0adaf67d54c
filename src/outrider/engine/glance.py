"""Looks now and then at the output of tasks that someone may have to react to: watched patterns, prompts left waiting.

Only tasks with a pattern or an open stdin are looked at, once a second; all others cost nothing while they run.
"""

import logging

import anyio
import anyio.to_thread

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import Task, clip, is_prompt, stalled_notice, watch_notice
from outrider.engine.keeping import Keeping

log = logging.getLogger("outrider.keeper")

EVERY = 1.0
QUIET = 3.0
"""Seconds of silence after which a question at the end of the output counts as a prompt left waiting."""
PAUSE = 10_000
"""Milliseconds between two notices of one watch pattern; what matches meanwhile is told together."""
MOST_NOTICES = 20
MOST_LINES = 10
_READ = 256 * 1024


class _Seen:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.pattern = task.wish.watch
        self.matches: list[str] = []
        self.left_out = 0
        self.last = 0
        self.read = -1
        """How far the output was read; what matched since the last notice is remembered by that notice only."""
        self.is_stalled = task.state == "stalled"


class Glance:
    def __init__(self, keeping: Keeping) -> None:
        self._on = keeping
        self._tasks: dict[str, _Seen] = {}
        self._any = anyio.Event()

    def add(self, task: Task) -> None:
        if task.wish.watch or task.wish.is_open:
            self._tasks[task.id] = _Seen(task)
            self._any.set()

    def drop(self, task: Task) -> None:
        self._tasks.pop(task.id, None)

    async def run(self) -> None:
        """Look once a second while there is something to look at, until cancelled."""
        while True:
            if not self._tasks:
                self._any = anyio.Event()
                await self._any.wait()
            for seen in tuple(self._tasks.values()):
                try:
                    await self._look(seen)
                except (Unavailable, Refused, OSError) as error:
                    log.warning("a task could not be looked at: %s", error, extra={"task": seen.task.id})
            await anyio.sleep(EVERY)

    async def _look(self, seen: _Seen) -> None:
        if seen.pattern and seen.task.notices < MOST_NOTICES:
            await self._watch(seen)
        if seen.task.wish.is_open and not seen.is_stalled:
            await self._check_prompt(seen)

    async def _watch(self, seen: _Seen) -> None:
        task = seen.task
        if seen.read < 0:
            seen.read = self._on.commands.recall(task, "watched")
        fresh = await anyio.to_thread.run_sync(self._on.commands.read, task, seen.read, _READ)
        # A line that is longer than all that is read at once is taken in parts.
        whole = fresh if len(fresh) == _READ and b"\n" not in fresh else fresh[: fresh.rfind(b"\n") + 1]
        seen.read += len(whole)
        lines = self._on.redact(whole.decode("utf-8", "replace")).splitlines()
        numbers = await self._on.matching(seen.pattern, lines) if lines else ()
        if numbers is None:
            seen.pattern = ""
            slow = f"[Task {task.id} is not watched any more: finding {clip(task.wish.watch, 80)} takes too long]"
            await self._tell(seen, slow, "slow")
            return
        room = MOST_LINES - len(seen.matches)
        seen.matches += [lines[number] for number in numbers[:room]]
        seen.left_out += len(numbers[room:])
        if seen.matches and self._on.now() - seen.last >= PAUSE:
            last = task.notices + 1 == MOST_NOTICES
            notice = watch_notice(task, seen.matches, seen.left_out)
            if last:
                notice += f"\n[This pattern was told {MOST_NOTICES} times and is not watched any more.]"
            await self._tell(seen, notice, str(seen.read))
            seen.matches, seen.left_out, seen.last = [], 0, self._on.now()
        if whole and not seen.matches:
            self._on.commands.remember(task, "watched", seen.read)

    async def _tell(self, seen: _Seen, notice: str, key: str) -> None:
        task = seen.task
        seen.task = await self._on.store.note_task(task.id, task.state, notice, f"task/{task.id}/watch/{key}")
        self._on.wake(task.session)

    async def _check_prompt(self, seen: _Seen) -> None:
        task = seen.task
        if self._on.commands.quiet(task) < QUIET:
            return
        tail = await anyio.to_thread.run_sync(self._on.commands.read, task, -1_000, 1_000)
        text = self._on.redact(tail.decode("utf-8", "replace"))
        if is_prompt(text):
            seen.is_stalled = True
            seen.task = await self._on.store.note_task(
                task.id, "stalled", stalled_notice(task, text), f"task/{task.id}/stalled"
            )
            self._on.wake(task.session)
