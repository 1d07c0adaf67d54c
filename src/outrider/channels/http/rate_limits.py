"""How much one caller may ask for: so many requests a minute, so many at once (kept in memory), so many dollars."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

from msgspec import Struct

from outrider.channels.http.errors import QUOTA, QUOTA_FOR_GOOD, HttpError
from outrider.core.store_port import KeyStore, SpendLimit
from outrider.store.keys import first_day, render_limit, seconds_until_reset

MonotonicClock = Callable[[], float]
"""Seconds, from whenever; never backwards."""


class RequestLimits(Struct, frozen=True):
    """What holds for a key that has no limits of its own, and for whoever comes without one."""

    rate: int = 3_000
    """Requests a minute. So many may also come in one burst."""
    concurrent: int = 1_000
    """Requests at once; a stream is one for as long as it is read."""
    failures: int = 30
    """Wrong keys a minute from one address."""
    body: int = 10 * 1024 * 1024
    """Bytes a request may have, before anything of it is parsed."""
    bodies: int = 256 * 1024 * 1024
    """Bytes of all the bodies that are held at once."""
    headers: int = 100
    """How many there may be; the server bounds their length."""


class RateLimiter:
    """A bucket of tokens for each name: full at first, filled again over a minute. The least used are forgotten."""

    def __init__(self, most: int = 4_096, now: MonotonicClock = time.monotonic) -> None:
        self._max_names, self._now = most, now
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def retry_after(self, name: str, rate: int) -> float:
        """Seconds until there is a token; 0 when there is one."""
        missing = 1.0 - self._level(name, rate)
        # A token that is due within a rounding error is there.
        return missing * 60.0 / rate if missing > 1e-9 else 0.0

    def take(self, name: str, rate: int) -> float:
        """Take a token, if there is one: 0, or the seconds until there will be."""
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
    """How many requests of each name go on now."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}

    @contextmanager
    def slot(self, name: str, most: int) -> Generator[None]:
        """Be one of them for as long as the block runs. Raises 429 when there are enough."""
        if self._running.get(name, 0) >= most:
            raise too_many_requests(
                f"{most} requests of this key go on already; let one end first", 1.0, "concurrency_limit"
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
    """429, with the time to wait in whole seconds."""
    return HttpError(429, message, code, {"retry-after": str(max(1, ceil(seconds)))})


async def spending_error(keys: KeyStore, id: str, spend: SpendLimit | None, now: int) -> HttpError | None:
    """429 when this key has spent what it may (`now` is in milliseconds), else None."""
    if spend is None or await keys.spent(id, first_day(spend, now)) < spend.dollars:
        return None
    # A client that tries again by itself, within seconds, only hears the same.
    headers = {"x-should-retry": "false"}
    message = f"this key may spend {render_limit(spend)}, and has"
    if (seconds := seconds_until_reset(spend, now)) is None:
        return HttpError(429, f"{message}; make another key to go on", QUOTA_FOR_GOOD, headers)
    headers["retry-after"] = str(max(1, ceil(seconds)))
    return HttpError(429, f"{message}; come back when another {spend.per} has begun, in UTC", QUOTA, headers)
