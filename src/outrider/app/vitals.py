"""Whether a home is well, found out by trying: a read and a write that both come back, and a worker that runs."""

import time
from collections.abc import Sequence

import anyio
from msgspec import Struct

from outrider.core.errors import Unavailable
from outrider.core.plan import AwaitAnswer, decide, fold
from outrider.core.ports import FullStore
from outrider.engine.worker import Worker

STORE_TIMEOUT = 5.0
"""Seconds a store may take to answer before it counts as not answering."""
_MAX_SESSIONS_CHECKED = 20


class HealthReport(Struct, frozen=True):
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
    is_worker_running: bool
    """Whether the worker runs."""
    stalled_reason: str = ""
    """Why a turn stands still that could not be written down; empty when none does."""
    idle: int = 0
    """Sessions that have something to do here and wait for nobody, while nothing is carried."""


async def check_health(store: FullStore, worker: Worker) -> HealthReport:
    """Try the store and look at the worker. Raises Unavailable when the store does not answer in time."""
    begun = time.monotonic()
    with anyio.move_on_after(STORE_TIMEOUT):
        waiting, tasks = await store.sessions_with_work(), await store.open_tasks()
        has_read = time.monotonic()
        trial = await store.add_permission("", "session", "", "trial")  # nobody's, and of no effect
        await store.revoke_permission("", trial.id)
        wrote = time.monotonic()
        idle = 0 if worker.turns else await _count_idle(store, worker, waiting)
        return HealthReport(
            read=has_read - begun,
            write=wrote - has_read,
            waiting=len(waiting),
            turns=worker.turns,
            tasks=len(tasks),
            is_worker_running=worker.is_running,
            stalled_reason=next(iter(worker.stalled.values()), ""),
            idle=idle,
        )
    raise Unavailable(f"the store has not answered for {STORE_TIMEOUT:g} s")


async def _count_idle(store: FullStore, worker: Worker, waiting: Sequence[str]) -> int:
    found = [session for session in waiting if session not in worker.needs_another_process][:_MAX_SESSIONS_CHECKED]
    return sum([not isinstance(decide(fold(await store.read(session)), {}), AwaitAnswer) for session in found])
