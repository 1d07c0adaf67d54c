"""Codex as a runtime: turns are carried by `codex app-server`, and what it does is written down as it happens."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from outrider.runtimes.codex.lending import Lending
from outrider.runtimes.codex.pool import Pool
from outrider.runtimes.codex.runtime import CodexRuntime
from outrider.runtimes.kit import Kit
from outrider.runtimes.mcp import Door


@asynccontextmanager
async def open_runtime(kit: Kit) -> AsyncGenerator[CodexRuntime]:
    """Codex for the life of a home. Its processes are started when they are needed, and ended with it."""
    async with anyio.create_task_group() as group:
        pool = Pool(kit.config, group)
        await pool.clear()
        group.start_soon(pool.tidy)
        yield CodexRuntime(kit, pool, Lending(kit.config, Door(group)))
        group.cancel_scope.cancel()
