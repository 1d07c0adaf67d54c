"""Codex as a runtime: finds the app-server and the thread of a session, and runs its turns there."""

import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio

from outrider.core.events import Started
from outrider.core.ports import Turn
from outrider.core.types import RuntimeTraits
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.codex.app_server import AppServer, open_app_server
from outrider.runtimes.codex.errors import codex_failed, process_exited, request_failed
from outrider.runtimes.codex.launch import codex_program
from outrider.runtimes.codex.threads import NAME, configured_model, record_unstarted
from outrider.runtimes.codex.tools import ToolProvider
from outrider.runtimes.codex.turn import INTERRUPT_TIMEOUT, CodexTurnRun
from outrider.runtimes.codex.watchdog import ABORT_GRACE
from outrider.runtimes.external.approvals import ANSWER_TIMEOUT, ApprovalGate, JournalWatcher, withdraw_stale_questions
from outrider.runtimes.external.process_pool import DRAIN_TIMEOUT, PoolKey, ProcessPool, key_by_person
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.mcp_server import McpServer, new_token
from outrider.runtimes.tool_runner import ToolRunner

IDLE_TIMEOUT = 120.0
"""Seconds after which an unused app-server is ended."""
_MAX_RUNS = 3
"""Processes in which a turn is tried, when the reason for the end of one lies elsewhere."""
log = logging.getLogger("outrider.codex")


class CodexRuntime:
    traits = RuntimeTraits(NAME, steers=True, bounded=False, takes_client_tools=False)

    def __init__(
        self,
        context: RuntimeContext,
        pool: ProcessPool[AppServer],
        tools: ToolProvider,
        *,
        answer_timeout: float = ANSWER_TIMEOUT,
        interrupt_timeout: float = INTERRUPT_TIMEOUT,
        abort_grace: float = ABORT_GRACE,
    ) -> None:
        self._context = context
        self._pool = pool
        self._tool_provider = tools
        self._tool_runner = ToolRunner(context.tools, context.tool_environment)
        self._answer_timeout = answer_timeout
        self._interrupt_timeout = interrupt_timeout
        self._abort_grace = abort_grace

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME, configured_model(turn, self._context.config))

    async def run(self, turn: Turn) -> None:
        try:
            for _ in range(_MAX_RUNS - 1):
                if await self._run_once(turn):
                    return
            await self._run_once(turn, is_last=True)
        except ProcessExited as exited:
            raise process_exited(exited) from exited
        except RequestTimeout as error:
            raise codex_failed(str(error)) from error
        except RpcError as error:
            raise request_failed(error, "a request") from error

    async def _run_once(self, turn: Turn, *, is_last: bool = False) -> bool:
        """False when the turn has to be continued in another process, which is not tried again when it `is_last`."""
        journal = JournalWatcher(turn)
        approvals = ApprovalGate(turn, self._context.tool_environment, journal, timeout=self._answer_timeout)
        await withdraw_stale_questions(turn)
        if turn.state().questions:
            await approvals.deny_unreachable()
            if turn.state().questions:
                return True
        await self._context.tool_environment.check_workspace(turn.session)
        await record_unstarted(turn)
        async with self._pool.acquire(turn.session) as server:
            is_reused, steps = server.is_logged_in, turn.state().steps
            try:
                await server.ensure_login()
                turn_run = CodexTurnRun(
                    self._context,
                    self._tool_runner,
                    server,
                    turn,
                    journal,
                    approvals,
                    interrupt_timeout=self._interrupt_timeout,
                    abort_grace=self._abort_grace,
                )
                await turn_run.run(self._tool_provider)
            except ProcessExited as exited:
                # It died since its last turn, or another turn is the reason.
                is_innocent = server.interrupts_others or (is_reused and turn.state().steps == steps)
                if is_last or not is_innocent:
                    raise
                log.warning("the turn continues in another process of Codex: %s", exited)
                return False
        return True


@asynccontextmanager
async def open_runtime(
    context: RuntimeContext,
    *,
    idle_timeout: float = IDLE_TIMEOUT,
    drain_timeout: float = DRAIN_TIMEOUT,
    answer_timeout: float = ANSWER_TIMEOUT,
    interrupt_timeout: float = INTERRUPT_TIMEOUT,
    abort_grace: float = ABORT_GRACE,
    create_token: Callable[[], str] = new_token,
) -> AsyncGenerator[CodexRuntime]:
    """Codex for the life of a home. Its processes are started when they are needed and end with it."""
    config = context.config

    def open_process(key: PoolKey, marker: str) -> AbstractAsyncContextManager[AppServer]:
        # Each thread has its own folder.
        return open_app_server(codex_program(config, Path(key.workspace or os.sep), marker))

    async with anyio.create_task_group() as group:
        pool = ProcessPool(
            group,
            open_process,
            runtime=NAME,
            home=config.home,
            idle_timeout=idle_timeout,
            drain_timeout=drain_timeout,
            key_of=key_by_person,
        )
        await pool.terminate_leftovers()
        yield CodexRuntime(
            context,
            pool,
            ToolProvider(config, McpServer(group, create_token=create_token)),
            answer_timeout=answer_timeout,
            interrupt_timeout=interrupt_timeout,
            abort_grace=abort_grace,
        )
        group.cancel_scope.cancel()
