"""The `Runtime` of Codex: finds the process and the thread of a session, and carries its turn there.

Codex as a runtime: turns are carried by `codex app-server`, and what it does is written down as it happens.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

import outrider.runtimes.external.approvals as outside
from outrider.core.events import Started
from outrider.core.ports import Turn
from outrider.core.types import RuntimeTraits
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.errors import bad_settings, codex_failed, not_logged_in, process_exited, request_failed
from outrider.runtimes.codex.process_pool import AppServerPool
from outrider.runtimes.codex.protocol import parse_needs_login
from outrider.runtimes.codex.threads import NAME, configured_model, record_unstarted
from outrider.runtimes.codex.tools import ToolProvider
from outrider.runtimes.codex.turn import CodexTurnRun
from outrider.runtimes.external.approvals import ApprovalGate, JournalWatcher
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.mcp_server import McpServer
from outrider.runtimes.tool_runner import ToolRunner

log = logging.getLogger("outrider.codex")


class CodexRuntime:
    traits = RuntimeTraits(NAME, steers=True, bounded=False, takes_client_tools=False)

    def __init__(self, context: RuntimeContext, pool: AppServerPool, tools: ToolProvider) -> None:
        self._context = context
        self._tool_provider = tools
        self._pool = pool
        self._tool_runner = ToolRunner(context.tools, context.tool_environment)

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME, configured_model(turn, self._context.config))

    async def run(self, turn: Turn) -> None:
        news = JournalWatcher(turn)
        asking = ApprovalGate(turn, self._context.tool_environment, news, outside.ANSWER_TIMEOUT)
        if turn.state().questions:
            await asking.deny_unreachable()
            if turn.state().questions:
                return
        await record_unstarted(turn)
        try:
            if not await self._run_on_server(turn, news, asking):
                await self._run_on_server(turn, news, asking)
        except ProcessExited as gone:
            raise process_exited(gone) from gone
        except RequestTimeout as error:
            raise codex_failed(str(error)) from error
        except RpcError as error:
            raise request_failed(error, "what was asked of it") from error

    async def _run_on_server(self, turn: Turn, news: JournalWatcher, asking: ApprovalGate) -> bool:
        """False when the process turned out to have died since its last turn: another may have more luck."""
        async with self._pool.acquire(turn.session) as server:
            is_used, steps = server.is_logged_in, turn.state().steps
            try:
                await self._check_login(server)
                await CodexTurnRun(self._context, self._tool_runner, server, turn, news, asking).run(
                    self._tool_provider
                )
            except ProcessExited as gone:
                if not is_used or turn.state().steps > steps:
                    raise
                log.warning("Codex is started anew: %s", gone)
                return False
        return True

    async def _check_login(self, server: AppServer) -> None:
        """Ask before a model is: without a login it would try for a while and then say something else."""
        if server.is_logged_in:
            return
        try:
            is_barred = parse_needs_login(await server.request("account/read", {}))
        except RpcError:
            is_barred = False
        if is_barred:
            # With settings that it cannot read it goes by its defaults, and asks for a login that is not wanted.
            complaint = await server.config_error()
            # One that is started after a login knows of it.
            server.retire()
            raise bad_settings(complaint) if complaint else not_logged_in()
        server.is_logged_in = True


@asynccontextmanager
async def open_runtime(context: RuntimeContext) -> AsyncGenerator[CodexRuntime]:
    """Codex for the life of a home. Its processes are started when they are needed, and ended with it."""
    async with anyio.create_task_group() as group:
        pool = AppServerPool(context.config, group)
        await pool.terminate_leftovers()
        group.start_soon(pool.retire_idle)
        yield CodexRuntime(context, pool, ToolProvider(context.config, McpServer(group)))
        group.cancel_scope.cancel()
