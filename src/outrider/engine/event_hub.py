"""One stream for every surface: entries that are in the store, deltas from memory.

A slow follower loses deltas, never entries; it never slows the turn it watches.
"""

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import anyio

from outrider.core.events import Delta, Ended, Entry, Event, Reply
from outrider.core.store_port import Store

BUFFER = 256
PAGE = 100
"""Entries read at once, so that a reader who stops in the middle of a long journal does not hold all of it."""
FELL_BEHIND = Delta("fell behind", "reset")
"""Said to a follower in place of the deltas it was too slow for; it reads the rest of that reply as an entry."""


class LiveDelta(NamedTuple):
    """A delta, and where it belongs: after which entry, and after how many characters of the reply being written."""

    delta: Delta
    head: int
    offset: int


class _Follower:
    """What one follower has not read yet. A `None` says that the journal grew; an entry, that it grew by this one."""

    def __init__(self) -> None:
        self.queue: deque[LiveDelta | Entry | None] = deque([None])
        self.wake = anyio.Event()
        self.error: Exception | None = None
        self._has_reply_start = False
        """Whether it has heard the reply being written from its beginning: half a reply is of no use to anyone."""

    def push(self, news: LiveDelta | Entry | None) -> None:
        if isinstance(news, LiveDelta) and news.delta.kind == "text":
            self._has_reply_start = self._has_reply_start or not news.offset
            if not self._has_reply_start:
                return
        if len(self.queue) >= BUFFER:
            newest = next(one for one in (news, *reversed(self.queue)) if isinstance(one, LiveDelta))
            self.queue.clear()
            self.queue.extend([None, LiveDelta(FELL_BEHIND, newest.head, 0)])
            self._has_reply_start = False
        elif isinstance(news, LiveDelta) or not self.queue or isinstance(self.queue[-1], LiveDelta):
            self.queue.append(news)
        else:
            self.queue[-1] = None  # several entries in a row wait in the store, not here
        self.wake.set()


class EventHub:
    """Passes on what happens in a session to whoever follows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: defaultdict[str, set[_Follower]] = defaultdict(set)
        self._closed_with: Exception | None = None

    def publish(self, session: str, news: LiveDelta | Entry | None = None) -> None:
        """Pass on a delta or an entry that is in the store; with none, say that the journal grew."""
        for watcher in self._followers.get(session, ()):
            watcher.push(news)

    def fail_followers(self, session: str, error: Exception) -> None:
        """Raise this in every follower: the journal itself cannot be written, so no entry will ever tell them."""
        for watcher in self._followers.get(session, ()):
            watcher.error = error
            watcher.wake.set()

    def close(self, error: Exception) -> None:
        """Raise this in every follower, now and from now on, once it has read what there is."""
        self._closed_with = error
        for session in tuple(self._followers):
            self.fail_followers(session, error)

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every entry after this one, once and in order, and the deltas in between; until the caller closes it."""
        watcher, replied = _Follower(), 0
        watcher.error = self._closed_with
        self._followers[session].add(watcher)
        try:
            while True:
                while watcher.queue:
                    if isinstance(news := watcher.queue.popleft(), LiveDelta):
                        if news.head >= replied:  # else its whole reply has been read already
                            yield news.delta
                        continue
                    is_more = True
                    while is_more:
                        page = await self._page(session, after, news)
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
            self._followers[session].discard(watcher)
            if not self._followers[session]:
                del self._followers[session]

    async def _page(self, session: str, after: int, news: Entry | None) -> Sequence[Entry]:
        """What comes after this entry: the news itself when nothing is between, else what the store has."""
        if news and news.seq <= after + 1:
            return [news] if news.seq > after else []
        return await self._store.read(session, after, PAGE)
