"""The `Turn` port over the store: state and transcript of one session, kept in memory between turns."""

from collections.abc import Sequence

from anyio import CancelScope, Event, current_time
from anyio.lowlevel import checkpoint_if_cancelled

from outrider.core.errors import Refused, Unavailable, WriteFailed
from outrider.core.events import Body, Delta, Ended, Entry, Reply, Result, Resumed, Started
from outrider.core.plan import Finish, State, decide, fold
from outrider.core.prompt import Transcript
from outrider.core.store_port import Session, Store
from outrider.engine.event_hub import EventHub, LiveDelta
from outrider.system.failpoints import failpoint


class OpenTurn:
    """A claimed session. All its writes are made under the generation of that claim."""

    def __init__(self, store: Store, hub: EventHub, session: Session, generation: int) -> None:
        self.session = session
        self.generation = generation
        self._needs_refresh = True
        """Another writer has appended to the journal since it was last read."""
        self._entries_added = Event()
        self._is_resumed = False
        self._is_superseded = False
        self._drain_scope: CancelScope | None = None
        self._partial_parts: list[str] = []
        self._partial_length = 0
        self._obstacle = ""
        self._last_activity = current_time()
        self._store = store
        self._hub = hub
        self._state = State()
        self._transcript = Transcript()

    @property
    def is_resumed(self) -> bool:
        """Whether the open turn was started under an earlier claim."""
        return self._is_resumed

    @property
    def partial(self) -> str:
        """The text so far of the reply that the model is writing."""
        return "".join(self._partial_parts)

    @property
    def last_activity(self) -> float:
        """When the runtime reported something last, on the clock of the event loop."""
        return self._last_activity

    @property
    def obstacle(self) -> str:
        """Why the runtime had to begin its reply again, as long as nothing has come of that; or empty."""
        return self._obstacle

    def state(self) -> State:
        return self._state

    def transcript(self) -> Transcript:
        return self._transcript

    async def start(self, started: Started) -> None:
        """Record the start of a new turn."""
        self._is_resumed = False
        await self.record(started)

    async def resume(self, *, crashed: bool) -> None:
        """Record that the open turn continues under this claim."""
        self._is_resumed = True
        await self.record(Resumed(crashed=crashed))

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        try:
            entry = await self._store.append(self.session.id, body, self.generation, key)
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error
        self._last_activity = current_time()
        if isinstance(body, Reply | Ended):
            self._clear_partial()
            self._obstacle = ""
        if entry is not None and entry.seq == self._state.head + 1:
            self._apply_entries([entry])
        else:
            self._needs_refresh = True
            await self._catch_up()
        self._hub.publish(self.session.id, entry)
        if isinstance(body, Result):
            failpoint("result_recorded")
        if isinstance(body, Reply | Result | Ended):
            await self._stop_if_draining()
        return entry

    def emit(self, delta: Delta) -> None:
        if self._is_superseded:
            return
        offset = self._partial_length
        if delta.kind == "text":
            self._partial_parts.append(delta.text)
            self._partial_length += len(delta.text)
        elif delta.kind == "reset":
            self._clear_partial()
        if delta.kind != "note":
            self._obstacle = delta.text if delta.kind == "reset" else ""
        self._last_activity = current_time()
        self._hub.publish(self.session.id, LiveDelta(delta, self._state.head, offset))

    def _clear_partial(self) -> None:
        self._partial_parts, self._partial_length = [], 0

    @property
    def is_superseded(self) -> bool:
        return self._is_superseded

    def supersede(self) -> None:
        """Publish no more deltas: the session was stopped."""
        self._is_superseded = True

    def set_drain_scope(self, scope: CancelScope | None) -> None:
        """Cancel `scope` at the end of the current step, because the process is about to end; None: continue."""
        self._drain_scope = scope

    async def _stop_if_draining(self) -> None:
        """A finished turn is still ended in this process; what remains of any other is left to the next owner."""
        if self._drain_scope and not isinstance(decide(self._state, {}), Finish):
            self._drain_scope.cancel()
            await checkpoint_if_cancelled()

    def notify(self) -> None:
        """Another writer has appended to the journal."""
        self._needs_refresh = True
        self._entries_added.set()

    async def wait_for_entries(self) -> None:
        await self._entries_added.wait()
        self._entries_added = Event()
        await self.refresh()

    async def refresh(self) -> None:
        await self._stop_if_draining()
        await self._catch_up()

    async def _catch_up(self) -> None:
        if not self._needs_refresh:
            return
        self._needs_refresh = False
        try:
            self._apply_entries(await self._store.read(self.session.id, self._state.head))
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error

    def _apply_entries(self, entries: Sequence[Entry]) -> None:
        self._state = fold(entries, self._state)
        self._transcript.add(entries)
