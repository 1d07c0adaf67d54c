"""What the process knows of its own health: since when it runs, what it answered, and when its home was last well."""

import time
from collections import Counter

import anyio
from msgspec import Struct

from outrider.app.agent import Agent
from outrider.app.vitals import HealthReport
from outrider.channels.http.webhooks import hook_store
from outrider.core.errors import Refused, Unavailable
from outrider.store.hooks import HookCount

FRESH = 1.0
"""Seconds for which a finding stands, so that many who ask cost no more than one."""
LONG = 60.0
"""Seconds after which it is told that nothing is carried though there is something to do."""


class Finding(Struct, frozen=True):
    """How a home was when it was last tried."""

    at: float
    vitals: HealthReport | None
    """None when it could not be found out."""
    webhooks: HookCount = HookCount()
    """Those not sent."""
    problem: str = ""
    """What is wrong, for whoever has a key; empty when all is well."""


class Pulse:
    """One process's health."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._last: Finding | None = None
        self._well: float | None = None
        self._idle: float | None = None
        """Since when sessions have something to do and none is carried."""
        self._trying = anyio.Lock()
        self.answers: Counter[int] = Counter()
        """Requests by the status they were answered with."""

    @property
    def uptime(self) -> float:
        """Seconds since this process began to serve."""
        return time.monotonic() - self._begun

    @property
    def since_well(self) -> float | None:
        """Seconds since a read and a write last came back; None when none has yet."""
        return None if self._well is None else time.monotonic() - self._well

    async def take(self, agent: Agent) -> Finding:
        """How the home is now."""
        async with self._trying:
            if self._last is None or time.monotonic() - self._last.at > FRESH:
                self._last = await self._try(agent)
            return self._last

    async def _try(self, agent: Agent) -> Finding:
        try:
            vitals = await agent.health()
            webhooks = await hook_store(agent).count_hooks()
        except (Unavailable, Refused) as error:
            return Finding(time.monotonic(), None, problem=str(error))
        now = self._well = time.monotonic()
        self._idle = (self._idle or now) if vitals.idle else None
        return Finding(now, vitals, webhooks, self._problem(vitals, now))

    def _problem(self, vitals: HealthReport, now: float) -> str:
        if not vitals.is_worker_running:
            return "no turn is carried: this process is about to end"
        if vitals.stalled_reason:
            return f"a turn stands still, and is tried again: {vitals.stalled_reason}"
        if self._idle and now - self._idle > LONG:
            return f"sessions have something to do ({vitals.idle}), and none is carried: start `outrider up` again"
        return ""
