"""`outrider sessions`: list, show, search, export, rename and delete what was said."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click

from outrider.app.api import AgentApi, OpenMode
from outrider.cli.commands import DONE
from outrider.cli.output import (
    check_text,
    encode_json,
    format_time,
    one_line,
    print_line,
    render_search_hit,
    render_session,
    time_ago,
    warn,
)
from outrider.cli.render import markdown_page, transcript_lines
from outrider.cli.setup import SignalWatch, open_config, open_home, open_read_only, run_async
from outrider.core.errors import Refused
from outrider.core.events import render_entry
from outrider.core.store_port import Session, session_status

_LABEL = "outrider sessions"
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_MAX_TITLE = 48


def _run_read_only(act: Callable[[AgentApi], Awaitable[None]]) -> int:
    """Look something up, also beside a process that takes no guests."""
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_read_only(config, _LABEL) as looking:
            await act(looking)
        return DONE

    return run_async(carry)


@click.group("sessions")
def command() -> None:
    """List, show, search, export, rename and delete sessions."""


@command.command("list")
@_JSON
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many, latest first.")
def list_sessions(is_json: bool, limit: int) -> int:
    """Every session, latest first."""

    async def act(agent: AgentApi) -> None:
        found = await agent.sessions(limit)
        if is_json:
            print_line(encode_json([render_session(session) for session in found], is_pretty=True))
        elif found:
            print_line("\n".join(sessions_table(found, time.time_ns() // 1_000_000)))
        else:
            print_line('there are no sessions yet: outrider run "…" begins one')

    return _run_read_only(act)


def sessions_table(sessions: Sequence[Session], now: int) -> list[str]:
    """One aligned line for each, under a head."""
    rows = [("NAME", "UPDATED", "STATE", "TITLE", "WORKSPACE")]
    rows += [
        (
            one_line(session.name),
            time_ago(session.updated, now),
            session_status(session),
            one_line(session.title, _MAX_TITLE),
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

    async def act(agent: AgentApi) -> None:
        found = await agent.find_by_prefix(session)
        entries = await agent.journal(found, after, limit)
        if is_json:
            for entry in entries:
                print_line(encode_json(render_entry(entry)))
            return
        print_line(f"{one_line(found.name)} ({found.id}), {session_status(found)}, in {one_line(found.workspace)}\n")
        for line in transcript_lines(found, entries):
            print_line(line)

    return _run_read_only(act)


@command.command("search")
@click.argument("words", nargs=-1, required=True)
@_JSON
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
def search(words: tuple[str, ...], is_json: bool, limit: int) -> int:
    """Where these words were said."""
    wanted = check_text(" ".join(words), "what to search for")

    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            found = await agent.search(wanted, limit)
        if is_json:
            print_line(encode_json([render_search_hit(place) for place in found], is_pretty=True))
            return DONE
        for place in found:
            print_line(f"{one_line(place.name)} #{place.seq}  {format_time(place.at)}  {one_line(place.excerpt, 200)}")
        if not found:
            warn("nothing was found")
        return DONE

    return run_async(carry)


@command.command("export")
@click.argument("session")
@click.option("--format", "form", type=click.Choice(["json", "markdown"]), default="markdown", show_default=True)
@click.option("--output", "-o", default="", metavar="FILE", help="Write it there instead of to stdout.")
def export(session: str, form: str, output: str) -> int:
    """A whole session as one document."""
    check_text(session, "the session's name")

    async def act(agent: AgentApi) -> None:
        found = await agent.find_by_prefix(session)
        entries = await agent.journal(found)
        if form == "json":
            document = {"session": render_session(found), "entries": [render_entry(entry) for entry in entries]}
            text = encode_json(document, is_pretty=True) + "\n"
        else:
            text = markdown_page(found, entries)
        if output:
            _write_private(Path(output), text)
        else:
            print_line(text.removesuffix("\n"))

    return _run_read_only(act)


def _write_private(path: Path, text: str) -> None:
    """For its owner alone when it is new: a session may hold anything."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


@command.command("rename")
@click.argument("session")
@click.argument("name")
def rename(session: str, name: str) -> int:
    """Call a session otherwise. Its workspace stays where it is."""
    check_text(session, "the session's name")
    check_text(name, "the new name")
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            found = await agent.find_by_prefix(session)
            renamed = await agent.rename(found, name)
        print_line(f"{one_line(found.name)} is now called {one_line(renamed.name)}")
        return DONE

    return run_async(carry)


@command.command("delete")
@click.argument("session")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
def delete(session: str, is_sure: bool) -> int:
    """Delete a session and all that was said in it. The files in its workspace stay."""
    check_text(session, "the session's name")
    if not is_sure and not sys.stdin.isatty():
        raise Refused("a session is deleted for good: say --yes")

    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            found = await agent.find_by_prefix(session)
        what = f"{one_line(found.name)} ({one_line(found.title, _MAX_TITLE)})"
        # The home is not held while somebody thinks about it.
        if not is_sure and not click.confirm(f"Delete {what} for good?", err=True):
            raise Refused("nothing was deleted")
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            await agent.delete(found)
        print_line(f"deleted {what}; its workspace {found.workspace} is left as it is")
        return DONE

    return run_async(carry)
