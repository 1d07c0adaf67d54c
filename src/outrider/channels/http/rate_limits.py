"""Limits for each caller: requests a minute and requests at once, both counted in memory, and spending."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

from msgspec import Struct

from outrider.channels.http.errors import PERMANENT_QUOTA, QUOTA, HttpError
from outrider.core.store_port import KeyStore, SpendLimit
from outrider.store.keys import first_day, render_limit, seconds_until_reset

MonotonicClock = Callable[[], float]
"""Seconds that never go backwards, such as `time.monotonic`."""


class RequestLimits(Struct, frozen=True):
    """The limits of requests without a key, and of keys without limits of their own."""

    rate: int = 3_000
    """Requests a minute, which may all come in one burst."""
    concurrent: int = 1_000
    """Requests at once, open streams included."""
    failures: int = 30
    """Wrong keys a minute from one address."""
    body: int = 10 * 1024 * 1024
    """Bytes of one request body."""
    bodies: int = 256 * 1024 * 1024
    """Bytes of all request bodies in memory."""
    headers: int = 100
    """Headers of one request; the server limits their length."""


class RateLimiter:
    """A token bucket for each name, full at first and refilled within a minute. The least recently used are dropped."""

    def __init__(self, max_names: int = 4_096, now: MonotonicClock = time.monotonic) -> None:
        self._max_names, self._now = max_names, now
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def retry_after(self, name: str, rate: int) -> float:
        """Seconds until there is a token; 0 if there is one."""
        missing = 1.0 - self._level(name, rate)
        # A token that is missing only by a rounding error counts.
        return missing * 60.0 / rate if missing > 1e-9 else 0.0

    def take(self, name: str, rate: int) -> float:
        """Take a token: 0, or the seconds until there is one."""
        level, seconds = self._level(name, rate), self.retry_after(name, rate)
        if not seconds:
            self._levels[name] = (level - 1.0, self._now())
            self._levels.move_to_end(name)
            if len(self._levels) > self._max_names:
                self._levels.popitem(last=False)
        return seconds

    def _level(self, name: str, rate: int) -> float:
        level, at = self._levels.get(name, (float(rate), 0.0))
        return min(float(rate), level + (self._now() - at) * rate / 60.0)

    def __len__(self) -> int:
        return len(self._levels)


class ConcurrencyLimiter:
    """A count of running requests for each name."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}

    @contextmanager
    def slot(self, name: str, limit: int) -> Generator[None]:
        """Count one more request while the block runs. Raises 429 when that is more than the limit."""
        if self._running.get(name, 0) >= limit:
            raise too_many_requests(
                f"{limit} requests of this key are already running; wait until one ends", 1.0, "concurrency_limit"
            )
        self._running[name] = self._running.get(name, 0) + 1
        try:
            yield
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]

    def __len__(self) -> int:
        return len(self._running)


def too_many_requests(message: str, seconds: float, code: str) -> HttpError:
    """429 with `retry-after` in whole seconds."""
    return HttpError(429, message, code, {"retry-after": str(max(1, ceil(seconds)))})


async def spending_error(keys: KeyStore, id: str, spend: SpendLimit | None, now: int) -> HttpError | None:
    """429 when this key has reached its spending limit, else None. `now` is in milliseconds."""
    if spend is None or await keys.spent(id, first_day(spend, now)) < spend.dollars:
        return None
    # An automatic retry within seconds would only fail again.
    headers = {"x-should-retry": "false"}
    message = f"this key has reached its spending limit of {render_limit(spend)}"
    if (seconds := seconds_until_reset(spend, now)) is None:
        return HttpError(429, f"{message}; create another key to continue", PERMANENT_QUOTA, headers)
    headers["retry-after"] = str(max(1, ceil(seconds)))
    return HttpError(429, f"{message}; it is reset when the next {spend.per} begins (UTC)", QUOTA, headers)
