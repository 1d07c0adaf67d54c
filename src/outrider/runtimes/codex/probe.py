"""Whether Codex can carry turns here: its program, version, app-server and login. Nothing is asked of a model."""

import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.base import ProbeResult, RuntimeProbe
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.errors import stderr_summary
from outrider.runtimes.codex.launch import INSTALL, codex_command, codex_environment, codex_program
from outrider.runtimes.jsonrpc.connection import open_connection
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Program, open_child
from outrider.system.tasks import background_group

_STEP_TIMEOUT = 30.0
"""Seconds for one step."""
_LOGIN = "codex login"
_UPDATE = "update Codex, then try again"
_CORRECT = "correct that file, then try again"
_HOME = "make that folder, or set codex.home (or CODEX_HOME) to the full path of Codex's folder"
_VERSION = re.compile(r"(?:codex\S* )?v?(\d+\.\d+\S{0,60})")


class _Account(Struct, rename="camel"):
    type: str = ""
    email: str | None = None
    plan_type: str | None = None


class _Login(Struct, rename="camel"):
    account: _Account | None = None
    requires_openai_auth: bool = True


def _locate(config: Config) -> str:
    return codex_command(config, codex_environment(config))


async def _checks(config: Config) -> AsyncGenerator[ProbeResult, None]:
    try:
        program = codex_program(config, Path(tempfile.gettempdir()))
    except Refused as error:
        yield ProbeResult("program", "broken", str(error).partition(INSTALL)[0].strip(), INSTALL)
        return
    yield ProbeResult("program", "fine", program.argv[0])
    version = await version_of(program)
    yield version
    if version.verdict == "broken":
        return
    for check in await _probe_app_server(program):
        yield check


async def version_of(program: Program, patience: float = _STEP_TIMEOUT) -> ProbeResult:
    """What the program says of its version. It is ended, with all that it started, when it takes longer."""
    asked = replace(program, argv=(program.argv[0], "--version"), stdin_close_timeout=0.5, sigterm_timeout=1.0)
    said: list[str] = []
    try:
        async with open_child(asked) as child:
            with anyio.fail_after(patience):
                while True:
                    said.append((await child.read_line()).decode(errors="replace").strip())
    except ProcessExited as gone:
        if gone.code != 0 or gone.reason:
            words = stderr_summary(gone) or " ".join(said)
            return ProbeResult(
                "version", "broken", _short(f"`--version`: {gone}{f': {words}' if words else ''}"), INSTALL
            )
    except TimeoutError:
        return ProbeResult("version", "broken", f"it did not answer `--version` within {patience:g} s", INSTALL)
    except (Refused, Unavailable) as error:
        return ProbeResult("version", "broken", f"it cannot be run: {error}", INSTALL)
    lines = [line for line in said if line]
    found = _VERSION.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        told = _short(" ".join(lines))[:80] or "nothing"
        return ProbeResult("version", "broken", f"`--version` says {told}, which is no version of Codex", INSTALL)
    return ProbeResult("version", "fine", found[1])


async def _probe_app_server(program: Program) -> list[ProbeResult]:
    """The app-server, started and ended again, and what it says of its settings and its login."""
    found: list[ProbeResult] = []
    try:
        async with open_child(program) as child, open_connection(child) as peer, background_group() as group:
            server = AppServer(child, peer)
            group.start_soon(server.route)
            await server.initialize(_STEP_TIMEOUT)
            if complaint := await server.config_error():
                return [
                    ProbeResult("start", "broken", f"Codex cannot read its own settings: {_short(complaint)}", _CORRECT)
                ]
            found.append(ProbeResult("start", "fine", "the app-server starts and answers"))
            login = msgspec.json.decode(await server.request("account/read", {}, _STEP_TIMEOUT), type=_Login)
            found.append(_login_result(login))
    except (Refused, Unavailable, RpcError, msgspec.DecodeError) as error:
        words = stderr_summary(error) if isinstance(error, ProcessExited) else ""
        text = _short(f"{error}{f': {words}' if words else ''}")
        found.append(
            ProbeResult("login" if found else "start", "broken", text, _HOME if "CODEX_HOME" in words else _UPDATE)
        )
    return found


def _short(text: str) -> str:
    return " ".join(text.split())[:400]


def _login_result(login: _Login) -> ProbeResult:
    account = login.account
    if account is None:
        if login.requires_openai_auth:
            return ProbeResult("login", "broken", "not logged in", _LOGIN)
        return ProbeResult("login", "fine", "its model provider needs none")
    named = " ".join(part for part in (account.email, f"({account.plan_type})" if account.plan_type else "") if part)
    return ProbeResult("login", "fine", f"logged in: {account.type}{f' {named}' if named else ''}")


PROBE = RuntimeProbe(_locate, _checks, steers=True)
