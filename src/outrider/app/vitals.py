"""Whether a home is well, found out by trying: a read and a write that both come back, and a worker that runs."""

import time

import anyio
from msgspec import Struct

from outrider.core.errors import Unavailable
from outrider.core.ports import WholeStore
from outrider.engine.worker import Worker

PATIENCE = 5.0
"""Seconds a store may take to answer before it counts as not answering."""


class Vitals(Struct, frozen=True):
    """What was found, of every person."""

    read: float
    """Seconds the store took to read."""
    write: float
    """Seconds the store took to write."""
    waiting: int
    """Sessions that have something to do."""
    turns: int
    """Sessions being carried now."""
    tasks: int
    """Tasks that have not ended."""
    is_carrying: bool
    """Whether the worker runs."""


async def examine(store: WholeStore, worker: Worker) -> Vitals:
    """Try the store and look at the worker. Raises Unavailable when the store does not answer in time."""
    begun = time.monotonic()
    with anyio.move_on_after(PATIENCE):
        waiting, tasks = await store.waiting(), await store.open_tasks()
        has_read = time.monotonic()
        await store.forget_grant("", "")  # passes the writer and its transaction, and changes nothing
        wrote = time.monotonic()
        return Vitals(has_read - begun, wrote - has_read, len(waiting), worker.turns, len(tasks), worker.is_running)
    raise Unavailable(f"the store has not answered for {PATIENCE:g} s")
