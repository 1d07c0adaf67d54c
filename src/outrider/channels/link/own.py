"""For a process that has to own its home, and that the others are to be guests of: `outrider up`."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace

from outrider.app.compose import open_agent
from outrider.app.presence import OpenMode
from outrider.channels.link.guest import request_hand_over
from outrider.channels.link.serve import OwnerServer, serve_home
from outrider.channels.link.waiting import POLL_INTERVAL, OwnerWait, owner_info
from outrider.config.load import Config
from outrider.core.errors import HomeBusy
from outrider.store.lock import HomeLock, lock_home

_TAKE_OVER_TIMEOUT = 15.0
"""Seconds that an owner may take to make way."""


@asynccontextmanager
async def open_as_owner(config: Config, presence: OpenMode) -> AsyncGenerator[OwnerServer]:
    """A home that this process has to own, and that others may join. Whoever has it is asked to make way.

    Raises HomeBusy when that is refused, or takes too long.
    """
    async with AsyncExitStack() as stack:
        hold = await stack.enter_async_context(_take_ownership(config.home, presence))
        agent = await stack.enter_async_context(open_agent(config=config, presence=replace(presence, hold=hold)))
        me = owner_info(config, presence)
        served = OwnerServer(agent, me, refusal=f"{me.label} (process {me.pid}) serves this home, and stays")
        await stack.enter_async_context(serve_home(config.home, served))
        yield served


@asynccontextmanager
async def _take_ownership(home: Path, presence: OpenMode) -> AsyncGenerator[HomeLock]:
    until, waiting = time.monotonic() + _TAKE_OVER_TIMEOUT, OwnerWait(home, presence.wait)
    async with AsyncExitStack() as stack:
        hold = None
        while hold is None:
            try:
                hold = await stack.enter_async_context(lock_home(home, presence.label, 0.0, listens=True))
            except HomeBusy as busy:
                if time.monotonic() > until:
                    raise
                if await request_hand_over(home, presence.label):
                    await anyio.sleep(POLL_INTERVAL * 5)
                else:
                    await waiting.wait_or_raise(busy)
        yield hold
