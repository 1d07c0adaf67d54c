"""One session as its worker sees it: state and transcript, grown with every entry and kept warm between turns."""

from collections.abc import Sequence

from anyio import CancelScope, Event
from anyio.lowlevel import checkpoint_if_cancelled

from outrider.config.fail import point
from outrider.core.errors import NotKept, Refused, Unavailable
from outrider.core.events import Body, Delta, Ended, Entry, Reply, Result
from outrider.core.plan import Finish, State, decide, fold
from outrider.core.ports import Session, Store
from outrider.core.prompt import Transcript
from outrider.engine.follow import Hint, Hub


class OpenTurn:
    """The `Turn` port over the store. Holds the claim its writes are made under."""

    def __init__(self, store: Store, hub: Hub, session: Session, generation: int) -> None:
        self.session = session
        self.generation = generation
        self.is_behind = True
        """Somebody else wrote to the journal since we last read it."""
        self._news = Event()
        self.is_inherited = False
        """Another process began it, or this one before it lost its place."""
        self.is_stale = False
        """The session moved on: nothing of this turn may be shown any more."""
        self.leaving: CancelScope | None = None
        """Set when whoever carries this is about to go: cancelled where one step ends and the next would begin."""
        self._said: list[str] = []
        self._length = 0
        self._store = store
        self._hub = hub
        self._state = State()
        self._transcript = Transcript()

    @property
    def partial(self) -> str:
        """What the model has said of the reply it is writing."""
        return "".join(self._said)

    def _forget(self) -> None:
        self._said, self._length = [], 0

    def state(self) -> State:
        return self._state

    def transcript(self) -> Transcript:
        return self._transcript

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        try:
            entry = await self._store.append(self.session.id, body, self.generation, key)
        except (Refused, Unavailable) as error:
            raise NotKept(str(error)) from error
        if isinstance(body, Reply | Ended):
            self._forget()
        if entry is not None and entry.seq == self._state.head + 1:
            self._take([entry])
        else:
            self.is_behind = True
            await self._catch_up()
        self._hub.tell(self.session.id, entry)
        if isinstance(body, Result):
            point("J9")
        if isinstance(body, Reply | Result | Ended):
            await self._leave_if_told()
        return entry

    async def _leave_if_told(self) -> None:
        """The step is over. What is done is still ended here; what would go on is left to the next owner."""
        if self.leaving and not isinstance(decide(self._state, {}), Finish):
            self.leaving.cancel()
            await checkpoint_if_cancelled()

    def emit(self, delta: Delta) -> None:
        if self.is_stale:
            return
        offset = self._length
        if delta.kind == "text":
            self._said.append(delta.text)
            self._length += len(delta.text)
        elif delta.kind == "reset":
            self._forget()
        self._hub.tell(self.session.id, Hint(delta, self._state.head, offset))

    def hint(self) -> None:
        """Somebody else wrote to the journal."""
        self.is_behind = True
        self._news.set()

    async def news(self) -> None:
        await self._news.wait()
        self._news = Event()
        await self.refresh()

    async def refresh(self) -> None:
        await self._leave_if_told()
        await self._catch_up()

    async def _catch_up(self) -> None:
        if not self.is_behind:
            return
        self.is_behind = False
        try:
            self._take(await self._store.read(self.session.id, self._state.head))
        except (Refused, Unavailable) as error:
            raise NotKept(str(error)) from error

    def _take(self, entries: Sequence[Entry]) -> None:
        self._state = fold(entries, self._state)
        self._transcript.add(entries)
