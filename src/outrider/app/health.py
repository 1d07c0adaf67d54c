"""Health of a home: a read and a write that both succeed, and a worker that runs.

`HealthMonitor` also counts what the process answered and remembers when the last check succeeded.
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
"""Seconds after which the store counts as not answering."""
_MAX_SESSIONS_CHECKED = 20
_MAX_TASKS_COUNTED = 10_000


class HealthReport(Struct, frozen=True):
    """The result of one check, over all people."""

    read: float
    """Seconds that the read took."""
    write: float
    """Seconds that the write took."""
    waiting: int
    """Sessions that have work."""
    turns: int
    """Sessions that are running."""
    tasks: int
    """Tasks that have not ended."""
    is_worker_running: bool
    stalled_reason: str = ""
    """Why a turn could not be written; empty when none is stalled."""
    idle: int = 0
    """Sessions that have work for this process and wait for no answer, while no session is running."""


async def check_health(store: FullStore, worker: Worker) -> HealthReport:
    """Read and write the store and check the worker. Raises Unavailable when the store does not answer in time."""
    start = time.monotonic()
    with anyio.move_on_after(STORE_TIMEOUT):
        waiting, tasks = await store.sessions_with_work(), await store.open_tasks()
        read = time.monotonic()
        trial = await store.add_permission("", "session", "", "trial")  # belongs to no person, so it allows nothing
        await store.revoke_permission("", trial.id)
        written = time.monotonic()
        health = worker.health()
        idle = 0 if health.running else await _count_idle(store, health, waiting)
        return HealthReport(
            read=read - start,
            write=written - read,
            waiting=len(waiting),
            turns=len(health.running),
            tasks=len(tasks),
            is_worker_running=health.is_running,
            stalled_reason=health.stalled_reason,
            idle=idle,
        )
    raise Unavailable(f"the store has not answered for {STORE_TIMEOUT:g} s")


class OwnWork(Struct, frozen=True):
    """What one person has running."""

    waiting: int
    """Sessions that have work."""
    turns: int
    """Sessions that are running."""
    tasks: int
    """Tasks that have not ended."""


async def count_own_work(store: FullStore, worker: Worker, person: str) -> OwnWork:
    waiting = await store.sessions_with_work(person)
    tasks = await store.list_tasks(person, open_only=True, limit=_MAX_TASKS_COUNTED)
    return OwnWork(len(waiting), len(worker.health().running.intersection(waiting)), len(tasks))


async def _count_idle(store: FullStore, health: WorkerHealth, waiting: Sequence[str]) -> int:
    sessions = [session for session in waiting if session not in health.needs_another_process]
    steps = [decide(fold(await store.read(session)), {}) for session in sessions[:_MAX_SESSIONS_CHECKED]]
    return sum(not isinstance(step, AwaitAnswer) for step in steps)


SNAPSHOT_SECONDS = 1.0
"""Seconds for which a result is reused, so that many requests cost one check."""
STALLED_AFTER_SECONDS = 60.0
"""Seconds after which sessions that have work while none is running are a problem."""


class HealthSnapshot(Struct, frozen=True):
    """The last check of a home."""

    at: float
    report: HealthReport | None
    """None when the check failed."""
    webhooks: WebhookCount = WebhookCount()
    """Webhooks that are not sent yet."""
    problem: str = ""
    """What is wrong; empty when nothing is."""


class HealthMonitor:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last: HealthSnapshot | None = None
        self._last_ok: float | None = None
        self._stalled_since: float | None = None
        """Since when sessions have work and none is running."""
        self._lock = anyio.Lock()
        self.responses: Counter[int] = Counter()
        """Number of responses by HTTP status."""

    @property
    def uptime(self) -> float:
        """Seconds since this process started to serve."""
        return time.monotonic() - self._started

    @property
    def seconds_since_ok(self) -> float | None:
        """Seconds since the last check that succeeded; None when none has."""
        return None if self._last_ok is None else time.monotonic() - self._last_ok

    async def check(
        self, check_home: Callable[[], Awaitable[HealthReport]], count_webhooks: Callable[[], Awaitable[WebhookCount]]
    ) -> HealthSnapshot:
        """The state of the home, at most one second old."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._last.at > SNAPSHOT_SECONDS:
                self._last = await self._probe(check_home, count_webhooks)
            return self._last

    async def _probe(
        self, check_home: Callable[[], Awaitable[HealthReport]], count_webhooks: Callable[[], Awaitable[WebhookCount]]
    ) -> HealthSnapshot:
        try:
            report = await check_home()
            webhooks = await count_webhooks()
        except (Unavailable, Refused) as error:
            return HealthSnapshot(time.monotonic(), None, problem=str(error))
        now = self._last_ok = time.monotonic()
        self._stalled_since = (self._stalled_since or now) if report.idle else None
        return HealthSnapshot(now, report, webhooks, self._problem(report, now))

    def _problem(self, report: HealthReport, now: float) -> str:
        if not report.is_worker_running:
            return "no turns run: this process is about to end"
        if report.stalled_reason:
            return f"a turn is stalled and will be retried: {report.stalled_reason}"
        if self._stalled_since and now - self._stalled_since > STALLED_AFTER_SECONDS:
            return f"sessions have work ({report.idle}), and none is running: restart `outrider up`"
        return ""
