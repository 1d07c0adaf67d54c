"""Keeps tasks: begins them, watches them without polling, takes them up again after a crash, and tells how they ended.

Beginning and taking up are the same act. A task's end and the notice to its session are one write.
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
from outrider.core.tasks import Notify, Task, TaskSpec, TaskState, ended_notice
from outrider.core.text import duration
from outrider.engine.output_watcher import OutputWatcher
from outrider.engine.task_services import TaskServices
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.keeper")
_MAX_STARTS = 16
"""Commands that are being started at the same moment."""
_RETRY_SECONDS = 2.0
"""Seconds before an end that could not be written down is tried again."""
_TAIL_CHARACTERS = 8_000
_PRUNE_EVERY = 200
"""Old output is thrown away after so many ends."""


class TaskSupervisor:
    """All tasks of one home."""

    def __init__(self, services: TaskServices, *, most: int) -> None:
        self.store = services.store
        self._services = services
        self._max_open = most
        self._group: TaskGroup | None = None
        self._start_limiter = anyio.CapacityLimiter(_MAX_STARTS)
        self._ends: dict[str, anyio.Event] = {}
        self._open_counts: Counter[str] = Counter()
        self._ended_count = 0
        self._children: dict[str, anyio.Event] = {}
        self._killed: dict[str, str] = {}
        self._pending_starts: dict[tuple[str, str], anyio.Event] = {}
        """Calls whose task is being begun at this moment, by session and call."""
        self._output_watcher = OutputWatcher(services)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch tasks until cancelled. The tasks themselves go on."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._output_watcher.run)
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
        """Begin a task, or take up the one that this call began before a crash.

        A turn that was stopped begins nothing any more. One that is stopped meanwhile does not cut this short: what has
        begun is watched, whoever asked for it.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        with anyio.CancelScope(shield=True):
            return await self._create_and_start(session, spec)
        raise AssertionError("a shielded scope ends only by itself")

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
            mark = await anyio.to_thread.run_sync(self._services.commands.start, task, limiter=self._start_limiter)
        except (Refused, Unavailable) as error:
            await self._fail_start(task, str(error))
            raise Refused(str(error)) from error
        failpoint("task_started")
        try:
            task = await self._services.store.mark_task_started(task.id, mark)
        except Unavailable as error:  # it runs all the same, and is found by whoever watches it
            log.warning("the start of a task could not be written down: %s", error, extra={"task": task.id})
        except Refused:  # its session was deleted meanwhile
            await self._services.commands.kill(replace(task, process=mark))
            raise
        if not task.is_open:  # ended by someone else while it was being started
            await self._services.commands.kill(replace(task, process=mark))
            return task
        self._watch(task)
        return task

    async def _fail_start(self, task: Task, why: str) -> None:
        """It was not started. Whoever began it is told so at once; a notice would say it twice."""
        if not task.spec.is_awaited:
            with suppress(Unavailable):
                task = await self.detach(task, "never")
        self._watch(task, TaskEnd("failed", None, why, 0))

    async def wait(self, task: Task, seconds: float) -> Task:
        """Wait for its end, at most so long."""
        if begun := self._pending_starts.get((task.session, task.spec.call)):
            await begun.wait()
        if task.is_open and (end := self._ends.get(task.id)):
            with anyio.move_on_after(seconds):
                await end.wait()
        return await self._reload(task)

    async def detach(self, task: Task, notify: Notify) -> Task:
        """Stop waiting for it."""
        return await self._services.store.detach_task(task.id, notify)

    async def kill(self, task: Task, why: str = "", *, untold: bool = False) -> Task:
        """End a task and all it started. It has ended, and that is written down, when this returns."""
        if begun := self._pending_starts.get((task.session, task.spec.call)):
            await begun.wait()
        task = await self._reload(task)
        if not task.is_open:
            return task
        self._killed[task.id] = why
        if untold:
            await self.detach(task, "never")
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
        """As it runs; None when it never started, which is found out and told by whoever watches it."""
        if task.process:
            return task
        mark = await anyio.to_thread.run_sync(self._services.commands.adopt, task)
        return await self._services.store.mark_task_started(task.id, mark) if mark else None

    async def _stop_child(self, task: Task, child: str) -> None:
        await self._services.children.stop(child)
        await self.kill_awaited(child, task.person, everything=True)

    async def kill_awaited(self, session: str, person: str, *, everything: bool = False) -> int:
        """End what a stopped turn was waiting for, or every task of the session; how many those were."""
        await self._wait_for_starts(session)
        tasks = await self._services.store.list_tasks(person, session, open_only=True, limit=10_000)
        doomed = [task for task in tasks if everything or task.spec.is_awaited]
        async with anyio.create_task_group() as group:
            for task in doomed:
                # Whoever stopped the turn knows; a notice would begin another one.
                group.start_soon(partial(self.kill, task, "its turn was stopped", untold=True))
        return len(doomed)

    async def _wait_for_starts(self, session: str) -> None:
        """A turn that was stopped just now may be beginning a task at this very moment: let it, and see it."""
        await anyio.lowlevel.checkpoint()
        for call, begun in tuple(self._pending_starts.items()):
            if call[0] == session:
                await begun.wait()

    async def last_message(self, task: Task) -> str:
        """The last words of the child session that is this task's body."""
        child = (await self._reload(task)).child
        finished = await self._services.children.outcome(child) if child else None
        return finished.text if finished else ""

    def has_open(self, session: str) -> bool:
        """Whether a task of this session runs, as far as this process watches it."""
        return self._open_counts[session] > 0

    def session_idle(self, session: str) -> None:
        """A hint that nothing is left to do in a session: a parent may have its result, and nobody waits there."""
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
        """The turn that waited for a command has ended without it, at a limit say: its end is told by a notice then."""
        waited = [task for task in tasks if task.spec.is_awaited]
        waiting = set(await self._services.store.sessions_with_work()) if waited else set[str]()
        for task in waited:
            if task.session not in waiting and task.id not in self._killed:
                await self.detach(task, "always" if self._services.can_deliver(task.spec.address) else "never")

    async def _reload(self, task: Task) -> Task:
        return await self._services.store.find_task(task.person, task.id) or task

    def _watch(self, task: Task, end: TaskEnd | None = None) -> None:
        if self._group and task.id not in self._ends:
            self._ends[task.id] = anyio.Event()
            self._open_counts[task.session] += 1
            self._group.start_soon(self._watch_to_end, task, end)

    async def _watch_to_end(self, task: Task, end: TaskEnd | None) -> None:
        """See one task to its end, whatever became of it meanwhile, and have that told. Trouble that may pass is
        waited out: one task in trouble is not the end of all others."""
        try:
            while True:
                try:
                    end = end or await self._end_of(task)
                    end = replace(end, ended=end.ended or self._services.now())
                    await self._record(task, end)
                    break
                except (Unavailable, OSError) as error:
                    log.warning("a task could not be looked after: %s", error, extra={"task": task.id})
                    await anyio.sleep(_RETRY_SECONDS)
        finally:
            self._ends.pop(task.id).set()
            self._open_counts[task.session] -= 1
            self._killed.pop(task.id, None)
            self._output_watcher.drop(task)
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
            mark = await anyio.to_thread.run_sync(self._services.commands.adopt, task)
            if mark is None:
                return self._never_started(task)
            task = await self._services.store.mark_task_started(task.id, mark)
        self._output_watcher.add(task)
        with anyio.move_on_after(self._seconds_left(task)):
            return self._command_task_end(task, await self._services.commands.wait_for_end(task))
        await self._services.commands.kill(task)
        return _timed_out(task)

    def _never_started(self, task: Task) -> TaskEnd:
        """Its start was not recorded and nothing of it is there; what a machine that went down forgot, nobody knows."""
        if task.created < self._services.commands.boot_time():
            return TaskEnd("lost", None, "the machine went down while it was being started: it may have run or not", 0)
        return TaskEnd("failed", None, "Outrider stopped before this command was started: it did not run", 0)

    def _command_task_end(self, task: Task, end: CommandEnd) -> TaskEnd:
        match end.reason:
            case "exit":
                state: TaskState = "succeeded" if end.code == 0 else "failed"
                return TaskEnd(state, end.code, "", end.at)
            case "signal":
                return TaskEnd("failed", end.code, f"ended by signal {end.signal}", end.at)
            case "output":
                why = "ended because it wrote more output than is kept (shell.output)"
                return TaskEnd("failed", end.code, why, end.at)
            case "memory":
                why = "ended because it used more memory than it may have (sandbox.memory)"
                return TaskEnd("failed", end.code, why, end.at)
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
        finished = await self._services.children.outcome(child)
        if task.id in self._killed:
            return TaskEnd("killed", None, self._killed[task.id], 0)
        if finished is None or finished.outcome == "done":
            return TaskEnd("succeeded", None, "", 0)
        return TaskEnd("killed" if finished.outcome == "interrupted" else "failed", None, finished.error, 0)

    async def _wait_until_child_idle(self, child: str) -> None:
        while await self._services.children.outcome(child) is None:
            self._children[child] = anyio.Event()
            if await self._services.children.outcome(child) is None:
                await self._children[child].wait()

    def _seconds_left(self, task: Task) -> float:
        return max(0.0, task.spec.ceiling - (self._services.now() - task.created) / 1000)

    async def _record(self, task: Task, end: TaskEnd) -> None:
        """Write the end down. Raises Unavailable, say when the disk is full: whoever watches the task tries again."""
        notice = await self._notice(task, end)
        failpoint("task_end_not_recorded")
        try:
            await self._services.store.end_task_and_notify(task.id, end, notice)
        except Refused as error:  # its session was deleted meanwhile: nobody is left to be told
            log.info("the end of a task was not told: %s", error, extra={"task": task.id})
        self._services.wake(task.session)

    async def _notice(self, task: Task, end: TaskEnd) -> str:
        told = replace(task, state=end.state, exit_code=end.exit_code, why=end.why, ended=end.ended)
        if task.spec.kind == "session":
            finished = await self._services.children.outcome((await self._reload(task)).child)
            return ended_notice(told, finished.text if finished else "", "")
        commands = self._services.commands
        try:
            tail = await anyio.to_thread.run_sync(commands.read, task, -_TAIL_CHARACTERS, _TAIL_CHARACTERS)
        except (Refused, OSError):  # nothing was started, or nothing can be read now: no reason to be silent
            return ended_notice(told, "", "")
        return ended_notice(told, self._services.redact(tail.decode("utf-8", "replace")), commands.output_file(task))


def _timed_out(task: Task) -> TaskEnd:
    return TaskEnd("timed_out", None, f"it ran longer than {duration(int(task.spec.ceiling * 1000))}", 0)
