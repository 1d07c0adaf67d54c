"""Whether an ACP agent can carry turns here: its program, its answer, a session of it. Nothing is asked of a model."""

import shlex
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from outrider.config.environment import child_environment
from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess, Refused, Unavailable
from outrider.runtimes.acp.connection import AcpAgent
from outrider.runtimes.acp.errors import NO_COMMAND, describe_exit, wants_login
from outrider.runtimes.base import ProbeResult, RuntimeProbe, find_program
from outrider.runtimes.jsonrpc.connection import ConnectionOptions, open_connection
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Program, open_child
from outrider.system.tasks import background_group

LoginCheck = Callable[[AcpAgent, Program], Awaitable[ProbeResult]]
_SET_COMMAND = "outrider config set acp.command claude-agent-acp, or the command of another agent"


def _locate(config: Config) -> str:
    return _argv(config)[0]


def _argv(config: Config) -> tuple[str, ...]:
    """The agent's program, as an absolute path, and its words. Raises Refused."""
    try:
        words = shlex.split(config.acp.command)
    except ValueError as error:
        raise Refused(f"acp.command cannot be read: {error}") from None
    if not words:
        raise Refused(NO_COMMAND)
    try:
        found = find_program(words[0], _environ(config)["PATH"])
    except NeedsAnotherProcess as error:
        raise NeedsAnotherProcess(f"{error} (acp.command); install it, or name another") from None
    return (found, *words[1:])


def _environ(config: Config) -> dict[str, str]:
    return child_environment(more=config.acp.env)


async def _checks(config: Config) -> AsyncGenerator[ProbeResult, None]:
    async for check in _probe(config, _try_login):
        yield check


async def _quick_checks(config: Config) -> AsyncGenerator[ProbeResult, None]:
    async for check in _probe(config, _skip_login):
        yield check


async def _probe(config: Config, try_login: LoginCheck) -> AsyncGenerator[ProbeResult, None]:
    if not config.acp.command:
        yield ProbeResult("program", "broken", "no agent is named (acp.command)", _SET_COMMAND)
        return
    try:
        argv = _argv(config)
    except Refused as error:
        yield ProbeResult("program", "broken", str(error), "install the agent, or " + _SET_COMMAND)
        return
    yield ProbeResult("program", "fine", shlex.join(argv))
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        for check in await _probe_agent(Program(argv, Path(folder), _environ(config)), config.acp.start, try_login):
            yield check


async def _probe_agent(program: Program, patience: float, try_login: LoginCheck) -> list[ProbeResult]:
    """The agent, started and ended again: what it says of itself, and of its login."""
    found: list[ProbeResult] = []
    try:
        async with (
            open_child(program) as child,
            open_connection(child, ConnectionOptions("2.0", patience)) as peer,
            background_group() as group,
        ):
            agent = AcpAgent(child, peer, patience)
            group.start_soon(agent.route)
            await agent.initialize()
            told = agent.info.agent_info
            version = (told and told.version) or "it does not say"
            found += [
                ProbeResult("start", "fine", f"{agent.name} starts and answers"),
                ProbeResult("version", "fine", version),
            ]
            found.append(await try_login(agent, program))
            group.cancel_scope.cancel()
    except (Refused, Unavailable, RpcError) as error:
        told_last = describe_exit(error) if isinstance(error, ProcessExited) else error
        words = " ".join(str(told_last).split())[:400]
        found.append(ProbeResult("login" if found else "start", "broken", words, "see whether it starts by itself"))
    return found


async def _try_login(agent: AcpAgent, program: Program) -> ProbeResult:
    try:
        await agent.open_session(str(program.cwd))
    except RpcError as error:
        if not wants_login(error):
            raise
        ways = [method.name or method.id for method in agent.info.auth_methods or ()]
        return ProbeResult("login", "broken", "not logged in", " or ".join(ways) or "log in with its own program")
    return ProbeResult("login", "fine", "it opened a session, in which nothing was asked")


async def _skip_login(agent: AcpAgent, program: Program) -> ProbeResult:
    """Many agents keep every session that was opened in them, and none says otherwise whether somebody is logged in."""
    return ProbeResult("login", "fine", "to try its login: outrider runtime doctor acp")


PROBE = RuntimeProbe(_locate, _checks, quick_checks=_quick_checks)
