"""Codex as a runtime: turns are carried by `codex app-server`, and what it does is written down as it happens."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from outrider.runtimes.codex.lending import ToolProvider
from outrider.runtimes.codex.pool import AppServerPool
from outrider.runtimes.codex.runtime import CodexRuntime
from outrider.runtimes.kit import RuntimeContext
from outrider.runtimes.mcp import McpServer


@asynccontextmanager
async def open_runtime(kit: RuntimeContext) -> AsyncGenerator[CodexRuntime]:
    """Codex for the life of a home. Its processes are started when they are needed, and ended with it."""
    async with anyio.create_task_group() as group:
        pool = AppServerPool(kit.config, group)
        await pool.terminate_leftovers()
        group.start_soon(pool.retire_idle)
        yield CodexRuntime(kit, pool, ToolProvider(kit.config, McpServer(group)))
        group.cancel_scope.cancel()
