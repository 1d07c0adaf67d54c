"""One session as its worker sees it: state and transcript, grown with every entry and kept warm between turns."""

from collections.abc import Sequence

from anyio import CancelScope, Event
from anyio.lowlevel import checkpoint_if_cancelled

from outrider.core.errors import Refused, Unavailable, WriteFailed
from outrider.core.events import Body, Delta, Ended, Entry, Reply, Result
from outrider.core.plan import Finish, State, decide, fold
from outrider.core.prompt import Transcript
from outrider.core.store_port import Session, Store
from outrider.engine.event_hub import EventHub, LiveDelta
from outrider.system.failpoints import failpoint


class OpenTurn:
    """The `Turn` port over the store. Holds the claim its writes are made under."""

    def __init__(self, store: Store, hub: EventHub, session: Session, generation: int) -> None:
        self.session = session
        self.generation = generation
        self.needs_refresh = True
        """Somebody else wrote to the journal since we last read it."""
        self._entries_added = Event()
        self.resumed = False
        """Another process began it, or this one before it lost its place."""
        self.superseded = False
        """The session moved on: nothing of this turn may be shown any more."""
        self.drain_scope: CancelScope | None = None
        """Set when whoever carries this is about to go: cancelled where one step ends and the next would begin."""
        self._partial_parts: list[str] = []
        self._partial_length = 0
        self._store = store
        self._hub = hub
        self._state = State()
        self._transcript = Transcript()

    @property
    def partial(self) -> str:
        """What the model has said of the reply it is writing."""
        return "".join(self._partial_parts)

    def _clear_partial(self) -> None:
        self._partial_parts, self._partial_length = [], 0

    def state(self) -> State:
        return self._state

    def transcript(self) -> Transcript:
        return self._transcript

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        try:
            entry = await self._store.append(self.session.id, body, self.generation, key)
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error
        if isinstance(body, Reply | Ended):
            self._clear_partial()
        if entry is not None and entry.seq == self._state.head + 1:
            self._apply_entries([entry])
        else:
            self.needs_refresh = True
            await self._catch_up()
        self._hub.publish(self.session.id, entry)
        if isinstance(body, Result):
            failpoint("result_recorded")
        if isinstance(body, Reply | Result | Ended):
            await self._drain_if_requested()
        return entry

    async def _drain_if_requested(self) -> None:
        """The step is over. What is done is still ended here; what would go on is left to the next owner."""
        if self.drain_scope and not isinstance(decide(self._state, {}), Finish):
            self.drain_scope.cancel()
            await checkpoint_if_cancelled()

    def emit(self, delta: Delta) -> None:
        if self.superseded:
            return
        offset = self._partial_length
        if delta.kind == "text":
            self._partial_parts.append(delta.text)
            self._partial_length += len(delta.text)
        elif delta.kind == "reset":
            self._clear_partial()
        self._hub.publish(self.session.id, LiveDelta(delta, self._state.head, offset))

    def notify(self) -> None:
        """Somebody else wrote to the journal."""
        self.needs_refresh = True
        self._entries_added.set()

    async def wait_for_entries(self) -> None:
        await self._entries_added.wait()
        self._entries_added = Event()
        await self.refresh()

    async def refresh(self) -> None:
        await self._drain_if_requested()
        await self._catch_up()

    async def _catch_up(self) -> None:
        if not self.needs_refresh:
            return
        self.needs_refresh = False
        try:
            self._apply_entries(await self._store.read(self.session.id, self._state.head))
        except (Refused, Unavailable) as error:
            raise WriteFailed(str(error)) from error

    def _apply_entries(self, entries: Sequence[Entry]) -> None:
        self._state = fold(entries, self._state)
        self._transcript.add(entries)
