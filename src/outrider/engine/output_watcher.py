"""The output watcher: looks for watched patterns and for prompts that wait for input in the output of tasks.

Only tasks with a pattern or an open stdin are checked, once a second; all others cost nothing while they run.

Each match is in exactly one notice: the journal has how far the output was searched, and the last matches are recorded
together with the end of the task. A prompt is reported once; when the task writes more, or something is written to its
stdin, it is running again.
"""

import logging

import anyio
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import (
    KeyedNotice,
    OutputMatches,
    Task,
    TaskNotice,
    TaskState,
    WatchProgress,
    is_prompt,
    stall_key,
    stalled_notice,
    unwatched_notice,
    watch_key,
    watch_notice,
    watch_progress,
)
from outrider.engine.task_services import TaskServices
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.tasks")
INTERVAL = 1.0
QUIET_SECONDS = 3.0
"""Seconds without output after which a question at its end counts as a prompt that waits for input."""
NOTICE_INTERVAL = 10_000
"""Milliseconds between two notices of one pattern; the matches in between are reported together."""
MOST_NOTICES = 20
"""The most notices of one pattern, and of prompts to which nothing was written."""
MOST_LINES = 10
FINAL_BYTES = 64 * 1024 * 1024
"""The most output that is searched after a task has ended."""
FINAL_SECONDS = 5.0
"""The longest that the end of a task waits for this search."""
_READ_BYTES = 1024 * 1024


class OutputWatcher:
    def __init__(self, services: TaskServices) -> None:
        self._services = services
        self._tasks: dict[str, _WatchedTask] = {}
        self._has_tasks = anyio.Event()

    def add(self, task: Task) -> None:
        if task.id not in self._tasks and (task.spec.watch or task.spec.keeps_stdin_open):
            self._tasks[task.id] = _WatchedTask(self._services, task)
            self._has_tasks.set()

    def update(self, task: Task) -> None:
        """The task has changed in the store."""
        if watched := self._tasks.get(task.id):
            watched.update(task)

    def drop(self, task: Task) -> None:
        self._tasks.pop(task.id, None)

    async def refresh(self, task: Task) -> Task:
        """Check now whether this task waits for input; the task as it is then."""
        if not task.spec.keeps_stdin_open or not task.is_open:
            return task
        watched = self._tasks.get(task.id) or _WatchedTask(self._services, task)
        return await watched.check_prompt()

    async def finish(self, task: Task) -> KeyedNotice | None:
        """Search the rest of the output of a task that has ended. The notice is to be recorded with its end."""
        watched = self._tasks.get(task.id)
        return await watched.finish() if watched else None

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


class _OutputPart(Struct, frozen=True):
    """Whole lines of an output."""

    lines: list[str]
    starts: list[int]
    """The byte of the output where each line begins."""
    end: int
    seen: int
    """The byte after the incomplete line that follows, if there is one."""


class _WatchedTask:
    def __init__(self, services: TaskServices, task: Task) -> None:
        self._services = services
        self._task = task
        self._revision = 0
        self._lock = anyio.Lock()
        """Held while the output is searched."""
        self._progress: WatchProgress | None = None
        self._is_watching = bool(task.spec.watch)
        self._is_finished = False
        self._matches = OutputMatches()
        self._last_notice = 0
        self._offset = 0
        """How far the output was searched. It is saved only when all matches up to there are in a notice."""
        self._seen = 0
        self._prompt = ""
        """The end of the output if it is a prompt, when there were `_prompt_size` bytes of it."""
        self._prompt_size = -1
        self._stalled_size = -1
        """The size of the output at the last stall that was recorded."""
        self._last_input: float = 0.0
        self._unanswered = 0
        """Notices of prompts since something was written to its stdin."""

    def update(self, task: Task) -> None:
        self._task = task
        self._revision += 1

    async def check(self) -> None:
        async with self._lock:
            # Before that, the call that waits for the task returns its output.
            if self._is_watching and not self._is_finished and not self._task.spec.is_awaited:
                await self._check_pattern()
        if self._task.spec.keeps_stdin_open:
            await self.check_prompt()

    async def _check_pattern(self) -> None:
        await self._load_progress()
        if not self._is_watching:
            return
        has_more = self._services.commands.size(self._task) > self._seen
        if has_more and not await self._search(is_final=False):
            notice = unwatched_notice(self._task, self._matches, self._offset)
            await self._notify(notice, watch_key(self._task.id, None))
            self._matches, self._is_watching = OutputMatches(), False
        progress, now = self._progress or WatchProgress(), self._services.now()
        if self._matches.lines and now - self._last_notice >= NOTICE_INTERVAL:
            is_last = progress.notices + 1 == MOST_NOTICES
            notice = watch_notice(self._task, self._matches, self._offset, is_last=is_last)
            await self._notify(notice, watch_key(self._task.id, self._offset))
            self._progress = WatchProgress(progress.notices + 1, self._offset)
            self._matches, self._last_notice, self._is_watching = OutputMatches(), now, not is_last
            self._save_offset()

    async def _load_progress(self) -> None:
        """What an earlier process has done: the journal has the notices, a file how far it searched without a match."""
        if self._progress is None:
            task, services = self._task, self._services
            progress = watch_progress(task.id, await services.store.notice_keys(task.session, task.id))
            self._is_watching = progress.notices < MOST_NOTICES and not progress.is_given_up
            self._offset = max(progress.searched, services.commands.load_number(task, "watched"))
            self._progress = progress

    async def _search(self, *, is_final: bool) -> bool:
        """Search the next part of the output; False when this takes too long."""
        part = await anyio.to_thread.run_sync(self._read_part, is_final)
        pattern = self._task.spec.watch
        numbers = await self._services.match_lines(pattern, part.lines) if part.lines else ()
        if numbers is None:
            return False
        found = [(part.starts[number], self._services.redact(part.lines[number])) for number in numbers]
        self._matches = self._matches.extended(found, MOST_LINES)
        has_progress, self._offset, self._seen = part.end > self._offset, part.end, part.seen
        if has_progress and not self._matches.lines and not is_final:
            self._save_offset()
        return True

    def _read_part(self, is_final: bool) -> _OutputPart:
        """The next lines. The last one may be incomplete while the task runs, and a very long one is read in parts."""
        start = self._offset
        content = self._services.commands.read(self._task, start, _READ_BYTES)
        end = content.rfind(b"\n") + 1
        is_full = len(content) == _READ_BYTES
        if (is_full and not end) or (is_final and not is_full):
            end = len(content)
        lines = content[:end].splitlines(keepends=True)
        starts = [start]
        for line in lines:
            starts.append(starts[-1] + len(line))
        texts = [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in lines]
        return _OutputPart(texts, starts, start + end, start + len(content))

    def _save_offset(self) -> None:
        self._services.commands.save_number(self._task, "watched", self._offset)

    async def finish(self) -> KeyedNotice | None:
        """The notice of all matches that are not in a notice yet; None when there are none."""
        with anyio.move_on_after(FINAL_SECONDS):
            async with self._lock:
                if self._is_watching:
                    await self._load_progress()
                    await self._search_rest()
        self._is_finished = True
        task, matches = self._task, self._matches
        if not self._is_watching:
            return None
        if self._offset < self._services.commands.size(task):
            return KeyedNotice(unwatched_notice(task, matches, self._offset), watch_key(task.id, None))
        if not matches.lines:
            return None
        return KeyedNotice(watch_notice(task, matches, self._offset), watch_key(task.id, self._offset))

    async def _search_rest(self) -> None:
        first, before = self._offset, -1
        while self._is_watching and before < self._offset < first + FINAL_BYTES:
            before = self._offset
            if not await self._search(is_final=True):
                return

    async def check_prompt(self) -> Task:
        """Record whether it waits at a prompt, and report that once for each prompt; the task as it is then."""
        task, commands = self._task, self._services.commands
        size = commands.size(task)
        prompt = await self._waiting_prompt(size)
        if prompt and task.state == "stalled" and self._stalled_size < 0 and await self._was_reported(size):
            self._stalled_size = size
        if prompt and (task.state != "stalled" or size != self._stalled_size):
            is_silent, is_last = self._unanswered >= MOST_NOTICES, self._unanswered + 1 == MOST_NOTICES
            notice = None if is_silent else stalled_notice(task, prompt, is_last=is_last)
            updated = await self._update("stalled", notice, stall_key(task.id, size))
            self._stalled_size = size
            self._unanswered += updated.notices > task.notices
        elif not prompt and task.state == "stalled":
            await self._update("running", None, "")
        return self._task

    async def _waiting_prompt(self, size: int) -> str:
        """The prompt at which it has been waiting for a while; empty when it is not waiting."""
        commands, task = self._services.commands, self._task
        input_time = commands.input_time(task)
        if input_time != self._last_input:
            self._last_input, self._unanswered = input_time, 0
        if commands.idle_seconds(task) < QUIET_SECONDS or input_time > commands.output_time(task):
            return ""
        if size != self._prompt_size:
            tail = await anyio.to_thread.run_sync(commands.read, task, -1_000, 1_000)
            text = self._services.redact(tail.decode("utf-8", "replace"))
            self._prompt, self._prompt_size = text if is_prompt(text) else "", size
        return self._prompt

    async def _was_reported(self, size: int) -> bool:
        """Whether an earlier process has reported this prompt. Outrider 0.1 reported one prompt of each task."""
        keys = await self._services.store.notice_keys(self._task.session, self._task.id)
        return stall_key(self._task.id, size) in keys or stall_key(self._task.id, None) in keys

    async def _notify(self, notice: TaskNotice, key: str) -> None:
        await self._update(None, notice, key)

    async def _update(self, state: TaskState | None, notice: TaskNotice | None, key: str) -> Task:
        failpoint("task_notice_not_recorded")
        revision = self._revision
        task = await self._services.store.update_task_and_notify(self._task.id, state, notice, key)
        failpoint("task_notice_recorded")
        if self._revision == revision:  # else it may be older than the last change: the next check repeats this
            self._task = task
        if notice:
            self._services.wake(task.session)
        return task
