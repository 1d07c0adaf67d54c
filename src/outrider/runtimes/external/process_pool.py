"""Pool of external agent processes, shared by the sessions with the same key, reused by the next turn, ended when idle.

A process is ended when its idle timeout has passed, when it must end at once, when it is retired and no turn uses it
any more, when more than `max_idle` processes are idle, and with the task group of the pool. A retired process finishes
its turns while another one takes the new ones. Two processes never work on the same session: a session that has used a
retired process waits for its end, which is forced after `drain_timeout`.
"""

import logging
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Session
from outrider.system.files import create_marker
from outrider.system.processes import terminate_marked
from outrider.system.task_groups import background_group

MAX_IDLE = 4
DRAIN_TIMEOUT = 30.0
"""Seconds for which a session waits for other turns in a retired process that it has used."""
_MAX_PROCESSES = 4
"""Processes with the same key: one that takes turns, and retired ones that finish theirs."""
_log = logging.getLogger("outrider.processes")


class PoolKey(Struct, frozen=True):
    """What a process is shared by."""

    person: str
    workspace: str = ""
    """Empty for all workspaces."""


class PooledProcess(Protocol):
    """What the pool needs to know of a process."""

    @property
    def is_usable(self) -> bool:
        """Whether another turn may use it."""
        ...

    def retire(self) -> None:
        """Let no other turn use it."""
        ...

    async def wait_end_requested(self) -> None:
        """Wait until it has exited, or has to be ended at once, also when turns use it."""
        ...


P = TypeVar("P", bound=PooledProcess)
OpenProcess = Callable[[PoolKey, str], AbstractAsyncContextManager[P]]
"""Starts a process that is marked with this marker, ready for use, and ends it when the context is left."""


def key_by_workspace(session: Session) -> PoolKey:
    return PoolKey(session.person, session.workspace)


def key_by_person(session: Session) -> PoolKey:
    return PoolKey(session.person)


class _PoolEntry(Generic[P]):
    """A process and the turns that use it."""

    def __init__(self, process: P, slot: int) -> None:
        self.process = process
        self.slot = slot
        self.users = 0
        self.sessions: set[str] = set()
        """The ids of the sessions that have used it: it may have them open."""
        self.idle_since = 0.0
        self.changed = anyio.Event()
        self.end_requested = anyio.Event()
        self.closed = anyio.Event()

    def count_users(self, change: int) -> None:
        self.users += change
        self.idle_since = anyio.current_time()
        self.notify()

    def retire(self) -> None:
        self.process.retire()
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class ProcessPool(Generic[P]):
    """The processes of one runtime in one home."""

    def __init__(
        self,
        group: TaskGroup,
        open_process: OpenProcess[P],
        *,
        runtime: str,
        home: Path,
        idle_timeout: float,
        max_idle: int = MAX_IDLE,
        drain_timeout: float = DRAIN_TIMEOUT,
        key_of: Callable[[Session], PoolKey] = key_by_workspace,
    ) -> None:
        self._group = group
        self._open_process = open_process
        self._runtime = runtime
        self._home = home
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle
        self._drain_timeout = drain_timeout
        self._key_of = key_of
        self._marker_folder = home / runtime / "marks"
        """One file for each process that may be running, named by its marker."""
        self._entries: dict[PoolKey, list[_PoolEntry[P]]] = defaultdict(list)
        self._start_locks: WeakValueDictionary[PoolKey, anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, session: Session) -> AsyncGenerator[P]:
        """The process for this session, started if there is none. Raises what starting it raises."""
        key = self._key_of(session)
        entries = self._entries[key]
        for entry in [entry for entry in entries if session.id in entry.sessions and not entry.process.is_usable]:
            # No other process can open its sessions before it has ended.
            await self._end(entry)
        lock = self._start_locks.setdefault(key, anyio.Lock())
        async with lock:
            entry = next((entry for entry in entries if entry.process.is_usable), None)
            if entry is None:
                if len(entries) >= _MAX_PROCESSES:
                    await self._end(entries[0])
                entry = await self._group.start(self._run, key)
            entry.sessions.add(session.id)
            entry.count_users(1)
        try:
            yield entry.process
        finally:
            entry.count_users(-1)
            self._retire_excess()

    async def _end(self, entry: _PoolEntry[P]) -> None:
        """Wait until a retired process has finished its turns and exited; end it when that takes too long."""
        with anyio.move_on_after(self._drain_timeout):
            await entry.closed.wait()
            return
        _log.warning("a retired process of the runtime %s is ended with %d turns", self._runtime, entry.users)
        entry.end_requested.set()
        await entry.closed.wait()

    async def terminate_leftovers(self) -> None:
        """End the processes that an earlier owner of this home left running."""
        for file in await anyio.to_thread.run_sync(_list_files, self._marker_folder):
            try:
                if count := await terminate_marked(file.name):
                    _log.warning("ended %d leftover processes of the runtime %s", count, self._runtime)
            except Unavailable as error:
                # The file stays, so that the next owner tries again.
                _log.warning("leftover processes of the runtime %s still run: %s", self._runtime, error)
                continue
            except Refused as error:
                _log.warning("%s is not a marker: %s", file, error)
            file.unlink(missing_ok=True)

    def _retire_excess(self) -> None:
        entries = [entry for entries in self._entries.values() for entry in entries]
        idle = [entry for entry in entries if entry.process.is_usable and not entry.users]
        for entry in sorted(idle, key=lambda entry: entry.idle_since)[: max(0, len(idle) - self._max_idle)]:
            entry.retire()

    async def _run(self, key: PoolKey, *, task_status: TaskStatus[_PoolEntry[P]]) -> None:
        """Run a process until it is unneeded. Raises only before it is ready."""
        entries = self._entries[key]
        slot = next(slot for slot in count() if all(slot != entry.slot for entry in entries))
        marker = marker_of(self._runtime, self._home, key, slot)
        file = self._marker_folder / marker
        await anyio.to_thread.run_sync(create_marker, file)
        await terminate_marked(marker)
        entry: _PoolEntry[P] | None = None
        try:
            async with self._open_process(key, marker) as process:
                entry = _PoolEntry(process, slot)
                entries.append(entry)
                task_status.started(entry)
                try:
                    await self._wait_until_unneeded(entry)
                finally:
                    process.retire()
        except Unavailable as error:
            if entry is None:
                raise
            _log.warning("%s", error)
        finally:
            file.unlink(missing_ok=True)
            if entry:
                entries.remove(entry)
                entry.closed.set()

    async def _wait_until_unneeded(self, entry: _PoolEntry[P]) -> None:
        with anyio.CancelScope() as scope:
            async with background_group() as group:

                async def cancel_after(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    scope.cancel()

                group.start_soon(cancel_after, entry.process.wait_end_requested)
                group.start_soon(cancel_after, entry.end_requested.wait)
                while entry.users or entry.process.is_usable:
                    with anyio.move_on_after(math.inf if entry.users else self._idle_timeout):
                        await entry.changed.wait()
                        continue
                    if not entry.users:
                        # At once, so that no turn acquires it while this is left.
                        entry.process.retire()
                return


def marker_of(runtime: str, home: Path, key: PoolKey, slot: int = 0) -> str:
    """The marker of a process: the same whenever this home starts it, so that leftovers are recognized.

    `slot` tells apart the processes with the same key that run at the same time.
    """
    parts = (runtime, str(home), key.person, key.workspace, *([str(slot)] if slot else []))
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
