"""A turn in memory. It passes the same contract suite as the engine's."""

import anyio

from outrider.core.events import Body, Delta, Entry, Input, Started
from outrider.core.plan import State, fold
from outrider.core.prompt import Transcript
from outrider.core.store_port import Session


class MemoryTurn:
    """A `Turn` with one input, whose journal is a list."""

    def __init__(self, runtime: str = "native", text: str = "go") -> None:
        self.session = Session("s", "p", "s", "/w", "", 0, 0, 0, is_open=True, has_work=True)
        self.entries: list[Entry] = []
        self.deltas: list[Delta] = []
        self._keys: set[str] = set()
        self._visible = 0
        """Entries that the turn has read."""
        self._added = anyio.Event()
        self.append(Input(text))
        self.append(Started(runtime))
        self._visible = 2

    def append(self, body: Body) -> Entry:
        """Add an entry as another writer does."""
        self.entries.append(Entry(len(self.entries) + 1, 0, body))
        self._added.set()
        return self.entries[-1]

    @property
    def is_superseded(self) -> bool:
        return False

    def state(self) -> State:
        return fold(self.entries[: self._visible])

    def transcript(self) -> Transcript:
        transcript = Transcript()
        transcript.add(self.entries[: self._visible])
        return transcript

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        if key in self._keys:
            return None
        self._keys |= {key} if key else set()
        self.entries.append(Entry(len(self.entries) + 1, 0, body))
        self._visible = len(self.entries)
        return self.entries[-1]

    def emit(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def refresh(self) -> None:
        self._visible = len(self.entries)

    async def wait_for_entries(self) -> None:
        await self._added.wait()
        self._added = anyio.Event()
        await self.refresh()
