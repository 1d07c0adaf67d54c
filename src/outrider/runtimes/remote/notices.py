"""Watcher for the background work of another Outrider: a notice there, in an idle session, becomes an input here.

Between turns, the sessions that had one lately are checked every `remote.poll` seconds, until no task of theirs is
open. At most `MAX_WATCHED` sessions are watched; a notice in another one is read with its next turn.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable

import anyio
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Input
from outrider.core.ports import SessionBindings
from outrider.core.types import REMOTE
from outrider.runtimes.remote.errors import RemoteFailed
from outrider.runtimes.remote.outrider_api import FarOutrider

MAX_WATCHED = 64
_log = logging.getLogger("outrider.remote")


class WatchedSession(Struct, frozen=True):
    """An idle session and its counterpart on the other Outrider."""

    session: str
    person: str
    far_session: str
    cursor: int
    """The last entry there that is known here."""


def entry_key(far_session: str, seq: int) -> str:
    """The key of the entry here that this entry there becomes."""
    return f"{REMOTE}/{far_session}/{seq}"


def our_notice(notice: Input, person: str, address: str, redact: Callable[[str], str]) -> Input:
    """A notice of the other side as it is recorded here."""
    return Input(redact(notice.text), notice.source, person=person, address=address, notice=notice.notice)


class NoticeWatcher:
    """Checks watched sessions one after another, with a pause between two rounds. Never more than one request."""

    def __init__(
        self, far: FarOutrider, bindings: SessionBindings, redact: Callable[[str], str], interval: float
    ) -> None:
        self._far = far
        self._bindings = bindings
        self._redact = redact
        self._interval = interval
        self._watched: OrderedDict[str, WatchedSession] = OrderedDict()
        self._added = anyio.Event()

    def watch(self, watched: WatchedSession) -> None:
        """From now on, until no task is open there."""
        self._watched.pop(watched.session, None)
        self._watched[watched.session] = watched
        while len(self._watched) > MAX_WATCHED:
            self._watched.popitem(last=False)
        self._added.set()

    def forget(self, session: str) -> None:
        """A turn of this session runs, and reads what is new there itself."""
        self._watched.pop(session, None)

    async def run(self) -> None:
        while True:
            if not self._watched:
                self._added = anyio.Event()
                await self._added.wait()
            await anyio.sleep(self._interval)
            for watched in tuple(self._watched.values()):
                try:
                    await self._check(watched)
                except (RemoteFailed, Refused, Unavailable) as error:
                    _log.info("no news from the other side: %s", error, extra={"session": watched.session})
                    break

    async def _check(self, watched: WatchedSession) -> None:
        far = await self._far.find_session(watched.far_session)
        if far is None:
            self._drop(watched)
            return
        has_open_tasks = await self._far.has_open_tasks(watched.far_session)
        entries = await self._far.entries(far.id, watched.cursor) if far.head > watched.cursor else ()
        notices = [
            (entry.seq, entry.body)
            for entry in entries
            if isinstance(entry.body, Input) and entry.body.source != "person"
        ]
        if self._watched.get(watched.session) is not watched:
            return  # A turn has started meanwhile.
        address = await self._bindings.notice_address(watched.session) if notices else ""
        for seq, notice in notices:
            body = our_notice(notice, watched.person, address, self._redact)
            await self._bindings.notify(watched.session, body, entry_key(far.id, seq))
        if notices or not has_open_tasks:
            self._drop(watched)  # The turn that reads a notice has it watched again.
        elif entries:
            self._watched[watched.session] = replace(watched, cursor=entries[-1].seq)

    def _drop(self, watched: WatchedSession) -> None:
        if self._watched.get(watched.session) is watched:
            del self._watched[watched.session]
