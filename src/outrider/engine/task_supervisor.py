"""The task supervisor: starts tasks, waits for their ends without polling, and re-attaches to them after a crash.

Starting and re-attaching are the same code. The end of a task and the notice to its session are one transaction.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import CommandEnd
from outrider.core.store_port import TaskEnd
from outrider.core.tasks import KeyedNotice, Notify, Task, TaskNotice, TaskSpec, TaskState, ended_notice
from outrider.core.text import duration
from outrider.engine.output_watcher import OutputWatcher
from outrider.engine.task_services import TaskServices
from outrider.engine.usage_watcher import UsageWatcher
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.tasks")
_MAX_STARTS = 16
"""Commands that are being started at once."""
_RETRY_SECONDS = 2.0
"""Seconds before an end that could not be recorded is tried again."""
_TAIL_CHARACTERS = 8_000
_PRUNE_EVERY = 200
"""Old output is deleted after this many ends."""


class TaskSupervisor:
    """All tasks of one home."""

    def __init__(self, services: TaskServices, *, max_open: int) -> None:
        self._services = services
        self._max_open = max_open
        self._group: TaskGroup | None = None
        self._start_limiter = anyio.CapacityLimiter(_MAX_STARTS)
        self._ends: dict[str, anyio.Event] = {}
        self._open_counts: Counter[str] = Counter()
        self._ended_count = 0
        self._children: dict[str, anyio.Event] = {}
        self._killed: dict[str, str] = {}
        self._unreported: set[str] = set()
        """Tasks that are being killed, and whose last matches are not reported."""
        self._pending_starts: dict[tuple[str, str], anyio.Event] = {}
        """Calls whose task is being started now, by session and call."""
        self._output_watcher = OutputWatcher(services)
        self._usage_watcher = UsageWatcher(services, self.kill)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch tasks until cancelled. The tasks themselves keep running."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._output_watcher.run)
            group.start_soon(self._usage_watcher.run)
            tasks = await self._services.store.open_tasks()
            await self._prune_output(tasks)
            for task in tasks:
                self._watch(task)
            await self._detach_orphaned_waits(tasks)
            task_status.started()
            await anyio.sleep_forever()

    async def _prune_output(self, alive: Sequence[Task]) -> None:
        await anyio.to_thread.run_sync(self._services.commands.prune, [task.id for task in alive])

    async def start(self, session: str, spec: TaskSpec) -> Task:
        """Start a task, or return the one that this call started before a crash.

        A turn that was stopped starts nothing. A stop during the start does not interrupt it: a task that was created
        is always watched.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        with anyio.CancelScope(shield=True):
            return await self._create_and_start(session, spec)
        raise AssertionError("a shielded scope is never cancelled")

    async def _create_and_start(self, session: str, spec: TaskSpec) -> Task:
        key = (session, spec.call)
        self._pending_starts[key] = anyio.Event()
        try:
            task, is_new = await self._services.store.create_task(session, spec, self._max_open)
            if not is_new:
                return task
            failpoint("task_created")
            if spec.kind == "command":
                return await self._start_command(task)
            self._watch(task)
            return task
        finally:
            self._pending_starts.pop(key).set()

    async def _start_command(self, task: Task) -> Task:
        try:
            process = await anyio.to_thread.run_sync(self._services.commands.start, task, limiter=self._start_limiter)
        except (Refused, Unavailable) as error:
            await self._fail_start(task, str(error))
            raise Refused(str(error)) from error
        failpoint("task_started")
        try:
            task = await self._services.store.mark_task_started(task.id, process)
        except Unavailable as error:  # it runs all the same; the watcher finds it
            log.warning("the start of a task could not be recorded: %s", error, extra={"task": task.id})
        except Refused:  # its session was deleted
            await self._services.commands.kill(replace(task, process=process))
            raise
        if not task.is_open:  # killed while it was being started
            await self._services.commands.kill(replace(task, process=process))
            return task
        self._watch(task)
        return task

    async def _fail_start(self, task: Task, reason: str) -> None:
        """The caller gets the error at once, so there is no notice."""
        if not task.spec.is_awaited:
            with suppress(Unavailable):
                task = await self.detach(task, "never")
        self._watch(task, TaskEnd("failed", None, reason, 0))

    async def wait(self, task: Task, seconds: float) -> Task:
        """Wait for its end, at most this long."""
        if starting := self._pending_starts.get((task.session, task.spec.call)):
            await starting.wait()
        if task.is_open and (end := self._ends.get(task.id)):
            with anyio.move_on_after(seconds):
                await end.wait()
        return await self._reload(task)

    async def detach(self, task: Task, notify: Notify) -> Task:
        """Let it continue in the background; `notify` says whether its end is reported to the session."""
        task = await self._services.store.detach_task(task.id, notify)
        self._output_watcher.update(task)
        return task

    async def refresh(self, task: Task) -> Task:
        """The task as it is now. One that was stalled is running when something was written to its stdin."""
        return await self._output_watcher.refresh(await self._reload(task))

    async def kill(
        self, task: Task, reason: str, *, notify: Notify | None = None, reports_matches: bool = True
    ) -> Task:
        """Kill a task and every process it started. Its end is recorded when this returns.

        `notify` replaces the task's own setting. Matches of its watch pattern that were not reported yet are reported
        with its end, or dropped.
        """
        if starting := self._pending_starts.get((task.session, task.spec.call)):
            await starting.wait()
        task = await self._reload(task)
        if not task.is_open:
            return task
        self._killed[task.id] = reason
        if not reports_matches:
            self._unreported.add(task.id)
        if notify:
            await self.detach(task, notify)
        if task.spec.kind == "session":
            child = task.child or await self._services.children.open(task)
            await self._stop_child(task, child)
            self.child_ended(child)
        elif started := await self._adopt_if_unrecorded(task):
            await self._services.commands.kill(started)
        if end := self._ends.get(task.id):
            await end.wait()
        return await self._reload(task)

    async def _adopt_if_unrecorded(self, task: Task) -> Task | None:
        """The task with its process; None when it never started, which its watcher reports."""
        if task.process:
            return task
        process = await anyio.to_thread.run_sync(self._services.commands.adopt, task)
        return await self._services.store.mark_task_started(task.id, process) if process else None

    async def _stop_child(self, task: Task, child: str) -> None:
        await self._services.children.stop(child)
        await self.kill_awaited(child, task.person, everything=True)

    async def kill_awaited(self, session: str, person: str, *, everything: bool = False) -> int:
        """Kill the tasks that a stopped turn was waiting for, or every task of the session; how many there were."""
        await self._wait_for_starts(session)
        tasks = await self._services.store.list_tasks(person, session, open_only=True, limit=10_000)
        selected = [task for task in tasks if everything or task.spec.is_awaited]
        async with anyio.create_task_group() as group:
            for task in selected:
                # A notice would start another turn.
                kill = partial(self.kill, task, "its turn was stopped", notify="never", reports_matches=False)
                group.start_soon(kill)
        return len(selected)

    async def _wait_for_starts(self, session: str) -> None:
        """Wait for tasks that a turn was starting when it was stopped, so that they are killed too."""
        await anyio.lowlevel.checkpoint()
        for key, starting in tuple(self._pending_starts.items()):
            if key[0] == session:
                await starting.wait()

    async def last_message(self, task: Task) -> str:
        """The last reply in the child session of this task."""
        child = (await self._reload(task)).child
        result = await self._services.children.outcome(child) if child else None
        return result.text if result else ""

    def has_open(self, session: str) -> bool:
        """Whether this process watches a running task of this session."""
        return self._open_counts[session] > 0

    def session_idle(self, session: str) -> None:
        """A hint that a session has no work: its parent task has its result, and no turn waits for its tasks."""
        self.child_ended(session)
        if self._group and self._open_counts[session]:
            self._group.start_soon(self._detach_orphaned_waits_of, session)

    def child_ended(self, child: str) -> None:
        if event := self._children.get(child):
            event.set()

    async def _detach_orphaned_waits_of(self, session: str) -> None:
        await self._detach_orphaned_waits(
            [task for task in await self._services.store.open_tasks() if task.session == session]
        )

    async def _detach_orphaned_waits(self, tasks: Sequence[Task]) -> None:
        """Tasks whose turn ended without waiting for them, for example at a limit: their ends become notices."""
        awaited = [task for task in tasks if task.spec.is_awaited]
        with_work = set(await self._services.store.sessions_with_work()) if awaited else set[str]()
        for task in awaited:
            if task.session not in with_work and task.id not in self._killed:
                await self.detach(task, "always" if self._services.can_deliver(task.spec.address) else "never")

    async def _reload(self, task: Task) -> Task:
        return await self._services.store.find_task(task.person, task.id) or task

    def _watch(self, task: Task, end: TaskEnd | None = None) -> None:
        if self._group and task.id not in self._ends:
            self._ends[task.id] = anyio.Event()
            self._open_counts[task.session] += 1
            self._group.start_soon(self._watch_to_end, task, end)

    async def _watch_to_end(self, task: Task, end: TaskEnd | None) -> None:
        """Wait for the end of one task and record it. Temporary errors are retried; they do not affect other tasks."""
        matches, is_searched = None, False
        try:
            while True:
                try:
                    end = end or await self._end_of(task)
                    end = replace(end, ended=end.ended or self._services.now())
                    if not is_searched:
                        matches, is_searched = await self._last_matches(task), True
                    await self._record(task, end, matches)
                    break
                except (Unavailable, OSError) as error:
                    log.warning("the end of a task could not be recorded: %s", error, extra={"task": task.id})
                    await anyio.sleep(_RETRY_SECONDS)
        finally:
            self._ends.pop(task.id).set()
            self._open_counts[task.session] -= 1
            self._killed.pop(task.id, None)
            self._unreported.discard(task.id)
            self._output_watcher.drop(task)
            self._usage_watcher.drop(task)
            self._ended_count += 1
        if self._ended_count % _PRUNE_EVERY == 0:
            await self._prune_output(await self._services.store.open_tasks())

    async def _end_of(self, task: Task) -> TaskEnd:
        try:
            return await (self._child_end(task) if task.spec.kind == "session" else self._command_end(task))
        except Refused as error:
            return TaskEnd("failed", None, str(error), 0)

    async def _command_end(self, task: Task) -> TaskEnd:
        if task.process is None:
            process = await anyio.to_thread.run_sync(self._services.commands.adopt, task)
            if process is None:
                return self._never_started(task)
            task = await self._services.store.mark_task_started(task.id, process)
        self._output_watcher.add(task)
        self._usage_watcher.add(task)
        with anyio.move_on_after(self._seconds_left(task)):
            return self._command_task_end(task, await self._services.commands.wait_for_end(task))
        await self._services.commands.kill(task)
        return _timed_out(task)

    def _never_started(self, task: Task) -> TaskEnd:
        """Its start was not recorded and it has no files. After a crash of the machine it may have run all the same."""
        if task.created < self._services.commands.boot_time():
            return TaskEnd("lost", None, "the machine stopped while this was starting: it may or may not have run", 0)
        return TaskEnd("failed", None, "Outrider stopped before this command started: it did not run", 0)

    def _command_task_end(self, task: Task, end: CommandEnd) -> TaskEnd:
        match end.reason:
            case "exit":
                state: TaskState = "succeeded" if end.code == 0 else "failed"
                return TaskEnd(state, end.code, end.note, end.at)
            case "signal":
                return TaskEnd("failed", end.code, f"ended by signal {end.signal}", end.at)
            case "output":
                return TaskEnd("failed", end.code, "killed: it wrote more output than shell.output allows", end.at)
            case "memory":
                return TaskEnd("failed", end.code, "killed: it used more memory than sandbox.memory allows", end.at)
            case "killed":
                return TaskEnd("killed", end.code, self._killed.get(task.id, ""), end.at)
            case "lost":
                return TaskEnd("lost", None, "its processes are gone and left no exit status", end.at)

    async def _child_end(self, task: Task) -> TaskEnd:
        child = task.child or await self._services.children.open(task)
        if not task.child:
            task = await self._services.store.mark_task_started(task.id, None, child)
        self._children[child] = anyio.Event()
        try:
            self._services.wake(child)
            with anyio.move_on_after(self._seconds_left(task)) as limit:
                await self._wait_until_child_idle(child)
            if limit.cancelled_caught:
                await self._stop_child(task, child)
                return _timed_out(task)
        finally:
            del self._children[child]
        result = await self._services.children.outcome(child)
        if task.id in self._killed:
            return TaskEnd("killed", None, self._killed[task.id], 0)
        if result is None or result.outcome == "done":
            return TaskEnd("succeeded", None, "", 0)
        return TaskEnd("killed" if result.outcome == "interrupted" else "failed", None, result.error, 0)

    async def _wait_until_child_idle(self, child: str) -> None:
        while await self._services.children.outcome(child) is None:
            self._children[child] = anyio.Event()
            if await self._services.children.outcome(child) is None:
                await self._children[child].wait()

    def _seconds_left(self, task: Task) -> float:
        return max(0.0, task.spec.ceiling - (self._services.now() - task.created) / 1000)

    async def _last_matches(self, task: Task) -> KeyedNotice | None:
        try:
            return await self._output_watcher.finish(task)
        except (Refused, OSError) as error:
            log.warning("the output of a task could not be searched: %s", error, extra={"task": task.id})
            return None

    async def _record(self, task: Task, end: TaskEnd, matches: KeyedNotice | None) -> None:
        """Record the end. Raises Unavailable, for example when the disk is full; the caller tries again."""
        matches = None if task.id in self._unreported else matches
        notice = await self._notice(task, end)
        failpoint("task_end_not_recorded")
        try:
            await self._services.store.end_task_and_notify(task.id, end, notice, matches)
        except Refused as error:  # its session was deleted
            log.info("the end of a task was not reported: %s", error, extra={"task": task.id})
        self._services.wake(task.session)

    async def _notice(self, task: Task, end: TaskEnd) -> TaskNotice:
        ended = replace(task, state=end.state, exit_code=end.exit_code, why=end.why, ended=end.ended)
        if task.spec.kind == "session":
            result = await self._services.children.outcome((await self._reload(task)).child)
            return ended_notice(ended, result.text if result else "", "")
        commands = self._services.commands
        try:
            tail = await anyio.to_thread.run_sync(commands.read, task, -_TAIL_CHARACTERS, _TAIL_CHARACTERS)
        except (Refused, OSError):  # never started, or unreadable: report the end without output
            return ended_notice(ended, "", "")
        return ended_notice(ended, self._services.redact(tail.decode("utf-8", "replace")), commands.output_file(task))


def _timed_out(task: Task) -> TaskEnd:
    return TaskEnd("timed_out", None, f"it ran longer than {duration(int(task.spec.ceiling * 1000))}", 0)
