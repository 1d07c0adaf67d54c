"""Whether an ACP agent can carry turns here: its program, its answer, a session of it. Nothing is asked of a model."""

import shlex
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from outrider.config.childenv import child_environment
from outrider.config.load import Config
from outrider.core.errors import NeedsAnotherProcess, Refused, Unavailable
from outrider.runtimes.acp.faults import NO_COMMAND, death, wants_login
from outrider.runtimes.acp.process import Agent
from outrider.runtimes.check import Check, Examine
from outrider.runtimes.jsonrpc import ChildGone, PeerTraits, Program, RpcError, open_child, open_peer
from outrider.runtimes.jsonrpc.group import open_group
from outrider.runtimes.program import find_program

TryLogin = Callable[[Agent, Program], Awaitable[Check]]
_NAME_IT = "outrider config set acp.command claude-agent-acp, or the command of another agent"


def _found(config: Config) -> str:
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


async def _checks(config: Config) -> AsyncGenerator[Check, None]:
    async for check in _examined(config, _session):
        yield check


async def _glance(config: Config) -> AsyncGenerator[Check, None]:
    async for check in _examined(config, _no_session):
        yield check


async def _examined(config: Config, try_login: TryLogin) -> AsyncGenerator[Check, None]:
    if not config.acp.command:
        yield Check("program", "broken", "no agent is named (acp.command)", _NAME_IT)
        return
    try:
        argv = _argv(config)
    except Refused as error:
        yield Check("program", "broken", str(error), "install the agent, or " + _NAME_IT)
        return
    yield Check("program", "fine", shlex.join(argv))
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        for check in await _tried(Program(argv, Path(folder), _environ(config)), config.acp.start, try_login):
            yield check


async def _tried(program: Program, patience: float, try_login: TryLogin) -> list[Check]:
    """The agent, started and ended again: what it says of itself, and of its login."""
    found: list[Check] = []
    try:
        async with (
            open_child(program) as child,
            open_peer(child, PeerTraits("2.0", patience)) as peer,
            open_group() as group,
        ):
            agent = Agent(child, peer, patience)
            group.start_soon(agent.route)
            await agent.initialize()
            told = agent.can.agent_info
            version = (told and told.version) or "it does not say"
            found += [Check("start", "fine", f"{agent.name} starts and answers"), Check("version", "fine", version)]
            found.append(await try_login(agent, program))
            group.cancel_scope.cancel()
    except (Refused, Unavailable, RpcError) as error:
        told_last = death(error) if isinstance(error, ChildGone) else error
        words = " ".join(str(told_last).split())[:400]
        found.append(Check("login" if found else "start", "broken", words, "see whether it starts by itself"))
    return found


async def _session(agent: Agent, program: Program) -> Check:
    try:
        await agent.open_session(str(program.cwd))
    except RpcError as error:
        if not wants_login(error):
            raise
        ways = [method.name or method.id for method in agent.can.auth_methods or ()]
        return Check("login", "broken", "not logged in", " or ".join(ways) or "log in with its own program")
    return Check("login", "fine", "it opened a session, in which nothing was asked")


async def _no_session(agent: Agent, program: Program) -> Check:
    """Many agents keep every session that was opened in them, and none says otherwise whether somebody is logged in."""
    return Check("login", "fine", "to try its login: outrider runtime doctor acp")


EXAMINE = Examine(_found, _checks, glance=_glance)
