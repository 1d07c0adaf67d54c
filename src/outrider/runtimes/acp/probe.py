"""Probe of an ACP agent: its program, its handshake, and a session of it. No model is asked."""

import shlex
import tempfile
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess, Refused
from outrider.runtimes.acp.connection import AcpAgent, open_agent
from outrider.runtimes.acp.errors import describe_exit, wants_login
from outrider.runtimes.acp.runtime import agent_command, agent_environment
from outrider.runtimes.base import ProbeResult, RuntimeProbe, find_program, probe_process
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Program

_SET_COMMAND = "outrider config set acp.command claude-agent-acp, or the command of another agent"


def _locate(config: Config) -> str:
    return _absolute_command(config)[0]


def _absolute_command(config: Config) -> tuple[str, ...]:
    """`acp.command` with the absolute path of its program. Raises Refused."""
    program, *args = agent_command(config)
    try:
        path = find_program(program, agent_environment(config)["PATH"])
    except NeedsAnotherProcess as error:
        raise NeedsAnotherProcess(f"{error} (acp.command); install it, or set another") from None
    return (path, *args)


async def _checks(config: Config, *, is_quick: bool) -> AsyncGenerator[ProbeResult, None]:
    if not config.acp.command:
        yield ProbeResult("program", "broken", "no agent is set (acp.command)", _SET_COMMAND)
        return
    try:
        command = _absolute_command(config)
    except Refused as error:
        yield ProbeResult("program", "broken", str(error), "install the agent, or " + _SET_COMMAND)
        return
    yield ProbeResult("program", "fine", shlex.join(command))

    async def check_login(agent: AcpAgent) -> ProbeResult:
        if is_quick:
            # Most agents keep every session that was opened, and there is no other way to check the login.
            return ProbeResult("login", "fine", "to check its login: outrider runtime doctor acp")
        return await _check_login(agent, folder)

    steps = {"start": _check_start, "version": _check_version, "login": check_login}
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        program = Program(command, Path(folder), agent_environment(config))
        for result in await probe_process(open_agent(program, config.acp.start), steps, _explain):
            yield result


async def _check_start(agent: AcpAgent) -> ProbeResult:
    return ProbeResult("start", "fine", f"{agent.name} starts and answers")


async def _check_version(agent: AcpAgent) -> ProbeResult:
    info = agent.info.agent_info
    return ProbeResult("version", "fine", (info and info.version) or "it does not say")


async def _check_login(agent: AcpAgent, folder: str) -> ProbeResult:
    try:
        thread = await agent.open_session(folder)
    except RpcError as error:
        if not wants_login(error):
            raise
        methods = [method.name or method.id for method in agent.info.auth_methods or ()]
        return ProbeResult("login", "broken", "not logged in", " or ".join(methods) or "log in with its own program")
    offered = agent.modes[thread]
    modes = ", ".join(f"{name} (now)" if name == offered.current else name for name in offered.names)
    return ProbeResult(
        "login", "fine", "it opened a session; no prompt was sent" + (f"; its modes: {modes}" if modes else "")
    )


def _explain(error: Exception) -> tuple[str, str]:
    text = describe_exit(error) if isinstance(error, ProcessExited) else str(error)
    return text, "check whether it starts by itself"


PROBE = RuntimeProbe(_locate, partial(_checks, is_quick=False), quick_checks=partial(_checks, is_quick=True))
