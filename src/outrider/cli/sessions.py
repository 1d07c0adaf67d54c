"""`outrider sessions`: list, show, search, export and delete what was said."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import click

from outrider.app.agent import OWNER, Agent, found_or_refused
from outrider.app.compose import Presence
from outrider.cli.lines import encode, render_entry, render_found, render_session, state_of
from outrider.cli.opening import Halt, carry_out, open_config, open_here
from outrider.cli.plain import check_text, notice, one_line, say
from outrider.cli.root import DONE
from outrider.cli.transcript import ago, markdown_page, moment, transcript_lines
from outrider.core.errors import Refused
from outrider.core.events import Entry
from outrider.core.ports import Session
from outrider.store.reader import StoreReader, is_held, open_reader

_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_LONGEST_TITLE = 48


def _opened(act: Callable[[Agent], Awaitable[None]]) -> int:
    config = open_config()

    async def carry(halt: Halt) -> int:
        async with open_here(config, Presence("outrider sessions", "none")) as agent:
            await act(agent)
        return DONE

    return carry_out(carry)


class Reading(Protocol):
    """What can be looked up without being the one who owns the home."""

    async def sessions(self, limit: int = 100) -> Sequence[Session]: ...
    async def find(self, name: str) -> Session: ...
    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...


class _Beside:
    """Looks things up while another process owns the home."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._reader.list(OWNER, limit)

    async def find(self, name: str) -> Session:
        return found_or_refused(await self._reader.find(OWNER, name), name)

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._reader.read(session.id, after, limit)


def _read(act: Callable[[Reading], Awaitable[None]]) -> int:
    """Look something up: in the home, or beside whoever owns it."""
    config = open_config()
    if not is_held(config.home):
        return _opened(act)

    async def carry(halt: Halt) -> int:
        async with open_reader(config.home) as reader:
            await act(_Beside(reader))
        return DONE

    return carry_out(carry)


@click.group("sessions")
def command() -> None:
    """List, show, search, export and delete sessions."""


@command.command("list")
@_JSON
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many, latest first.")
def list_sessions(is_json: bool, limit: int) -> int:
    """Every session, latest first."""

    async def act(agent: Reading) -> None:
        found = await agent.sessions(limit)
        if is_json:
            say(encode([render_session(session) for session in found], is_pretty=True))
        elif found:
            say("\n".join(table(found, time.time_ns() // 1_000_000)))
        else:
            say('there are no sessions yet: outrider run "…" begins one')

    return _read(act)


def table(sessions: Sequence[Session], now: int) -> list[str]:
    """One aligned line for each, under a head."""
    rows = [("NAME", "UPDATED", "STATE", "TITLE", "WORKSPACE")]
    rows += [
        (
            one_line(session.name),
            ago(session.updated, now),
            state_of(session),
            one_line(session.title, _LONGEST_TITLE),
            one_line(session.workspace),
        )
        for session in sessions
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@command.command("show")
@click.argument("session")
@_JSON
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only what came after this entry.")
@click.option("--limit", type=click.IntRange(0), default=0, help="At most so many entries; 0 for all.")
def show(session: str, is_json: bool, after: int, limit: int) -> int:
    """What was said and done in a session. With --json, one entry a line."""
    check_text(session, "the session's name")

    async def act(agent: Reading) -> None:
        found = await agent.find(session)
        entries = await agent.journal(found, after, limit)
        if is_json:
            for entry in entries:
                say(encode(render_entry(entry)))
            return
        say(f"{one_line(found.name)} ({found.id}), {state_of(found)}, in {one_line(found.workspace)}\n")
        for line in transcript_lines(found, entries):
            say(line)

    return _read(act)


@command.command("search")
@click.argument("words", nargs=-1, required=True)
@_JSON
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
def search(words: tuple[str, ...], is_json: bool, limit: int) -> int:
    """Where these words were said."""
    wanted = check_text(" ".join(words), "what to search for")

    async def act(agent: Agent) -> None:
        found = await agent.search(wanted, limit)
        if is_json:
            say(encode([render_found(place) for place in found], is_pretty=True))
            return
        for place in found:
            say(f"{one_line(place.name)} #{place.seq}  {moment(place.at)}  {one_line(place.excerpt, 200)}")
        if not found:
            notice("nothing was found")

    return _opened(act)


@command.command("export")
@click.argument("session")
@click.option("--format", "form", type=click.Choice(["json", "markdown"]), default="markdown", show_default=True)
@click.option("--output", "-o", default="", metavar="FILE", help="Write it there instead of to stdout.")
def export(session: str, form: str, output: str) -> int:
    """A whole session as one document."""
    check_text(session, "the session's name")

    async def act(agent: Reading) -> None:
        found = await agent.find(session)
        entries = await agent.journal(found)
        if form == "json":
            document = {"session": render_session(found), "entries": [render_entry(entry) for entry in entries]}
            text = encode(document, is_pretty=True) + "\n"
        else:
            text = markdown_page(found, entries)
        if output:
            _write(Path(output), text)
        else:
            say(text.removesuffix("\n"))

    return _read(act)


def _write(path: Path, text: str) -> None:
    """For its owner alone when it is new: a session may hold anything."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


@command.command("delete")
@click.argument("session")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
def delete(session: str, is_sure: bool) -> int:
    """Delete a session and all that was said in it. The files in its workspace stay."""
    check_text(session, "the session's name")
    if not is_sure and not sys.stdin.isatty():
        raise Refused("a session is deleted for good: say --yes")

    async def act(agent: Agent) -> None:
        found = await agent.find(session)
        what = f"{one_line(found.name)} ({one_line(found.title, _LONGEST_TITLE)})"
        if not is_sure and not click.confirm(f"Delete {what} for good?", err=True):
            raise Refused("nothing was deleted")
        await agent.delete(found)
        say(f"deleted {what}; its workspace {found.workspace} is left as it is")

    return _opened(act)
