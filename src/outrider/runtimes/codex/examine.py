"""Whether Codex can carry turns here: its program, version, app-server and login. Nothing is asked of a model."""

import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.config.load import Config
from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.check import Check, Examine
from outrider.runtimes.codex.faults import last_words
from outrider.runtimes.codex.launch import INSTALL, codex_command, codex_environment, codex_program
from outrider.runtimes.codex.process import Server
from outrider.runtimes.jsonrpc import ChildGone, Program, RpcError, open_child, open_peer
from outrider.runtimes.jsonrpc.group import open_group

_PATIENCE = 30.0
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


def _found(config: Config) -> str:
    return codex_command(config, codex_environment(config))


async def _checks(config: Config) -> AsyncGenerator[Check, None]:
    try:
        program = codex_program(config, Path(tempfile.gettempdir()))
    except Refused as error:
        yield Check("program", "broken", str(error).partition(INSTALL)[0].strip(), INSTALL)
        return
    yield Check("program", "fine", program.argv[0])
    version = await version_of(program)
    yield version
    if version.verdict == "broken":
        return
    for check in await _tried(program):
        yield check


async def version_of(program: Program, patience: float = _PATIENCE) -> Check:
    """What the program says of its version. It is ended, with all that it started, when it takes longer."""
    asked = replace(program, argv=(program.argv[0], "--version"), grace=0.5, patience=1.0)
    said: list[str] = []
    try:
        async with open_child(asked) as child:
            with anyio.fail_after(patience):
                while True:
                    said.append((await child.line()).decode(errors="replace").strip())
    except ChildGone as gone:
        if gone.code != 0 or gone.reason:
            words = last_words(gone) or " ".join(said)
            return Check("version", "broken", _short(f"`--version`: {gone}{f': {words}' if words else ''}"), INSTALL)
    except TimeoutError:
        return Check("version", "broken", f"it did not answer `--version` within {patience:g} s", INSTALL)
    except (Refused, Unavailable) as error:
        return Check("version", "broken", f"it cannot be run: {error}", INSTALL)
    lines = [line for line in said if line]
    found = _VERSION.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        told = _short(" ".join(lines))[:80] or "nothing"
        return Check("version", "broken", f"`--version` says {told}, which is no version of Codex", INSTALL)
    return Check("version", "fine", found[1])


async def _tried(program: Program) -> list[Check]:
    """The app-server, started and ended again, and what it says of its settings and its login."""
    found: list[Check] = []
    try:
        async with open_child(program) as child, open_peer(child) as peer, open_group() as group:
            server = Server(child, peer)
            group.start_soon(server.route)
            await server.greet(_PATIENCE)
            if complaint := await server.complaint():
                return [Check("start", "broken", f"Codex cannot read its own settings: {_short(complaint)}", _CORRECT)]
            found.append(Check("start", "fine", "the app-server starts and answers"))
            login = msgspec.json.decode(await server.request("account/read", {}, _PATIENCE), type=_Login)
            found.append(_judged(login))
    except (Refused, Unavailable, RpcError, msgspec.DecodeError) as error:
        words = last_words(error) if isinstance(error, ChildGone) else ""
        text = _short(f"{error}{f': {words}' if words else ''}")
        found.append(Check("login" if found else "start", "broken", text, _HOME if "CODEX_HOME" in words else _UPDATE))
    return found


def _short(text: str) -> str:
    return " ".join(text.split())[:400]


def _judged(login: _Login) -> Check:
    account = login.account
    if account is None:
        if login.requires_openai_auth:
            return Check("login", "broken", "not logged in", _LOGIN)
        return Check("login", "fine", "its model provider needs none")
    named = " ".join(part for part in (account.email, f"({account.plan_type})" if account.plan_type else "") if part)
    return Check("login", "fine", f"logged in: {account.type}{f' {named}' if named else ''}")


EXAMINE = Examine(_found, _checks, steers=True)
