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
Act = Callable[[], Any]

VERDICTS = (Refused, StaleClaim, Unavailable, ValueError, OverflowError)
"""What an act may raise to its caller; anything else but a database's or a disk's error is a bug and ends the lane."""


class Outcome(Struct, frozen=True):
    """What one act came to."""

    value: Any = None
    error: BaseException | None = None


Carry = Callable[[Sequence[Act]], Sequence[Outcome]]
_Wish = tuple[Act, "asyncio.Future[Any]"]


def one_by_one(acts: Sequence[Act]) -> Sequence[Outcome]:
    """Do each act for itself."""
    return [_try(act) for act in acts]


def _try(act: Act) -> Outcome:
    try:
        return Outcome(act())
    except (*VERDICTS, sqlite3.Error, OSError) as error:
        return Outcome(error=error)


class Lane:
    """One thread and its queue. `carry` does up to `together` acts at once and says what came of each."""

    def __init__(self, name: str, carry: Carry = one_by_one, together: int = 1) -> None:
        self._carry, self._together = carry, together
        self._queue: SimpleQueue[_Wish | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._thread = Thread(target=self._run, name=f"outrider-{name}", daemon=True)
        self._thread.start()

    async def do(self, act: Callable[[], T]) -> T:
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
            await self._gone
        self._thread.join()

    def _run(self) -> None:
        batch: list[_Wish] = []
        try:
            is_last = False
            while not is_last:
                batch, is_last = self._next()
                outcomes = self._carry([act for act, _ in batch])
                self._on_loop(_settle, batch, outcomes)
                batch = []
        except BaseException as error:
            self._on_loop(self._break, batch, f"the store's thread ended: {error!r}")
            raise
        finally:
            self._on_loop(self._say_gone)

    def _next(self) -> tuple[list[_Wish], bool]:
        batch: list[_Wish] = []
        wish = self._queue.get()
        while wish is not None:
            batch.append(wish)
            if len(batch) == self._together:
                return batch, False
            try:
                wish = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _say_gone(self) -> None:
        if not self._gone.done():  # whoever waited for it may have been cancelled
            self._gone.set_result(None)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop is closed: nobody waits for this any more.
            return

    def _break(self, batch: list[_Wish], why: str) -> None:
        self._closed = True
        left = list(batch)
        while not self._queue.empty():
            wish = self._queue.get_nowait()
            left += [] if wish is None else [wish]
        _settle(left, [Outcome(error=Unavailable(f"{why}; start Outrider again"))] * len(left))


def _settle(batch: Sequence[_Wish], outcomes: Sequence[Outcome]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
