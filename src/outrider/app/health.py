"""Whether a home is well, found out by trying: a read and a write that both come back, and a worker that runs.

What the process knows of its own health: since when it runs, what it answered, and when its home was last well.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import anyio
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.core.plan import AwaitAnswer, decide, fold
from outrider.core.store_port import FullStore
from outrider.engine.worker import Worker, WorkerHealth
from outrider.store.webhooks import WebhookCount

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
        health = worker.health()
        idle = 0 if health.turns else await _count_idle(store, health, waiting)
        return HealthReport(
            read=has_read - begun,
            write=wrote - has_read,
            waiting=len(waiting),
            turns=health.turns,
            tasks=len(tasks),
            is_worker_running=health.is_running,
            stalled_reason=health.stalled_reason,
            idle=idle,
        )
    raise Unavailable(f"the store has not answered for {STORE_TIMEOUT:g} s")


async def _count_idle(store: FullStore, health: WorkerHealth, waiting: Sequence[str]) -> int:
    found = [session for session in waiting if session not in health.needs_another_process][:_MAX_SESSIONS_CHECKED]
    return sum([not isinstance(decide(fold(await store.read(session)), {}), AwaitAnswer) for session in found])


SNAPSHOT_SECONDS = 1.0
"""Seconds for which a finding stands, so that many who ask cost no more than one."""
STALLED_AFTER_SECONDS = 60.0
"""Seconds after which it is told that nothing is carried though there is something to do."""


class HealthSnapshot(Struct, frozen=True):
    """How a home was when it was last tried."""

    at: float
    report: HealthReport | None
    """None when it could not be found out."""
    webhooks: WebhookCount = WebhookCount()
    """Those not sent."""
    problem: str = ""
    """What is wrong, for whoever has a key; empty when all is well."""


class HealthMonitor:
    """One process's health."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last: HealthSnapshot | None = None
        self._last_ok: float | None = None
        self._stalled_since: float | None = None
        """Since when sessions have something to do and none is carried."""
        self._lock = anyio.Lock()
        self.responses: Counter[int] = Counter()
        """Requests by the status they were answered with."""

    @property
    def uptime(self) -> float:
        """Seconds since this process began to serve."""
        return time.monotonic() - self._started

    @property
    def seconds_since_ok(self) -> float | None:
        """Seconds since a read and a write last came back; None when none has yet."""
        return None if self._last_ok is None else time.monotonic() - self._last_ok

    async def check(
        self, examine: Callable[[], Awaitable[HealthReport]], count: Callable[[], Awaitable[WebhookCount]]
    ) -> HealthSnapshot:
        """The state of the home, at most one second old."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._last.at > SNAPSHOT_SECONDS:
                self._last = await self._probe(examine, count)
            return self._last

    async def _probe(
        self, examine: Callable[[], Awaitable[HealthReport]], count: Callable[[], Awaitable[WebhookCount]]
    ) -> HealthSnapshot:
        try:
            vitals = await examine()
            webhooks = await count()
        except (Unavailable, Refused) as error:
            return HealthSnapshot(time.monotonic(), None, problem=str(error))
        now = self._last_ok = time.monotonic()
        self._stalled_since = (self._stalled_since or now) if vitals.idle else None
        return HealthSnapshot(now, vitals, webhooks, self._problem(vitals, now))

    def _problem(self, vitals: HealthReport, now: float) -> str:
        if not vitals.is_worker_running:
            return "no turn is carried: this process is about to end"
        if vitals.stalled_reason:
            return f"a turn stands still, and is tried again: {vitals.stalled_reason}"
        if self._stalled_since and now - self._stalled_since > STALLED_AFTER_SECONDS:
            return f"sessions have something to do ({vitals.idle}), and none is carried: start `outrider up` again"
        return ""
