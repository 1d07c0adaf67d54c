"""Any agent that speaks the Agent Client Protocol over its stdin and stdout, as a runtime: named by `acp.command`."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from outrider.config.environment import child_environment
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Delta, Started
from outrider.core.ports import Turn
from outrider.core.types import RuntimeTraits
from outrider.runtimes.acp.errors import NO_COMMAND, explain
from outrider.runtimes.acp.process_pool import AcpAgentPool, AcpCommand
from outrider.runtimes.acp.prompt import NAME, is_done
from outrider.runtimes.acp.protocol import AuthMethod
from outrider.runtimes.acp.turn import AcpTurnRun, AgentDied, PromptFailed
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import ApprovalSuspended
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.tool_runner import deny_unreachable
from outrider.system.tasks import background_group


class AcpRuntime:
    """Hands turns to an agent. Whether a turn that a crash cut off goes on depends on the agent; some cannot."""

    traits = RuntimeTraits(NAME, steers=False, resumes=False, bounded=False, takes_client_tools=False)

    def __init__(self, context: RuntimeContext, pool: AcpAgentPool, program: str) -> None:
        self._context = context
        self._pool = pool
        self._program = program

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME)

    async def run(self, turn: Turn) -> None:
        if turn.state().questions:
            await deny_unreachable(turn, self._context.tool_environment)
            if turn.state().questions:
                return
        if is_done(turn.state()):
            return
        try:
            await self._run_with_restart(turn)
        except ApprovalSuspended:
            return

    async def _run_with_restart(self, turn: Turn) -> None:
        """Start the agent once more when it dies in the midst of a turn and can go on with it; not a second time."""
        name, methods = self._program, tuple[AuthMethod, ...]()
        for has_died in (False, True):
            try:
                async with self._pool.acquire(turn.session) as agent:
                    name, methods = agent.name, agent.info.auth_methods or ()
                    await AcpTurnRun(turn, agent, self._context).run(has_died=has_died)
                return
            except AgentDied as died:
                turn.emit(Delta(f"{died}; it is started again and goes on", "reset"))
            except PromptFailed as failed:
                raise explain(failed.error, name, methods, self._context.tool_environment.redact) from failed.error
            except (RpcError, Refused, Unavailable) as error:
                raise explain(error, name, methods, self._context.tool_environment.redact) from error


@asynccontextmanager
async def open_runtime(context: RuntimeContext) -> AsyncGenerator[AcpRuntime]:
    """Agents as `acp.command` names them. Raises Refused when it names none."""
    settings = context.config.acp
    try:
        argv = tuple(shlex.split(settings.command))
    except ValueError as error:
        raise Refused(f"acp.command cannot be read: {error}") from error
    if not argv:
        raise Refused(NO_COMMAND)
    terms = AcpCommand(argv, child_environment(more=settings.env), context.config.home, float(settings.start))
    async with background_group() as group:
        yield AcpRuntime(context, AcpAgentPool(terms, group), argv[0])
