"""Carries turns. Knows nothing of models, tools or channels.

Taking up a turn after a crash and starting a new one are the same call: read the journal, decide, do the step.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from sys import maxsize

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from outrider.config.fail import point
from outrider.core.errors import NotHere, NotKept, Refused, Stale, Unavailable
from outrider.core.events import Ended, Entry, Resumed, Started
from outrider.core.plan import Begin, Bounds, Finish, Idle, State, Step, Stop, Wait, decide
from outrider.core.ports import NATIVE, Runtime, Runtimes, Store
from outrider.engine.follow import Hub
from outrider.engine.turn import OpenTurn

log = logging.getLogger("outrider.worker")

WARM = 64
"""Sessions whose journal stays in memory after their turn, so that the next one starts at once."""


class Limits(Struct, frozen=True):
    """What the worker grants a turn, and how many turns at once."""

    bounds: Bounds = Bounds()
    seconds: float = 3600.0
    turns: int = 8
    runtime: str = "native"
    """What carries the turns of sessions that ask for nothing else."""


class _Carrying:
    """One session being carried right now."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.again = False
        self.turn: OpenTurn | None = None
        self.over = anyio.Event()


class Worker:
    """Gives every session with something to do to its runtime, one turn at a time each."""

    def __init__(self, store: Store, hub: Hub, runtimes: Runtimes, limits: Limits) -> None:
        self._store = store
        self._hub = hub
        self._runtimes = runtimes
        self._limits = limits
        self._slots = anyio.CapacityLimiter(limits.turns)
        self._carrying: dict[str, _Carrying] = {}
        self._warm: OrderedDict[str, OpenTurn] = OrderedDict()
        self._group: TaskGroup | None = None
        self._at_ease = anyio.Event()
        self._is_leaving = False
        self._own: set[str] = set()
        self.left: dict[str, tuple[int, NotHere]] = {}
        """Open turns that cannot be carried here: up to which entry they were looked at, and why."""
        self.faults: dict[str, str] = {}
        """Why sessions stand still whose turn could not be written down; until they have come to rest."""
        self.at_rest: Callable[[str], None] = lambda session: None
        """Told of every session that has come to rest."""
        self.at_fault: Callable[[str], None] = lambda session: None
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
                await self._let_go(turn)  # It rests, and waits for an answer.
            self._at_ease.set()

    async def rest(self, gently: float = 0.0) -> None:
        """Carry nothing from now on; every turn is let go of in an orderly way when this returns.

        For so many seconds, what a turn is in the midst of, a reply or a call, may come to its end. Nothing new begins.
        """
        self._is_leaving = True
        carried = tuple(self._carrying.values())
        for carrying in carried:
            if carrying.turn:
                carrying.turn.leaving = carrying.scope
        with anyio.move_on_after(gently):
            for carrying in carried:
                await carrying.over.wait()
        if self._group:
            self._group.cancel_scope.cancel()
            await self._at_ease.wait()

    @property
    def is_running(self) -> bool:
        """Whether sessions that are woken now are carried."""
        return self._group is not None and not self._is_leaving

    @property
    def turns(self) -> int:
        """How many sessions are being carried, those that wait for a free place among them."""
        return len(self._carrying)

    def hint(self, session: str) -> None:
        """Wake this session if it was ever woken in this process; for those who carry only what they were asked for."""
        if session in self._own:
            self.wake(session)
        else:
            self._hub.tell(session)

    def wake(self, session: str) -> None:
        """A hint that this session has something to do. A worker that does not run passes it on and carries nothing."""
        self._own.add(session)
        if session in self._warm:
            self._warm[session].hint()
        if carrying := self._carrying.get(session):
            carrying.again = True
            if carrying.turn:
                carrying.turn.hint()
        elif self._group and not self._is_leaving:
            self._carrying[session] = _Carrying()
            self._group.start_soon(self._carry_session, session)
        self._hub.tell(session)

    async def wake_all(self) -> None:
        """Wake every session that has something to do."""
        for session in await self._store.waiting():
            self.wake(session)

    async def stop(self, session: str, reason: str) -> Entry | None:
        """End the session's turn now. Its later writes are refused before anything is cancelled."""
        carrying = self._carrying.get(session)
        partial = carrying.turn.partial if carrying and carrying.turn else ""
        entry = await self._store.stop(session, reason, partial)
        self.faults.pop(session, None)
        self._warm.pop(session, None)
        if carrying:
            if carrying.turn:
                carrying.turn.is_stale = True
            carrying.scope.cancel()
        self._hub.tell(session)
        return entry

    async def _carry_session(self, session: str) -> None:
        carrying = self._carrying[session]
        try:
            async with self._slots:
                point("J3")
                with carrying.scope:
                    await self._carry_safely(session, carrying)
            if self._is_leaving:
                await self._let_go(carrying.turn)
        except anyio.get_cancelled_exc_class():
            await self._let_go(carrying.turn)
            raise
        finally:
            del self._carrying[session]
            carrying.over.set()
        if self._is_leaving and carrying.scope.cancelled_caught:
            return
        (self.at_fault if session in self.faults else self.at_rest)(session)
        if carrying.again or carrying.scope.cancelled_caught:
            await self._wake_if_waiting(session)

    async def _let_go(self, turn: OpenTurn | None) -> None:
        """We are shutting down: say that the turn was left in order, so that taking it up does not count as a crash."""
        if turn:
            with anyio.CancelScope(shield=True), suppress(Refused, Unavailable):
                await self._store.release(turn.session.id, turn.generation)

    async def _wake_if_waiting(self, session: str) -> None:
        """After a stop: an input that came in meanwhile begins a turn of its own."""
        with suppress(Refused, Unavailable):  # whoever follows this session has been told of the store's trouble
            if session in await self._store.waiting():
                self.wake(session)

    async def _carry_safely(self, session: str, carrying: _Carrying) -> None:
        """The one place that catches everything: a bug ends a turn, never the process."""
        try:
            await self._carry_until_idle(session, carrying)
        except Stale:
            self._warm.pop(session, None)
            carrying.again = True
        except NotHere as error:
            await self._let_go(carrying.turn)
            self._hub.break_off(session, error)
        except NotKept as error:
            log.warning("a turn stands still: %s", error, extra={"session": session})
            self._warm.pop(session, None)
            self.faults[session] = str(error)
            self._hub.break_off(session, Unavailable(str(error)))
        except Exception as error:
            log.exception("the worker failed", extra={"session": session})
            self._warm.pop(session, None)
            self._hub.break_off(session, Unavailable(f"internal error: {type(error).__name__}: {error}"))

    async def _carry_until_idle(self, session: str, carrying: _Carrying) -> None:
        turn = await self._open(session, carrying)
        turn.leaving = carrying.scope if self._is_leaving else None
        is_taken_up = turn.state().is_open
        while True:
            carrying.again = False
            await turn.refresh()
            match self._decide(turn.state()):
                case Idle():
                    break
                case Wait():
                    # The runtime knows whether anyone can answer; it is asked once, and again when something was added.
                    head = turn.state().head
                    await self._carry_turn(turn)
                    if turn.state().head == head:
                        break
                case Begin():
                    turn.is_inherited = False
                    await turn.record(await self._begins(turn))
                    point("J4")
                case Stop(reason=reason):
                    log.warning("a turn was stopped: %s", reason, extra={"session": session})
                    await turn.record(Ended("failed", turn.state().head, reason))
                case Finish() if is_taken_up and turn.state().runtime not in ("", NATIVE):
                    # Words without calls may not be the last ones of another program: it is asked.
                    is_taken_up = False
                    await self._carry_turn(turn)
                case Finish():
                    point("J12")
                    await turn.record(Ended("done", turn.state().saw))
                case _:
                    is_taken_up = False
                    await self._carry_turn(turn)
        self.faults.pop(session, None)
        self._warm[session] = turn
        while len(self._warm) > WARM:
            self._warm.popitem(last=False)

    def _decide(self, state: State) -> Step:
        """By our limits; a runtime of others counts its own steps."""
        own = self._limits.bounds
        return decide(state, {}, own if state.runtime in ("", NATIVE) else replace(own, steps=maxsize, repeats=maxsize))

    async def _begins(self, turn: OpenTurn) -> Started:
        """What is amiss with a runtime shows when it is to carry the turn."""
        name = turn.state().settings.get("runtime") or self._limits.runtime
        try:
            return await (await self._runtimes(name)).begins(turn)
        except Refused:
            return Started(name)

    async def _runtime(self, name: str) -> Runtime:
        try:
            return await self._runtimes(name)
        except Refused as error:
            raise NotHere(str(error)) from error

    async def _open(self, session: str, carrying: _Carrying) -> OpenTurn:
        if turn := self._warm.pop(session, None):
            carrying.turn = turn
            return turn
        try:
            claim = await self._store.claim(session)
        except (Refused, Unavailable) as error:
            raise NotKept(str(error)) from error
        turn = carrying.turn = OpenTurn(self._store, self._hub, claim.session, claim.generation)
        await turn.refresh()
        if turn.state().is_open:
            head, why = self.left.get(session, (0, None))
            if why and head == turn.state().head:
                raise why
            turn.is_inherited = True
            await turn.record(Resumed(crashed=not claim.handed_over))
        return turn

    async def _carry_turn(self, turn: OpenTurn) -> None:
        """Hand the open turn to its runtime. It has come to rest, or has ended, when this returns."""
        before = turn.state()
        try:
            with anyio.move_on_after(self._limits.seconds) as deadline:
                await (await self._runtime(before.runtime)).carry(turn)
        except (Refused, Unavailable) as error:
            if isinstance(error, NotHere) and turn.is_inherited:
                log.warning("a turn is left to another process: %s", error, extra={"session": turn.session.id})
                self.left[turn.session.id] = (turn.state().head, error)
                raise
            log.warning("a turn failed: %s", error, extra={"session": turn.session.id})
            await turn.record(Ended("failed", turn.state().head, str(error)))
            return
        except (Stale, NotKept):
            raise
        except Exception as error:
            log.exception("a runtime failed", extra={"session": turn.session.id})
            await turn.record(Ended("failed", turn.state().head, f"internal error: {type(error).__name__}: {error}"))
            return
        if deadline.cancelled_caught:
            turn.is_behind = True
            await turn.refresh()
        state = turn.state()
        if deadline.cancelled_caught:
            reason = f"stopped after {self._limits.seconds:g} s, the limit of one turn (limits.seconds)"
            await turn.record(Ended("failed", state.head, reason))
        elif state.head == before.head and not isinstance(self._decide(state), Finish | Stop | Wait):
            await turn.record(Ended("failed", state.head, "the runtime stopped without a reply"))
