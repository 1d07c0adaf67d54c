"""Whether Codex can carry turns here: its program, version, app-server and login. Nothing is asked of a model."""

import subprocess
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from outrider import __version__
from outrider.config.load import Config
from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.check import Check, Examine
from outrider.runtimes.codex.launch import INSTALL, codex_command, codex_environment, codex_program
from outrider.runtimes.jsonrpc import Program, RpcError, open_child, open_peer

_PATIENCE = 30.0
"""Seconds for one step."""
_LOGIN = "codex login"


class _Account(Struct, rename="camel"):
    type: str = ""
    email: str | None = None
    plan_type: str | None = None


class _Login(Struct, rename="camel"):
    account: _Account | None = None
    requires_openai_auth: bool = True


def _found(config: Config) -> str:
    return codex_command(config, codex_environment(config))


async def _checks(config: Config) -> AsyncGenerator[Check, None]:
    try:
        program = codex_program(config, Path(tempfile.gettempdir()))
    except Refused as error:
        yield Check("program", "broken", str(error).partition(INSTALL)[0].strip(), INSTALL)
        return
    yield Check("program", "fine", program.argv[0])
    version = await _version(program)
    yield version
    if version.verdict == "broken":
        return
    for check in await _tried(program):
        yield check


async def _version(program: Program) -> Check:
    try:
        with anyio.fail_after(_PATIENCE):
            ran = await anyio.run_process(
                [program.argv[0], "--version"], env=program.environ, check=False, stderr=subprocess.STDOUT
            )
    except (OSError, TimeoutError) as error:
        return Check("version", "broken", f"it cannot be run: {error or 'no answer in time'}", INSTALL)
    said = ran.stdout.decode(errors="replace").strip()
    if ran.returncode:
        return Check("version", "broken", f"`--version` ended with code {ran.returncode}: {said[-200:]}", INSTALL)
    return Check("version", "fine", said.removeprefix("codex-cli ")[:80])


async def _tried(program: Program) -> list[Check]:
    """The app-server, started and ended again, and what it says of the login."""
    client = {"clientInfo": {"name": "outrider", "title": "Outrider", "version": __version__}}
    found: list[Check] = []
    try:
        async with open_child(program) as child, open_peer(child) as peer:
            await peer.request("initialize", {**client, "capabilities": {"experimentalApi": True}}, _PATIENCE)
            await peer.notify("initialized")
            found.append(Check("start", "fine", "the app-server starts and answers"))
            login = msgspec.json.decode(await peer.request("account/read", {}, _PATIENCE), type=_Login)
            found.append(_judged(login))
    except (Refused, Unavailable, RpcError, msgspec.DecodeError) as error:
        name = "login" if found else "start"
        found.append(Check(name, "broken", " ".join(str(error).split())[:400], "update Codex, then try again"))
    return found


def _judged(login: _Login) -> Check:
    account = login.account
    if account is None:
        if login.requires_openai_auth:
            return Check("login", "broken", "not logged in", _LOGIN)
        return Check("login", "fine", "its model provider needs none")
    named = " ".join(part for part in (account.email, f"({account.plan_type})" if account.plan_type else "") if part)
    return Check("login", "fine", f"logged in: {account.type}{f' {named}' if named else ''}")


EXAMINE = Examine(_found, _checks)
