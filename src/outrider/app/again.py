"""Turns that stand still because nothing could be written down: taken up again by and by, once there is room."""

import logging
import shutil
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import Store
from outrider.engine.worker import Worker

log = logging.getLogger("outrider.again")

FIRST = 1.0
LONGEST = 30.0
_ROOM = 256 * 1024
"""Bytes that must be free: what a model says is paid for, and lost when it cannot be kept."""


class Again:
    """Wakes such sessions after a second, and then ever less often."""

    def __init__(self, store: Store, worker: Worker, home: Path, group: TaskGroup) -> None:
        self._store = store
        self._worker = worker
        self._home = home
        self._group = group
        self._pauses: dict[str, float] = {}
        self._waiting: set[str] = set()

    def add(self, session: str) -> None:
        """It stands still now."""
        self._pauses[session] = min(LONGEST, self._pauses.get(session, FIRST / 2) * 2)
        if session not in self._waiting:
            self._waiting.add(session)
            self._group.start_soon(self._try, session)

    def drop(self, session: str) -> None:
        """It has come to rest."""
        self._pauses.pop(session, None)

    async def _try(self, session: str) -> None:
        while True:
            await anyio.sleep(self._pauses.get(session, FIRST))
            try:
                if shutil.disk_usage(self._home).free >= _ROOM:
                    is_open = session in await self._store.waiting()
                    break
            except (Refused, Unavailable, OSError) as error:
                log.debug("not yet: %s", error, extra={"session": session})
            self._pauses[session] = min(LONGEST, self._pauses.get(session, FIRST) * 2)
        self._waiting.discard(session)
        if is_open:
            log.info("trying again to go on with a turn", extra={"session": session})
            self._worker.wake(session)
        else:
            self._worker.faults.pop(session, None)
