"""Any agent that speaks the Agent Client Protocol over its stdin and stdout, as a runtime: named by `acp.command`."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from outrider.config.childenv import child_environment
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Delta, Started
from outrider.core.ports import Turn
from outrider.core.traits import RuntimeTraits
from outrider.runtimes.acp.carrying import Carrying, Died, Failed
from outrider.runtimes.acp.faults import NO_COMMAND, explain
from outrider.runtimes.acp.pool import Pool, Terms
from outrider.runtimes.acp.wire import AuthMethod
from outrider.runtimes.acp.words import NAME, is_done
from outrider.runtimes.calls import answer_for_nobody
from outrider.runtimes.jsonrpc import RpcError
from outrider.runtimes.jsonrpc.group import open_group
from outrider.runtimes.kit import Kit
from outrider.runtimes.outside.asking import Parked


class AcpRuntime:
    """Hands turns to an agent. Whether a turn that a crash cut off goes on depends on the agent; some cannot."""

    traits = RuntimeTraits(NAME, steers=False, resumes=False, bounded=False, takes_client_tools=False)

    def __init__(self, kit: Kit, pool: Pool, program: str) -> None:
        self._kit = kit
        self._pool = pool
        self._program = program

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME)

    async def run(self, turn: Turn) -> None:
        if turn.state().questions:
            await answer_for_nobody(turn, self._kit.place)
            if turn.state().questions:
                return
        if is_done(turn.state()):
            return
        try:
            await self._carry(turn)
        except Parked:
            return

    async def _carry(self, turn: Turn) -> None:
        """Start the agent once more when it dies in the midst of a turn and can go on with it; not a second time."""
        name, methods = self._program, tuple[AuthMethod, ...]()
        for has_died in (False, True):
            try:
                async with self._pool.lent(turn.session) as agent:
                    name, methods = agent.name, agent.can.auth_methods or ()
                    await Carrying(turn, agent, self._kit).run(has_died=has_died)
                return
            except Died as died:
                turn.emit(Delta(f"{died}; it is started again and goes on", "reset"))
            except Failed as failed:
                raise explain(failed.error, name, methods, self._kit.place.redact) from failed.error
            except (RpcError, Refused, Unavailable) as error:
                raise explain(error, name, methods, self._kit.place.redact) from error


@asynccontextmanager
async def open_runtime(kit: Kit) -> AsyncGenerator[AcpRuntime]:
    """Agents as `acp.command` names them. Raises Refused when it names none."""
    settings = kit.config.acp
    try:
        argv = tuple(shlex.split(settings.command))
    except ValueError as error:
        raise Refused(f"acp.command cannot be read: {error}") from error
    if not argv:
        raise Refused(NO_COMMAND)
    terms = Terms(argv, child_environment(more=settings.env), kit.config.home, float(settings.start))
    async with open_group() as group:
        yield AcpRuntime(kit, Pool(terms, group), argv[0])
