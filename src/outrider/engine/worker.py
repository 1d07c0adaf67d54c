"""The worker: runs the turns of sessions that have work. It knows nothing of models, tools or channels.

Starting a turn and resuming one after a crash are the same code: read the journal, decide, do the step. A session whose
turn could not be written to the store is stalled; `StalledSessions` retries it with growing delays.
"""

import logging
import shutil
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from sys import maxsize
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.errors import NeedsAnotherProcess, Refused, StaleClaim, Unavailable, WriteFailed
from outrider.core.events import Ended, Entry, Started
from outrider.core.plan import AwaitAnswer, Begin, Bounds, Finish, Idle, State, Step, Stop, decide
from outrider.core.ports import NATIVE, Runtime, Runtimes
from outrider.core.store_port import Store
from outrider.core.types import REMOTE, runtime_name
from outrider.engine.event_hub import EventHub
from outrider.engine.turn import OpenTurn
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.worker")
WARM = 64
"""Sessions whose journal stays in memory after their turn, so that the next turn starts at once."""


_BEGUN_BEFORE_REMOTE = (
    "this turn was started by {runtime}, and turns are forwarded to another agent now (remote.url): what was done is "
    "kept, and your next message goes there"
)


class WorkerLimits(Struct, frozen=True):
    """The limits of one turn, and how many turns run at once."""

    bounds: Bounds = Bounds()
    seconds: float = 3600.0
    turns: int = 8
    runtime: str = "native"
    """The runtime of sessions that do not name one."""


class WorkerListener(Protocol):
    """What a worker reports while it runs."""

    def session_idle(self, session: str) -> None:
        """Nothing is left to do in this session."""
        ...

    def session_stalled(self, session: str) -> None:
        """The turn of this session could not be written to the store."""
        ...


class WorkerHealth(Struct, frozen=True):
    """The state of a worker, for a health check."""

    is_running: bool
    running: frozenset[str]
    """Sessions that are running, including those that wait for a slot."""
    stalled_reason: str
    """Why a turn could not be written; empty when no session is stalled."""
    needs_another_process: frozenset[str]
    """Sessions whose open turn this process cannot run."""


class _Run(Struct, frozen=True):
    """What the worker has while it runs."""

    group: TaskGroup
    runtimes: Runtimes
    listener: WorkerListener


class _Slot:
    """One of the turns that may run at once. While a turn lends its slot, another one can run."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._is_held = False
        self._lend_count = 0

    async def acquire(self) -> None:
        await self._limiter.acquire_on_behalf_of(self)
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._limiter.release_on_behalf_of(self)

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[None]:
        """Do without it in this block, and wait for one at its end. Blocks may overlap."""
        self._lend_count += 1
        self.release()
        try:
            yield
        finally:
            self._lend_count -= 1
            if not self._lend_count:
                await self.acquire()


class _RunningSession:
    def __init__(self, run: _Run, slots: anyio.CapacityLimiter) -> None:
        self.slot = _Slot(slots)
        self.runtimes = run.runtimes
        self.listener = run.listener
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.turn: OpenTurn | None = None
        self.needs_rerun = False

    def notify(self) -> None:
        """Another writer has appended to the journal."""
        self.needs_rerun = True
        if self.turn:
            self.turn.notify()

    def open(self, turn: OpenTurn) -> None:
        self.turn = turn

    def start_pass(self) -> None:
        """From here on, a notification needs another pass."""
        self.needs_rerun = False

    def cancel(self) -> None:
        """Stop it and publish nothing more of its turn."""
        if self.turn:
            self.turn.supersede()
        self.scope.cancel()


class Worker:
    """Runs every session that has work in its runtime, one turn at a time per session."""

    def __init__(self, store: Store, hub: EventHub, limits: WorkerLimits) -> None:
        self._store = store
        self._hub = hub
        self._limits = limits
        self._slots = anyio.CapacityLimiter(limits.turns)
        self._running: dict[str, _RunningSession] = {}
        self._warm: OrderedDict[str, OpenTurn] = OrderedDict()
        self._run: _Run | None = None
        self._drained = anyio.Event()
        self._is_draining = False
        self._woken: set[str] = set()
        self._needs_another_process: dict[str, tuple[int, NeedsAnotherProcess]] = {}
        """Open turns that this process cannot run: the head of the journal at that time, and the reason."""
        self._stalled: dict[str, str] = {}
        """Why the turn of a session could not be written, until that session is idle."""

    async def run(
        self,
        runtimes: Runtimes,
        listener: WorkerListener,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the sessions that are woken, until cancelled or drained. Then release every session."""
        try:
            async with anyio.create_task_group() as group:
                self._run = _Run(group, runtimes, listener)
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    self._run = None
        finally:
            for turn in [turn for turn in self._warm.values() if turn.state().is_open]:
                await self._release(turn)  # it waits for an answer
            self._drained.set()

    async def drain(self, seconds: float = 0.0) -> None:
        """Run nothing from now on; every turn is released when this returns.

        For this many seconds a reply or a call in progress may finish. No new step starts.
        """
        self._is_draining = True
        sessions = tuple(self._running.values())
        for running in sessions:
            if running.turn:
                running.turn.set_drain_scope(running.scope)
        with anyio.move_on_after(seconds):
            for running in sessions:
                await running.done.wait()
        if self._run:
            self._run.group.cancel_scope.cancel()
            await self._drained.wait()

    def health(self) -> WorkerHealth:
        return WorkerHealth(
            is_running=self._run is not None and not self._is_draining,
            running=frozenset(self._running),
            stalled_reason=next(iter(self._stalled.values()), ""),
            needs_another_process=frozenset(self._needs_another_process),
        )

    def forget_stalled(self, session: str) -> None:
        """Do not report this session as stalled any more."""
        self._stalled.pop(session, None)

    def notify(self, session: str) -> None:
        """Wake this session if it was woken in this process before; for a process that runs only its own sessions."""
        if session in self._woken:
            self.wake(session)
        else:
            self._hub.publish(session)

    def wake(self, session: str) -> None:
        """A hint that this session has work. A worker that does not run only passes it on to followers."""
        self._woken.add(session)
        if session in self._warm:
            self._warm[session].notify()
        if running := self._running.get(session):
            running.notify()
        elif self._run and not self._is_draining:
            self._running[session] = _RunningSession(self._run, self._slots)
            self._run.group.start_soon(self._run_session, session)
        self._hub.publish(session)

    def lend_slot(self, session: str) -> AbstractAsyncContextManager[None]:
        """Let another turn run while the turn of this session only waits for one. Its limit of turns stays kept."""
        running = self._running.get(session)
        return running.slot.lend() if running else nullcontext()

    async def wake_all(self) -> None:
        """Wake every session that has work."""
        for session in await self._store.sessions_with_work():
            self.wake(session)

    async def stop(self, session: str, reason: str) -> Entry | None:
        """End the session's turn now. Its later writes are refused before anything is cancelled."""
        running = self._running.get(session)
        partial = running.turn.partial if running and running.turn else ""
        entry = await self._store.stop(session, reason, partial)
        self.forget_stalled(session)
        self._warm.pop(session, None)
        if running:
            running.cancel()
        self._hub.publish(session)
        return entry

    async def _run_session(self, session: str) -> None:
        running = self._running[session]
        try:
            await running.slot.acquire()
            failpoint("session_unclaimed")
            with running.scope:
                await self._run_safely(session, running)
            if self._is_draining:
                await self._release(running.turn)
        except anyio.get_cancelled_exc_class():
            await self._release(running.turn)
            raise
        finally:
            running.slot.release()
            del self._running[session]
            running.done.set()
        if self._is_draining and running.scope.cancelled_caught:
            return
        if session in self._stalled:
            running.listener.session_stalled(session)
        else:
            running.listener.session_idle(session)
        if running.needs_rerun or running.scope.cancelled_caught:
            await self._wake_if_has_work(session)

    async def _release(self, turn: OpenTurn | None) -> None:
        """Record that the turn was released on shutdown, so that resuming it does not count as a crash."""
        if turn:
            with anyio.CancelScope(shield=True), suppress(Refused, Unavailable):
                await self._store.release(turn.session.id, turn.generation)

    async def _wake_if_has_work(self, session: str) -> None:
        """An input that arrived during a stop starts a turn of its own."""
        with suppress(Refused, Unavailable):  # followers of this session already have the store's error
            if session in await self._store.sessions_with_work():
                self.wake(session)

    async def _run_safely(self, session: str, running: _RunningSession) -> None:
        """Catches everything: a bug ends a turn, never the process."""
        try:
            await self._run_until_idle(session, running)
        except StaleClaim:
            self._warm.pop(session, None)
            running.notify()
        except NeedsAnotherProcess as error:
            await self._release(running.turn)
            self._hub.fail_followers(session, error)
        except WriteFailed as error:
            log.warning("a turn is stalled: %s", error, extra={"session": session})
            self._warm.pop(session, None)
            self._stalled[session] = str(error)
            self._hub.fail_followers(session, Unavailable(str(error)))
        except Exception as error:
            log.exception("the worker failed", extra={"session": session})
            self._warm.pop(session, None)
            self._hub.fail_followers(session, Unavailable(f"internal error: {type(error).__name__}: {error}"))

    async def _run_until_idle(self, session: str, running: _RunningSession) -> None:
        turn, runtimes = await self._open_turn(session, running), running.runtimes
        turn.set_drain_scope(running.scope if self._is_draining else None)
        is_resumed = turn.state().is_open
        while True:
            running.start_pass()
            await turn.refresh()
            match self._decide(turn.state()):
                case Idle():
                    break
                case AwaitAnswer():
                    # Only the runtime knows whether anyone can answer. It runs once, and again after a new entry.
                    head = turn.state().head
                    await self._run_turn(runtimes, turn)
                    if turn.state().head == head:
                        break
                case Begin():
                    await turn.start(await self._started_entry(runtimes, turn))
                    failpoint("turn_started")
                case Stop(reason=reason):
                    log.warning("a turn was stopped: %s", reason, extra={"session": session})
                    await turn.record(Ended("failed", turn.state().head, reason))
                case Finish() if is_resumed and turn.state().runtime not in ("", NATIVE):
                    # A reply without calls may not be the last one of an external program: ask that program.
                    is_resumed = False
                    await self._run_turn(runtimes, turn)
                case Finish():
                    failpoint("reply_recorded")
                    await turn.record(Ended("done", turn.state().saw))
                case _:
                    is_resumed = False
                    await self._run_turn(runtimes, turn)
        self.forget_stalled(session)
        self._warm[session] = turn
        while len(self._warm) > WARM:
            self._warm.popitem(last=False)

    def _decide(self, state: State) -> Step:
        """Within our limits; an external runtime counts its own steps."""
        bounds = self._limits.bounds
        if state.runtime not in ("", NATIVE):
            bounds = replace(bounds, steps=maxsize, repeats=maxsize)
        return decide(state, {}, bounds)

    async def _started_entry(self, runtimes: Runtimes, turn: OpenTurn) -> Started:
        """A runtime that cannot be opened is reported when it is to run the turn."""
        name = runtime_name(turn.state().settings, self._limits.runtime)
        try:
            return await (await runtimes(name)).started_entry(turn)
        except Refused:
            return Started(name)

    async def _open_turn(self, session: str, running: _RunningSession) -> OpenTurn:
        if turn := self._warm.pop(session, None):
            running.open(turn)
            return turn
        try:
            claim = await self._store.claim(session)
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error
        turn = OpenTurn(self._store, self._hub, claim.session, claim.generation)
        running.open(turn)
        await turn.refresh()
        if turn.state().is_open:
            head, reason = self._needs_another_process.get(session, (0, None))
            if reason and head == turn.state().head:
                raise reason
            await turn.resume(crashed=not claim.handed_over)
        return turn

    async def _run_turn(self, runtimes: Runtimes, turn: OpenTurn) -> None:
        """Run the open turn in its runtime until it has ended or waits for an answer."""
        before = turn.state()
        if self._limits.runtime == REMOTE != before.runtime:
            await turn.record(Ended("failed", before.head, _BEGUN_BEFORE_REMOTE.format(runtime=before.runtime)))
            return
        try:
            with anyio.move_on_after(self._limits.seconds) as deadline:
                await (await _open_runtime(runtimes, before.runtime)).run(turn)
        except (Refused, Unavailable) as error:
            if isinstance(error, NeedsAnotherProcess) and turn.is_resumed:
                log.warning("a turn needs another process: %s", error, extra={"session": turn.session.id})
                self._needs_another_process[turn.session.id] = (turn.state().head, error)
                raise
            log.warning("a turn failed: %s", error, extra={"session": turn.session.id})
            await turn.record(Ended("failed", turn.state().head, str(error)))
            return
        except (StaleClaim, WriteFailed):
            raise
        except Exception as error:
            log.exception("a runtime failed", extra={"session": turn.session.id})
            await turn.record(Ended("failed", turn.state().head, f"internal error: {type(error).__name__}: {error}"))
            return
        if deadline.cancelled_caught:
            hindrance = _hindrance(turn)
            turn.notify()
            await turn.refresh()
            reason = f"stopped after {self._limits.seconds:g} s, the limit of one turn (limits.seconds)"
            await turn.record(Ended("failed", turn.state().head, f"{reason}. {hindrance}" if hindrance else reason))
            return
        state = turn.state()
        if state.head == before.head and not isinstance(self._decide(state), Finish | Stop | AwaitAnswer):
            await turn.record(Ended("failed", state.head, "the runtime stopped without a reply"))


def _hindrance(turn: OpenTurn) -> str:
    """What kept the turn from its end, as far as that is known: a problem, a running call, or silence."""
    silent = anyio.current_time() - turn.last_activity
    if turn.obstacle:
        return f"Its last problem: {turn.obstacle}"
    if running := [call.tool for call in turn.state().calls if call.id in turn.state().begun]:
        return f"It was running {', '.join(running)}"
    return f"Nothing was reported in its last {silent:.0f} s" if silent >= _LONG_SILENCE else ""


async def _open_runtime(runtimes: Runtimes, name: str) -> Runtime:
    try:
        return await runtimes(name)
    except Refused as error:
        raise NeedsAnotherProcess(str(error)) from error


FIRST_RETRY = 1.0
_LONG_SILENCE = 10.0
"""Seconds without a report that are worth naming."""
LONGEST_RETRY = 30.0
_FREE_BYTES_NEEDED = 256 * 1024
"""Free bytes needed for a retry: a reply that cannot be stored is paid for and lost."""


class StalledSessions:
    """Wakes stalled sessions after a second, then with delays that double up to half a minute."""

    def __init__(self, store: Store, worker: Worker, home: Path, group: TaskGroup) -> None:
        self._store = store
        self._worker = worker
        self._home = home
        self._group = group
        self._delays: dict[str, float] = {}
        self._retrying: set[str] = set()

    def add(self, session: str) -> None:
        self._delays[session] = min(LONGEST_RETRY, self._delays.get(session, FIRST_RETRY / 2) * 2)
        if session not in self._retrying:
            self._retrying.add(session)
            self._group.start_soon(self._retry, session)

    def drop(self, session: str) -> None:
        """This session is idle: its next delay is the first one again."""
        self._delays.pop(session, None)

    async def _retry(self, session: str) -> None:
        while True:
            await anyio.sleep(self._delays.get(session, FIRST_RETRY))
            try:
                if shutil.disk_usage(self._home).free >= _FREE_BYTES_NEEDED:
                    has_work = session in await self._store.sessions_with_work()
                    break
            except (Refused, Unavailable, OSError) as error:
                log.debug("the store still fails: %s", error, extra={"session": session})
            self._delays[session] = min(LONGEST_RETRY, self._delays.get(session, FIRST_RETRY) * 2)
        self._retrying.discard(session)
        if has_work:
            log.info("retrying a stalled turn", extra={"session": session})
            self._worker.wake(session)
        else:
            self._worker.forget_stalled(session)
