"""`outrider sessions`: list, show, search, export, rename and delete sessions."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from outrider.app.api import OpenMode
from outrider.cli.commands import JSON_OPTION
from outrider.cli.output import (
    check_text,
    encode_json,
    format_table,
    format_time,
    now_ms,
    one_line,
    print_json,
    print_line,
    render_session,
    time_ago,
    warn,
)
from outrider.cli.render import markdown_page, transcript_lines
from outrider.cli.setup import open_config, open_home, open_read_only, run_async
from outrider.core.errors import Refused
from outrider.core.events import render_entry
from outrider.core.store_port import Session, session_status
from outrider.system.files import write_private

_LABEL = "outrider sessions"
_MODE = OpenMode(_LABEL, "none")
_MAX_TITLE = 48


@click.group("sessions")
def command() -> None:
    """List, show, search, export, rename and delete sessions.

    SESSION is a session's name, its id, or at least the first six characters of its id.
    """


@command.command("list")
@JSON_OPTION
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="List at most this many.")
def list_sessions(is_json: bool, limit: int) -> int:
    """List sessions, most recent first."""
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _LABEL) as agent:
            sessions = await agent.sessions(limit)
        if is_json:
            print_json([render_session(session) for session in sessions], is_pretty=True)
        elif sessions:
            print_line("\n".join(_sessions_table(sessions, now_ms())))
        else:
            print_line('no sessions yet; to start one: outrider run "…"')

    return run_async(act)


def _sessions_table(sessions: Sequence[Session], now: int) -> list[str]:
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
    return format_table(rows)


@command.command("show")
@click.argument("session")
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON for each entry.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Show only entries after this one.")
@click.option("--limit", type=click.IntRange(0), default=0, help="Show at most this many entries; 0 for all.")
def show(session: str, is_json: bool, after: int, limit: int) -> int:
    """Show the transcript of a session."""
    check_text(session, "the session's name")
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _LABEL) as agent:
            row = await agent.find_by_prefix(session)
            entries = await agent.journal(row, after, limit)
        if is_json:
            for entry in entries:
                print_json(render_entry(entry))
            return
        print_line(f"{one_line(row.name)} ({row.id}), {session_status(row)}, in {one_line(row.workspace)}\n")
        for line in transcript_lines(row, entries):
            print_line(line)

    return run_async(act)


@command.command("search")
@click.argument("words", nargs=-1, required=True)
@JSON_OPTION
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Print at most this many.")
def search(words: tuple[str, ...], is_json: bool, limit: int) -> int:
    """Find the messages that contain these words."""
    query = check_text(" ".join(words), "the search text")
    config = open_config()

    async def act() -> None:
        async with open_home(config, _MODE) as agent:
            hits = await agent.search(query, limit)
        if is_json:
            print_json(hits, is_pretty=True)
            return
        for hit in hits:
            print_line(f"{one_line(hit.name)} #{hit.seq}  {format_time(hit.at)}  {one_line(hit.excerpt, 200)}")
        if not hits:
            warn("no matches")

    return run_async(act)


@command.command("export")
@click.argument("session")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "markdown"]),
    default="markdown",
    show_default=True,
    help="Format of the document.",
)
@click.option("--output", "-o", default="", metavar="FILE", help="Write to FILE instead of stdout.")
@click.option("--force", "is_forced", is_flag=True, help="Replace FILE if it exists.")
def export(session: str, form: str, output: str, is_forced: bool) -> int:
    """Export a whole session as one document."""
    check_text(session, "the session's name")
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _LABEL) as agent:
            row = await agent.find_by_prefix(session)
            entries = await agent.journal(row)
        if form == "json":
            document = {"session": render_session(row), "entries": [render_entry(entry) for entry in entries]}
            text = encode_json(document, is_pretty=True) + "\n"
        else:
            text = markdown_page(row, entries)
        if output:
            _write_document(Path(output), text, may_replace=is_forced)
        else:
            print_line(text.removesuffix("\n"))

    return run_async(act)


def _write_document(path: Path, text: str, *, may_replace: bool) -> None:
    """Write a file; a new one is readable by its owner alone, since a session may contain secrets."""
    try:
        write_private(path, text.encode())
    except FileExistsError:
        if path.is_file() and not may_replace:  # Not so for a pipe or a terminal.
            raise Refused(f"{path} already exists; name another file, or add --force to replace it") from None
        _replace_document(path, text)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


def _replace_document(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


@command.command("rename")
@click.argument("session")
@click.argument("name")
def rename(session: str, name: str) -> int:
    """Rename a session. Its workspace does not move."""
    check_text(session, "the session's name")
    check_text(name, "the new name")
    config = open_config()

    async def act() -> None:
        async with open_home(config, _MODE) as agent:
            row = await agent.find_by_prefix(session)
            renamed = await agent.rename(row, name)
        print_line(f"renamed {one_line(row.name)} to {one_line(renamed.name)}")

    return run_async(act)


@command.command("delete")
@click.argument("session")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
def delete(session: str, is_sure: bool) -> int:
    """Delete a session permanently. The files in its workspace stay."""
    check_text(session, "the session's name")
    if not is_sure and not sys.stdin.isatty():
        raise Refused("deleting a session is permanent; to confirm, add --yes")
    config = open_config()

    async def act() -> None:
        async with open_home(config, _MODE) as agent:
            row = await agent.find_by_prefix(session)
        title = f"{one_line(row.name)} ({one_line(row.title, _MAX_TITLE)})"
        # The home stays free for others while the user decides.
        if not is_sure and not click.confirm(f"Delete {title} permanently?", err=True):
            raise Refused("nothing was deleted")
        async with open_home(config, _MODE) as agent:
            await agent.delete(row)
        print_line(f"deleted {title}; its workspace {row.workspace} was not changed")

    return run_async(act)
