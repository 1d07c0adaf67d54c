"""Calls of an external program that count as begun when nothing is asked about them for a moment."""

from collections import deque
from collections.abc import Awaitable, Callable

import anyio

ASSUME_STARTED_AFTER = 1.0
"""Seconds after which a call that a program has reported counts as begun, when it asks nothing about it."""


class AssumedStarts:
    """Calls that may have begun, in the order in which they were reported."""

    def __init__(self) -> None:
        self._deadlines: deque[tuple[str, float]] = deque()
        self._added = anyio.Event()

    def add(self, call: str) -> None:
        self._deadlines.append((call, anyio.current_time() + ASSUME_STARTED_AFTER))
        self._added.set()

    async def confirm_each(self, confirm: Callable[[str], Awaitable[None]]) -> None:
        """Call `confirm` for each call when its time has passed. Runs until cancelled."""
        while True:
            while not self._deadlines:
                await self._added.wait()
                self._added = anyio.Event()
            call, deadline = self._deadlines.popleft()
            await anyio.sleep_until(deadline)
            await confirm(call)
