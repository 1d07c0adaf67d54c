"""Turns that stand still because nothing could be written down: taken up again by and by, once there is room."""

import logging
import shutil
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import Store
from outrider.engine.worker import Worker

retry_log = logging.getLogger("outrider.again")

FIRST_RETRY = 1.0
LONGEST_RETRY = 30.0
_FREE_BYTES_NEEDED = 256 * 1024
"""Bytes that must be free: what a model says is paid for, and lost when it cannot be kept."""


class StalledSessions:
    """Wakes such sessions after a second, and then ever less often."""

    def __init__(self, store: Store, worker: Worker, home: Path, group: TaskGroup) -> None:
        self._store = store
        self._worker = worker
        self._home = home
        self._group = group
        self._pauses: dict[str, float] = {}
        self._retrying: set[str] = set()

    def add(self, session: str) -> None:
        """It stands still now."""
        self._pauses[session] = min(LONGEST_RETRY, self._pauses.get(session, FIRST_RETRY / 2) * 2)
        if session not in self._retrying:
            self._retrying.add(session)
            self._group.start_soon(self._retry, session)

    def drop(self, session: str) -> None:
        """It has come to rest."""
        self._pauses.pop(session, None)

    async def _retry(self, session: str) -> None:
        while True:
            await anyio.sleep(self._pauses.get(session, FIRST_RETRY))
            try:
                if shutil.disk_usage(self._home).free >= _FREE_BYTES_NEEDED:
                    is_open = session in await self._store.sessions_with_work()
                    break
            except (Refused, Unavailable, OSError) as error:
                retry_log.debug("not yet: %s", error, extra={"session": session})
            self._pauses[session] = min(LONGEST_RETRY, self._pauses.get(session, FIRST_RETRY) * 2)
        self._retrying.discard(session)
        if is_open:
            retry_log.info("trying again to go on with a turn", extra={"session": session})
            self._worker.wake(session)
        else:
            self._worker.stalled.pop(session, None)
