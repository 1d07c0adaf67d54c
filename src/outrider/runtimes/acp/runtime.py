"""ACP agents as a runtime: any program that speaks the Agent Client Protocol over stdin and stdout (`acp.command`)."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from outrider.config.environment import child_environment
from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Delta, Started
from outrider.core.ports import Turn
from outrider.core.types import RuntimeTraits
from outrider.runtimes.acp.connection import AcpAgent, open_agent
from outrider.runtimes.acp.errors import NO_COMMAND, explain, wants_login
from outrider.runtimes.acp.own_calls import OwnTools
from outrider.runtimes.acp.prompt import NAME, is_done
from outrider.runtimes.acp.protocol import AuthMethod
from outrider.runtimes.acp.turn import AcpTurnRun, AgentDied, PromptFailed
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import ApprovalSuspended, withdraw_stale_questions
from outrider.runtimes.external.process_pool import PoolKey, ProcessPool
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.jsonrpc.process import Program
from outrider.runtimes.mcp_server import McpServer
from outrider.runtimes.tool_runner import ToolRunner, deny_unreachable
from outrider.system.task_groups import background_group

IDLE_TIMEOUT = 600.0
"""Seconds after which an unused agent is ended."""


class AcpRuntime:
    """Runs turns in an agent. Whether an interrupted turn can continue depends on the agent; some cannot."""

    traits = RuntimeTraits(NAME, steers=False, resumes=False, bounded=False, takes_client_tools=False)

    def __init__(self, context: RuntimeContext, pool: ProcessPool[AcpAgent], own_tools: OwnTools, program: str) -> None:
        self._context = context
        self._own_tools = own_tools
        self._pool = pool
        self._program = program

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME)

    async def run(self, turn: Turn) -> None:
        await withdraw_stale_questions(turn, asks_before_running=True)
        if turn.state().questions:
            await deny_unreachable(turn, self._context.tool_environment)
            if turn.state().questions:
                return
        if is_done(turn.state()):
            return
        await self._context.tool_environment.check_workspace(turn.session)
        try:
            await self._run_with_restart(turn)
        except ApprovalSuspended:
            return

    async def _run_with_restart(self, turn: Turn) -> None:
        """Restart the agent once when it dies during the turn and can resume its session."""
        name, methods, agent = self._program, tuple[AuthMethod, ...](), None
        for has_died in (False, True):
            try:
                async with self._pool.acquire(turn.session) as agent:
                    name, methods = agent.name, agent.info.auth_methods or ()
                    await AcpTurnRun(turn, agent, self._context, self._own_tools).run(has_died=has_died)
                return
            except AgentDied as died:
                turn.emit(Delta(f"{died}; it is restarted and continues", "reset"))
            except PromptFailed as failed:
                if agent and isinstance(failed.error, RpcError) and wants_login(failed.error):
                    # Only a process that is started after the login has it.
                    agent.retire()
                raise explain(failed.error, name, methods, self._context.tool_environment.redact) from failed.error
            except (RpcError, Refused, Unavailable) as error:
                raise explain(error, name, methods, self._context.tool_environment.redact) from error


def agent_command(config: Config) -> tuple[str, ...]:
    """The words of `acp.command`. Raises Refused when it is empty or malformed."""
    try:
        words = tuple(shlex.split(config.acp.command))
    except ValueError as error:
        raise Refused(f"acp.command cannot be parsed: {error}") from error
    if not words:
        raise Refused(NO_COMMAND)
    return words


def agent_environment(config: Config) -> dict[str, str]:
    return child_environment(more=config.acp.env)


@asynccontextmanager
async def open_runtime(context: RuntimeContext, *, idle_timeout: float = IDLE_TIMEOUT) -> AsyncGenerator[AcpRuntime]:
    """The agents that `acp.command` names, for the life of a home. Raises Refused when it names none."""
    config = context.config
    command, environment = agent_command(config), agent_environment(config)

    def open_process(key: PoolKey, marker: str) -> AbstractAsyncContextManager[AcpAgent]:
        return open_agent(Program(command, Path(key.workspace), environment, marker), float(config.acp.start))

    async with background_group() as group:
        pool = ProcessPool(group, open_process, runtime=NAME, home=config.home, idle_timeout=idle_timeout)
        await pool.terminate_leftovers()
        server = McpServer(group) if config.acp.tools == "auto" else None
        own_tools = OwnTools(ToolRunner(context.tools, context.tool_environment), server)
        yield AcpRuntime(context, pool, own_tools, command[0])
