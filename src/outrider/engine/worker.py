"""Carries turns. Knows nothing of models, tools or channels.

Taking up a turn after a crash and starting a new one are the same call: read the journal, decide, do the step.

Turns that stand still because nothing could be written down: taken up again by and by, once there is room.
"""

import logging
import shutil
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sys import maxsize

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.errors import NeedsAnotherProcess, Refused, StaleClaim, Unavailable, WriteFailed
from outrider.core.events import Ended, Entry, Resumed, Started
from outrider.core.plan import AwaitAnswer, Begin, Bounds, Finish, Idle, State, Step, Stop, decide
from outrider.core.ports import NATIVE, Runtime, Runtimes
from outrider.core.store_port import Store
from outrider.engine.event_hub import EventHub
from outrider.engine.turn import OpenTurn
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.worker")
WARM = 64
"""Sessions whose journal stays in memory after their turn, so that the next one starts at once."""


class WorkerLimits(Struct, frozen=True):
    """What the worker grants a turn, and how many turns at once."""

    bounds: Bounds = Bounds()
    seconds: float = 3600.0
    turns: int = 8
    runtime: str = "native"
    """What carries the turns of sessions that ask for nothing else."""


class _RunningSession:
    """One session being carried right now."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.rerun = False
        self.turn: OpenTurn | None = None
        self.done = anyio.Event()


class Worker:
    """Gives every session with something to do to its runtime, one turn at a time each."""

    def __init__(self, store: Store, hub: EventHub, runtimes: Runtimes, limits: WorkerLimits) -> None:
        self._store = store
        self._hub = hub
        self._runtimes = runtimes
        self._limits = limits
        self._slots = anyio.CapacityLimiter(limits.turns)
        self._running: dict[str, _RunningSession] = {}
        self._warm: OrderedDict[str, OpenTurn] = OrderedDict()
        self._group: TaskGroup | None = None
        self._drained = anyio.Event()
        self._is_draining = False
        self._woken: set[str] = set()
        self.needs_another_process: dict[str, tuple[int, NeedsAnotherProcess]] = {}
        """Open turns that cannot be carried here: up to which entry they were looked at, and why."""
        self.stalled: dict[str, str] = {}
        """Why sessions stand still whose turn could not be written down; until they have come to rest."""
        self.on_idle: Callable[[str], None] = lambda session: None
        """Told of every session that has come to rest."""
        self.on_stalled: Callable[[str], None] = lambda session: None
        """Told of every session that stands still."""

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry what is woken, until cancelled or laid to rest. Then let go of every session in an orderly way."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    self._group = None
        finally:
            for turn in [turn for turn in self._warm.values() if turn.state().is_open]:
                await self._release(turn)  # It rests, and waits for an answer.
            self._drained.set()

    async def drain(self, gently: float = 0.0) -> None:
        """Carry nothing from now on; every turn is let go of in an orderly way when this returns.

        For so many seconds, what a turn is in the midst of, a reply or a call, may come to its end. Nothing new begins.
        """
        self._is_draining = True
        carried = tuple(self._running.values())
        for carrying in carried:
            if carrying.turn:
                carrying.turn.drain_scope = carrying.scope
        with anyio.move_on_after(gently):
            for carrying in carried:
                await carrying.done.wait()
        if self._group:
            self._group.cancel_scope.cancel()
            await self._drained.wait()

    @property
    def is_running(self) -> bool:
        """Whether sessions that are woken now are carried."""
        return self._group is not None and not self._is_draining

    @property
    def turns(self) -> int:
        """How many sessions are being carried, those that wait for a free place among them."""
        return len(self._running)

    def notify(self, session: str) -> None:
        """Wake this session if it was ever woken in this process; for those who carry only what they were asked for."""
        if session in self._woken:
            self.wake(session)
        else:
            self._hub.publish(session)

    def wake(self, session: str) -> None:
        """A hint that this session has something to do. A worker that does not run passes it on and carries nothing."""
        self._woken.add(session)
        if session in self._warm:
            self._warm[session].notify()
        if carrying := self._running.get(session):
            carrying.rerun = True
            if carrying.turn:
                carrying.turn.notify()
        elif self._group and not self._is_draining:
            self._running[session] = _RunningSession()
            self._group.start_soon(self._run_session, session)
        self._hub.publish(session)

    async def wake_all(self) -> None:
        """Wake every session that has something to do."""
        for session in await self._store.sessions_with_work():
            self.wake(session)

    async def stop(self, session: str, reason: str) -> Entry | None:
        """End the session's turn now. Its later writes are refused before anything is cancelled."""
        carrying = self._running.get(session)
        partial = carrying.turn.partial if carrying and carrying.turn else ""
        entry = await self._store.stop(session, reason, partial)
        self.stalled.pop(session, None)
        self._warm.pop(session, None)
        if carrying:
            if carrying.turn:
                carrying.turn.superseded = True
            carrying.scope.cancel()
        self._hub.publish(session)
        return entry

    async def _run_session(self, session: str) -> None:
        carrying = self._running[session]
        try:
            async with self._slots:
                failpoint("session_unclaimed")
                with carrying.scope:
                    await self._run_safely(session, carrying)
            if self._is_draining:
                await self._release(carrying.turn)
        except anyio.get_cancelled_exc_class():
            await self._release(carrying.turn)
            raise
        finally:
            del self._running[session]
            carrying.done.set()
        if self._is_draining and carrying.scope.cancelled_caught:
            return
        (self.on_stalled if session in self.stalled else self.on_idle)(session)
        if carrying.rerun or carrying.scope.cancelled_caught:
            await self._wake_if_has_work(session)

    async def _release(self, turn: OpenTurn | None) -> None:
        """We are shutting down: say that the turn was left in order, so that taking it up does not count as a crash."""
        if turn:
            with anyio.CancelScope(shield=True), suppress(Refused, Unavailable):
                await self._store.release(turn.session.id, turn.generation)

    async def _wake_if_has_work(self, session: str) -> None:
        """After a stop: an input that came in meanwhile begins a turn of its own."""
        with suppress(Refused, Unavailable):  # whoever follows this session has been told of the store's trouble
            if session in await self._store.sessions_with_work():
                self.wake(session)

    async def _run_safely(self, session: str, running: _RunningSession) -> None:
        """The one place that catches everything: a bug ends a turn, never the process."""
        try:
            await self._run_until_idle(session, running)
        except StaleClaim:
            self._warm.pop(session, None)
            running.rerun = True
        except NeedsAnotherProcess as error:
            await self._release(running.turn)
            self._hub.fail_followers(session, error)
        except WriteFailed as error:
            log.warning("a turn stands still: %s", error, extra={"session": session})
            self._warm.pop(session, None)
            self.stalled[session] = str(error)
            self._hub.fail_followers(session, Unavailable(str(error)))
        except Exception as error:
            log.exception("the worker failed", extra={"session": session})
            self._warm.pop(session, None)
            self._hub.fail_followers(session, Unavailable(f"internal error: {type(error).__name__}: {error}"))

    async def _run_until_idle(self, session: str, running: _RunningSession) -> None:
        turn = await self._open_turn(session, running)
        turn.drain_scope = running.scope if self._is_draining else None
        is_taken_up = turn.state().is_open
        while True:
            running.rerun = False
            await turn.refresh()
            match self._decide(turn.state()):
                case Idle():
                    break
                case AwaitAnswer():
                    # The runtime knows whether anyone can answer; it is asked once, and again when something was added.
                    head = turn.state().head
                    await self._run_turn(turn)
                    if turn.state().head == head:
                        break
                case Begin():
                    turn.resumed = False
                    await turn.record(await self._started_entry(turn))
                    failpoint("turn_started")
                case Stop(reason=reason):
                    log.warning("a turn was stopped: %s", reason, extra={"session": session})
                    await turn.record(Ended("failed", turn.state().head, reason))
                case Finish() if is_taken_up and turn.state().runtime not in ("", NATIVE):
                    # Words without calls may not be the last ones of another program: it is asked.
                    is_taken_up = False
                    await self._run_turn(turn)
                case Finish():
                    failpoint("reply_recorded")
                    await turn.record(Ended("done", turn.state().saw))
                case _:
                    is_taken_up = False
                    await self._run_turn(turn)
        self.stalled.pop(session, None)
        self._warm[session] = turn
        while len(self._warm) > WARM:
            self._warm.popitem(last=False)

    def _decide(self, state: State) -> Step:
        """By our limits; a runtime of others counts its own steps."""
        own = self._limits.bounds
        return decide(state, {}, own if state.runtime in ("", NATIVE) else replace(own, steps=maxsize, repeats=maxsize))

    async def _started_entry(self, turn: OpenTurn) -> Started:
        """What is amiss with a runtime shows when it is to carry the turn."""
        name = turn.state().settings.get("runtime") or self._limits.runtime
        try:
            return await (await self._runtimes(name)).started_entry(turn)
        except Refused:
            return Started(name)

    async def _runtime(self, name: str) -> Runtime:
        try:
            return await self._runtimes(name)
        except Refused as error:
            raise NeedsAnotherProcess(str(error)) from error

    async def _open_turn(self, session: str, running: _RunningSession) -> OpenTurn:
        if turn := self._warm.pop(session, None):
            running.turn = turn
            return turn
        try:
            claim = await self._store.claim(session)
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error
        turn = running.turn = OpenTurn(self._store, self._hub, claim.session, claim.generation)
        await turn.refresh()
        if turn.state().is_open:
            head, why = self.needs_another_process.get(session, (0, None))
            if why and head == turn.state().head:
                raise why
            turn.resumed = True
            await turn.record(Resumed(crashed=not claim.handed_over))
        return turn

    async def _run_turn(self, turn: OpenTurn) -> None:
        """Hand the open turn to its runtime. It has come to rest, or has ended, when this returns."""
        before = turn.state()
        try:
            with anyio.move_on_after(self._limits.seconds) as deadline:
                await (await self._runtime(before.runtime)).run(turn)
        except (Refused, Unavailable) as error:
            if isinstance(error, NeedsAnotherProcess) and turn.resumed:
                log.warning("a turn is left to another process: %s", error, extra={"session": turn.session.id})
                self.needs_another_process[turn.session.id] = (turn.state().head, error)
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
            turn.needs_refresh = True
            await turn.refresh()
        state = turn.state()
        if deadline.cancelled_caught:
            reason = f"stopped after {self._limits.seconds:g} s, the limit of one turn (limits.seconds)"
            await turn.record(Ended("failed", state.head, reason))
        elif state.head == before.head and not isinstance(self._decide(state), Finish | Stop | AwaitAnswer):
            await turn.record(Ended("failed", state.head, "the runtime stopped without a reply"))


retry_log = logging.getLogger("outrider.again")
FIRST_RETRY = 1.0
LONGEST_RETRY = 30.0
_FREE_BYTES_NEEDED = 256 * 1024
"""Bytes that must be free: what a model says is paid for, and lost when it cannot be kept."""


class StalledSessions:
    """Wakes such sessions after a second, and then ever less often."""

    def __init__(self, store: Store, worker: Worker, home: Path, group: TaskGroup) -> None:
        self._store = store
        self._worker = worker
        self._home = home
        self._group = group
        self._pauses: dict[str, float] = {}
        self._retrying: set[str] = set()

    def add(self, session: str) -> None:
        """It stands still now."""
        self._pauses[session] = min(LONGEST_RETRY, self._pauses.get(session, FIRST_RETRY / 2) * 2)
        if session not in self._retrying:
            self._retrying.add(session)
            self._group.start_soon(self._retry, session)

    def drop(self, session: str) -> None:
        """It has come to rest."""
        self._pauses.pop(session, None)

    async def _retry(self, session: str) -> None:
        while True:
            await anyio.sleep(self._pauses.get(session, FIRST_RETRY))
            try:
                if shutil.disk_usage(self._home).free >= _FREE_BYTES_NEEDED:
                    is_open = session in await self._store.sessions_with_work()
                    break
            except (Refused, Unavailable, OSError) as error:
                retry_log.debug("not yet: %s", error, extra={"session": session})
            self._pauses[session] = min(LONGEST_RETRY, self._pauses.get(session, FIRST_RETRY) * 2)
        self._retrying.discard(session)
        if is_open:
            retry_log.info("trying again to go on with a turn", extra={"session": session})
            self._worker.wake(session)
        else:
            self._worker.stalled.pop(session, None)
