"""Live event streams of sessions: entries from the store, deltas from memory.

A slow follower loses deltas, never entries, and never slows the turn that it follows.
"""

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import anyio

from outrider.core.events import Delta, Ended, Entry, Event, Reply
from outrider.core.store_port import Store

BUFFER = 256
PAGE = 100
"""Entries read at once, so that a follower who stops reading a long journal does not hold all of it in memory."""
FELL_BEHIND = Delta("fell behind", "reset")
"""Sent to a follower in place of the deltas that it was too slow for; it reads the rest of that reply as an entry."""


class LiveDelta(NamedTuple):
    """A delta and its position: after which entry, and after how many characters of the reply being written."""

    delta: Delta
    head: int
    offset: int


class _Follower:
    """What one follower has not read yet. `None` says that the journal grew; an entry, that it grew by that entry."""

    def __init__(self, error: Exception | None) -> None:
        self.queue: deque[LiveDelta | Entry | None] = deque([None])
        self.error = error
        self._wake = anyio.Event()
        self._has_reply_start = False
        """Whether it received the reply being written from its first character: half a reply is useless."""

    def push(self, event: LiveDelta | Entry | None) -> None:
        if isinstance(event, LiveDelta) and event.delta.kind == "text":
            self._has_reply_start = self._has_reply_start or not event.offset
            if not self._has_reply_start:
                return
        if len(self.queue) >= BUFFER:
            newest = next(one for one in (event, *reversed(self.queue)) if isinstance(one, LiveDelta))
            self.queue.clear()
            self.queue.extend([None, LiveDelta(FELL_BEHIND, newest.head, 0)])
            self._has_reply_start = False
        elif isinstance(event, LiveDelta) or not self.queue or isinstance(self.queue[-1], LiveDelta):
            self.queue.append(event)
        else:
            self.queue[-1] = None  # several entries in a row are read from the store, not queued here
        self._wake.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._wake.set()

    async def wait(self) -> None:
        """Wait until there is something to read, or an error."""
        self._wake = anyio.Event()
        if not self.queue:
            await self._wake.wait()


class EventHub:
    """Passes the events of a session to its followers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: defaultdict[str, set[_Follower]] = defaultdict(set)
        self._closed_with: Exception | None = None

    def publish(self, session: str, event: LiveDelta | Entry | None = None) -> None:
        """Pass on a delta, or an entry that is in the store; None says that the journal grew."""
        for follower in self._followers.get(session, ()):
            follower.push(event)

    def fail_followers(self, session: str, error: Exception) -> None:
        """Raise this in every follower: no entry can report it, because the journal cannot be written."""
        for follower in self._followers.get(session, ()):
            follower.fail(error)

    def close(self, error: Exception) -> None:
        """Raise this in every present and future follower, after it has read all entries."""
        self._closed_with = error
        for session in tuple(self._followers):
            self.fail_followers(session, error)

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every entry after this one, once and in order, and the deltas in between, until it is closed."""
        follower, replied = _Follower(self._closed_with), 0
        self._followers[session].add(follower)
        try:
            while True:
                while follower.queue:
                    if isinstance(event := follower.queue.popleft(), LiveDelta):
                        if event.head >= replied:  # else its whole reply was read already
                            yield event.delta
                        continue
                    is_more = True
                    while is_more:
                        page = await self._page(session, after, event)
                        for entry in page:
                            after = entry.seq
                            replied = after if isinstance(entry.body, Reply | Ended) else replied
                            yield entry
                        is_more = len(page) == PAGE
                if follower.error:
                    raise follower.error
                await follower.wait()
        finally:
            self._followers[session].discard(follower)
            if not self._followers[session]:
                del self._followers[session]

    async def _page(self, session: str, after: int, entry: Entry | None) -> Sequence[Entry]:
        """The entries after `after`: the new entry itself when it is the next one, else from the store."""
        if entry and entry.seq <= after + 1:
            return [entry] if entry.seq > after else []
        return await self._store.read(session, after, PAGE)
