"""One stream for every surface: entries from the store, deltas from memory.

A slow follower loses deltas, never entries; it never slows the turn it watches.
"""

from collections import defaultdict, deque
from collections.abc import AsyncGenerator

import anyio

from outrider.core.events import Delta, Event
from outrider.core.ports import Store

BUFFER = 256
BEHIND = Delta("fell behind", "reset")
"""Said to a follower in place of the deltas it was too slow for; the next ones may begin in the middle of a reply."""


class _Watcher:
    """What one follower has not read yet. A `None` says that the journal grew."""

    def __init__(self) -> None:
        self.queue: deque[Delta | None] = deque([None])
        self.wake = anyio.Event()
        self.error: Exception | None = None

    def push(self, hint: Delta | None) -> None:
        if len(self.queue) >= BUFFER:
            self.queue.clear()
            self.queue.extend([None, BEHIND])
        elif hint is not None or not self.queue or self.queue[-1] is not None:
            self.queue.append(hint)
        self.wake.set()


class Hub:
    """Passes on what happens in a session to whoever follows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: defaultdict[str, set[_Watcher]] = defaultdict(set)
        self._over: Exception | None = None

    def tell(self, session: str, delta: Delta | None = None) -> None:
        """Pass on a delta, or with none say that the journal grew."""
        for watcher in self._watchers.get(session, ()):
            watcher.push(delta)

    def break_off(self, session: str, error: Exception) -> None:
        """Raise this in every follower: the journal itself cannot be written, so no entry will ever tell them."""
        for watcher in self._watchers.get(session, ()):
            watcher.error = error
            watcher.wake.set()

    def close(self, error: Exception) -> None:
        """Raise this in every follower, now and from now on, once it has read what there is."""
        self._over = error
        for session in tuple(self._watchers):
            self.break_off(session, error)

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every entry after this one, once and in order, and the deltas in between; until the caller closes it."""
        watcher = _Watcher()
        watcher.error = self._over
        self._watchers[session].add(watcher)
        try:
            while True:
                while watcher.queue:
                    if (delta := watcher.queue.popleft()) is not None:
                        yield delta
                        continue
                    for entry in await self._store.read(session, after):
                        after = entry.seq
                        yield entry
                if watcher.error:
                    raise watcher.error
                watcher.wake = anyio.Event()
                if not watcher.queue:
                    await watcher.wake.wait()
        finally:
            self._watchers[session].discard(watcher)
            if not self._watchers[session]:
                del self._watchers[session]
