"""A thread of our own that does what it is handed, in order: asyncio's executor is no place for anything that waits."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from anyio import CancelScope
from msgspec import Struct

from outrider.core.errors import Refused, StaleClaim, Unavailable

T = TypeVar("T")
Operation = Callable[[], Any]

EXPECTED_ERRORS = (Refused, StaleClaim, Unavailable, ValueError, OverflowError)
"""What an act may raise to its caller; anything else but a database's or a disk's error is a bug and ends the lane."""


class OperationResult(Struct, frozen=True):
    """What one act came to."""

    value: Any = None
    error: BaseException | None = None


RunBatch = Callable[[Sequence[Operation]], Sequence[OperationResult]]
_QueuedOperation = tuple[Operation, "asyncio.Future[Any]"]


def run_each(acts: Sequence[Operation]) -> Sequence[OperationResult]:
    """Do each act for itself."""
    return [_run_one(act) for act in acts]


def _run_one(act: Operation) -> OperationResult:
    try:
        return OperationResult(act())
    except (*EXPECTED_ERRORS, sqlite3.Error, OSError) as error:
        return OperationResult(error=error)


class DatabaseThread:
    """One thread and its queue. `carry` does up to `together` acts at once and says what came of each."""

    def __init__(self, name: str, carry: RunBatch = run_each, together: int = 1) -> None:
        self._run_batch, self._batch_size = carry, together
        self._queue: SimpleQueue[_QueuedOperation | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._thread = Thread(target=self._work, name=f"outrider-{name}", daemon=True)
        self._thread.start()

    async def run(self, act: Callable[[], T]) -> T:
        """Have this done. A caller that is cancelled stops waiting; the act may still happen."""
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((act, future))
        return await future

    async def close(self) -> None:
        """Finish what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        with CancelScope(shield=True):
            await self._stopped
        self._thread.join()

    def _work(self) -> None:
        batch: list[_QueuedOperation] = []
        try:
            is_last = False
            while not is_last:
                batch, is_last = self._next_batch()
                outcomes = self._run_batch([act for act, _ in batch])
                self._on_loop(_resolve_futures, batch, outcomes)
                batch = []
        except BaseException as error:
            self._on_loop(self._fail_queued, batch, f"the store's thread ended: {error!r}")
            raise
        finally:
            self._on_loop(self._set_stopped)

    def _next_batch(self) -> tuple[list[_QueuedOperation], bool]:
        batch: list[_QueuedOperation] = []
        wish = self._queue.get()
        while wish is not None:
            batch.append(wish)
            if len(batch) == self._batch_size:
                return batch, False
            try:
                wish = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _set_stopped(self) -> None:
        if not self._stopped.done():  # whoever waited for it may have been cancelled
            self._stopped.set_result(None)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop is closed: nobody waits for this any more.
            return

    def _fail_queued(self, batch: list[_QueuedOperation], why: str) -> None:
        self._closed = True
        left = list(batch)
        while not self._queue.empty():
            wish = self._queue.get_nowait()
            left += [] if wish is None else [wish]
        _resolve_futures(left, [OperationResult(error=Unavailable(f"{why}; start Outrider again"))] * len(left))


def _resolve_futures(batch: Sequence[_QueuedOperation], outcomes: Sequence[OperationResult]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
