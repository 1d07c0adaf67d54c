"""Probe of Codex: its program, version, app-server and login. No model is asked."""

import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
from msgspec.structs import replace

from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.text import clip
from outrider.runtimes.base import MAX_PROBE_TEXT, ProbeResult, RuntimeProbe, probe_process
from outrider.runtimes.codex.app_server import AppServer, open_app_server
from outrider.runtimes.codex.errors import stderr_summary
from outrider.runtimes.codex.launch import INSTALL, codex_command, codex_environment, codex_program
from outrider.runtimes.codex.protocol import parse_account
from outrider.runtimes.codex.versions import UPDATE, parse_version, too_old, untested
from outrider.runtimes.jsonrpc.errors import ProcessExited
from outrider.runtimes.jsonrpc.process import Program, open_child
from outrider.system.processes import new_marker

_STEP_TIMEOUT = 30.0
"""Seconds for one step."""
_LOGIN = "codex login"
_UPDATE = "update Codex, then try again"
_CORRECT = "correct that file, then try again"
_HOME = "create that folder, or set codex.home (or CODEX_HOME) to the full path of Codex's folder"
_VERSION = re.compile(r"(?:codex\S* )?v?(\d+\.\d+\S{0,60})")


def _locate(config: Config) -> str:
    return codex_command(config, codex_environment(config))


async def _checks(config: Config) -> AsyncGenerator[ProbeResult, None]:
    try:
        program = codex_program(config, Path(tempfile.gettempdir()), new_marker())
    except Refused as error:
        yield ProbeResult("program", "broken", str(error).partition(INSTALL)[0].strip(), INSTALL)
        return
    yield ProbeResult("program", "fine", program.argv[0])
    version = await version_of(program)
    yield version
    if version.verdict == "broken":
        return
    steps = {"start": _check_settings, "login": _check_login}
    for result in await probe_process(open_app_server(program, _STEP_TIMEOUT), steps, _explain):
        yield result


async def version_of(program: Program, within: float = _STEP_TIMEOUT) -> ProbeResult:
    """The version that the program prints. It is ended, with everything it started, when it takes longer."""
    command = replace(program, argv=(program.argv[0], "--version"), stdin_close_timeout=0.5, sigterm_timeout=1.0)
    output: list[str] = []
    try:
        async with open_child(command) as child:
            with anyio.fail_after(within):
                while True:
                    output.append((await child.read_line()).decode(errors="replace").strip())
    except ProcessExited as exited:
        if exited.code != 0 or exited.reason:
            text = stderr_summary(exited) or " ".join(output)
            text = clip(f"`--version`: {exited}{f': {text}' if text else ''}", MAX_PROBE_TEXT)
            return ProbeResult("version", "broken", text, INSTALL)
    except TimeoutError:
        return ProbeResult("version", "broken", f"it did not answer `--version` within {within:g} s", INSTALL)
    except (Refused, Unavailable) as error:
        return ProbeResult("version", "broken", f"it cannot be run: {error}", INSTALL)
    lines = [line for line in output if line]
    match = _VERSION.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        text = clip(" ".join(lines), 80) or "nothing"
        return ProbeResult("version", "broken", f"`--version` prints {text}, which is not a version of Codex", INSTALL)
    version = parse_version(match[1])
    if problem := too_old(version):
        return ProbeResult("version", "broken", problem, UPDATE)
    remark = untested(version)
    return ProbeResult("version", "odd" if remark else "fine", f"{match[1]}, {remark}" if remark else match[1])


async def _check_settings(server: AppServer) -> ProbeResult:
    if error := await server.config_error():
        text = f"Codex cannot read its own settings: {clip(error, MAX_PROBE_TEXT)}"
        return ProbeResult("start", "broken", text, _CORRECT)
    return ProbeResult("start", "fine", "the app-server starts and answers")


async def _check_login(server: AppServer) -> ProbeResult:
    login = parse_account(await server.request("account/read", {}, _STEP_TIMEOUT))
    account = login.account
    if login.needs_login:
        return ProbeResult("login", "broken", "not logged in", _LOGIN)
    if login.unread:
        return ProbeResult("login", "fine", f"Outrider cannot read all that Codex says: {', '.join(login.unread)}")
    if account is None:
        return ProbeResult("login", "fine", "its model provider needs none")
    plan = f"({account.plan_type})" if account.plan_type else ""
    text = " ".join(part for part in (account.type, account.email, plan) if part)
    return ProbeResult("login", "fine", f"logged in: {text}")


def _explain(error: Exception) -> tuple[str, str]:
    stderr = stderr_summary(error) if isinstance(error, ProcessExited) else ""
    return f"{error}{f': {stderr}' if stderr else ''}", _HOME if "CODEX_HOME" in stderr else _UPDATE


PROBE = RuntimeProbe(_locate, _checks, steers=True)
