"""Pool of external agent processes: one for each person and workspace, reused by the next turn, ended when idle.

A process is ended when its idle timeout has passed, when it retires itself, when more than `max_idle` processes are
idle, and with the task group of the pool. Before a process starts, everything that an earlier one for the same person
and workspace left running is ended, so two processes never work on the same sessions.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import blake2b
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
_log = logging.getLogger("outrider.processes")


class PoolKey(Struct, frozen=True):
    """What a process is shared by."""

    person: str
    workspace: str


class PooledProcess(Protocol):
    """What the pool needs to know of a process."""

    @property
    def is_usable(self) -> bool:
        """Whether another turn may use it."""
        ...

    def retire(self) -> None:
        """Let no other turn use it, and have the pool end it."""
        ...

    async def wait_retired(self) -> None: ...


P = TypeVar("P", bound=PooledProcess)
OpenProcess = Callable[[PoolKey, str], AbstractAsyncContextManager[P]]
"""Starts a process that is marked with this marker, ready for use, and ends it when the context is left."""


class _PoolEntry(Generic[P]):
    """A process and how many turns use it."""

    def __init__(self, process: P) -> None:
        self.process = process
        self.users = 0
        self.idle_since = 0.0
        self.changed = anyio.Event()
        self.closed = anyio.Event()

    def count_users(self, change: int) -> None:
        self.users += change
        self.idle_since = anyio.current_time()
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
    ) -> None:
        self._group = group
        self._open_process = open_process
        self._runtime = runtime
        self._home = home
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle
        self._marker_folder = home / runtime / "marks"
        """One file for each process that may be running, named by its marker."""
        self._entries: dict[PoolKey, _PoolEntry[P]] = {}
        self._start_locks: WeakValueDictionary[PoolKey, anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, session: Session) -> AsyncGenerator[P]:
        """The process for this session, started if there is none. Raises what starting it raises."""
        key = PoolKey(session.person, session.workspace)
        lock = self._start_locks.setdefault(key, anyio.Lock())
        async with lock:
            entry = self._entries.get(key)
            if entry and not entry.process.is_usable:
                # No other process can open its sessions before it has ended.
                await entry.closed.wait()
                entry = None
            if entry is None:
                entry = await self._group.start(self._run, key)
            entry.count_users(1)
        try:
            yield entry.process
        finally:
            entry.count_users(-1)
            self._retire_excess()

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
        idle = [entry for entry in self._entries.values() if entry.process.is_usable and not entry.users]
        for entry in sorted(idle, key=lambda entry: entry.idle_since)[: max(0, len(idle) - self._max_idle)]:
            entry.process.retire()

    async def _run(self, key: PoolKey, *, task_status: TaskStatus[_PoolEntry[P]]) -> None:
        """Run a process until it is retired or idle for too long. Raises only before it is ready."""
        marker = marker_of(self._runtime, self._home, key)
        file = self._marker_folder / marker
        await anyio.to_thread.run_sync(create_marker, file)
        await terminate_marked(marker)
        entry: _PoolEntry[P] | None = None
        try:
            async with self._open_process(key, marker) as process:
                entry = self._entries[key] = _PoolEntry(process)
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
                del self._entries[key]
                entry.closed.set()

    async def _wait_until_unneeded(self, entry: _PoolEntry[P]) -> None:
        with anyio.CancelScope() as scope:
            async with background_group() as group:

                async def cancel_when_retired() -> None:
                    await entry.process.wait_retired()
                    scope.cancel()

                group.start_soon(cancel_when_retired)
                while True:
                    with anyio.move_on_after(math.inf if entry.users else self._idle_timeout):
                        await entry.changed.wait()
                        continue
                    if not entry.users:
                        # At once, so that no turn acquires it while this is left.
                        entry.process.retire()
                        return


def marker_of(runtime: str, home: Path, key: PoolKey) -> str:
    """The marker of a process: the same whenever this home starts it, so that leftovers are recognized."""
    parts = (runtime, str(home), key.person, key.workspace)
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
