"""For a process that has to own its home, and that the others are to be guests of: `outrider up`."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace

from outrider.app.compose import open_agent
from outrider.app.presence import Presence
from outrider.channels.link.guest import ask_to_make_way
from outrider.channels.link.serve import Served, serving
from outrider.channels.link.waiting import POLL, Waiting, hello
from outrider.config.load import Config
from outrider.core.errors import HomeBusy
from outrider.store.lock import Hold, hold_home

_MAKING_WAY = 15.0
"""Seconds that an owner may take to make way."""


@asynccontextmanager
async def open_owning(config: Config, presence: Presence) -> AsyncGenerator[Served]:
    """A home that this process has to own, and that others may join. Whoever has it is asked to make way.

    Raises HomeBusy when that is refused, or takes too long.
    """
    async with AsyncExitStack() as stack:
        hold = await stack.enter_async_context(_wrested(config.home, presence))
        agent = await stack.enter_async_context(open_agent(config=config, presence=replace(presence, hold=hold)))
        me = hello(config, presence)
        served = Served(agent, me, refusal=f"{me.label} (process {me.pid}) serves this home, and stays")
        await stack.enter_async_context(serving(config.home, served))
        yield served


@asynccontextmanager
async def _wrested(home: Path, presence: Presence) -> AsyncGenerator[Hold]:
    until, waiting = time.monotonic() + _MAKING_WAY, Waiting(home, presence.wait)
    async with AsyncExitStack() as stack:
        hold = None
        while hold is None:
            try:
                hold = await stack.enter_async_context(hold_home(home, presence.label, 0.0, listens=True))
            except HomeBusy as busy:
                if time.monotonic() > until:
                    raise
                if await ask_to_make_way(home, presence.label):
                    await anyio.sleep(POLL * 5)
                else:
                    await waiting.bear(busy)
        yield hold
