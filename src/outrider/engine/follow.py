"""One stream for every surface: entries from the store, deltas from memory.

A slow follower loses deltas, never entries; it never slows the turn it watches.
"""

from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

import anyio

from outrider.core.events import Delta, Ended, Event, Reply
from outrider.core.ports import Store

BUFFER = 256
PAGE = 100
"""Entries read at once, so that a reader who stops in the middle of a long journal does not hold all of it."""
BEHIND = Delta("fell behind", "reset")
"""Said to a follower in place of the deltas it was too slow for; it reads the rest of that reply as an entry."""


class Hint(NamedTuple):
    """A delta, and where it belongs: after which entry, and after how many characters of the reply being written."""

    delta: Delta
    head: int
    offset: int


class _Watcher:
    """What one follower has not read yet. A `None` says that the journal grew."""

    def __init__(self) -> None:
        self.queue: deque[Hint | None] = deque([None])
        self.wake = anyio.Event()
        self.error: Exception | None = None
        self._is_in_step = False
        """Whether it has heard the reply being written from its beginning: half a reply is of no use to anyone."""

    def push(self, hint: Hint | None) -> None:
        if hint and hint.delta.kind == "text":
            self._is_in_step = self._is_in_step or not hint.offset
            if not self._is_in_step:
                return
        if len(self.queue) >= BUFFER:
            newest = hint or next(lost for lost in reversed(self.queue) if lost)
            self.queue.clear()
            self.queue.extend([None, Hint(BEHIND, newest.head, 0)])
            self._is_in_step = False
        elif hint is not None or not self.queue or self.queue[-1] is not None:
            self.queue.append(hint)
        self.wake.set()


class Hub:
    """Passes on what happens in a session to whoever follows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: defaultdict[str, set[_Watcher]] = defaultdict(set)
        self._over: Exception | None = None

    def tell(self, session: str, hint: Hint | None = None) -> None:
        """Pass on a delta, or with none say that the journal grew."""
        for watcher in self._watchers.get(session, ()):
            watcher.push(hint)

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
        watcher, replied = _Watcher(), 0
        watcher.error = self._over
        self._watchers[session].add(watcher)
        try:
            while True:
                while watcher.queue:
                    if (hint := watcher.queue.popleft()) is not None:
                        if hint.head >= replied:  # else its whole reply has been read already
                            yield hint.delta
                        continue
                    is_more = True
                    while is_more:
                        page = await self._store.read(session, after, PAGE)
                        for entry in page:
                            after = entry.seq
                            replied = after if isinstance(entry.body, Reply | Ended) else replied
                            yield entry
                        is_more = len(page) == PAGE
                if watcher.error:
                    raise watcher.error
                watcher.wake = anyio.Event()
                if not watcher.queue:
                    await watcher.wake.wait()
        finally:
            self._watchers[session].discard(watcher)
            if not self._watchers[session]:
                del self._watchers[session]
