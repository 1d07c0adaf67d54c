"""What the process knows of its own health: since when it runs, what it answered, and when its home was last well."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct

from outrider.app.vitals import HealthReport
from outrider.core.errors import Refused, Unavailable
from outrider.store.hooks import WebhookCount

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
