"""The command `outrider chat`, which is also `outrider` alone: checks the options and opens the home."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
from msgspec import Struct

from outrider.app.api import OpenMode
from outrider.cli.options import check_not_blank, session_settings
from outrider.cli.setup import open_config, resolve_workspace, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.ipc.takeover import open_home_client


class ChatOptions(Struct, frozen=True):
    session: str | None = None
    model: str = ""
    runtime: str | None = None
    workspace: str = ""
    is_new: bool = False
    is_continued: bool = False


@click.command("chat")
@click.option("--session", "-s", metavar="NAME", help="Continue the session with this name, or start it.")
@click.option("--continue", "-c", "is_continued", is_flag=True, help="Continue the latest session of this folder.")
@click.option("--new", "is_new", is_flag=True, help="Start a new session (the default).")
@click.option("--model", "-m", default="", metavar="NAME", help="Use this model in the session from now on.")
@click.option("--runtime", "-r", metavar="NAME", help="Use this runtime in the session from now on, e.g. codex.")
@click.option(
    "--workspace", "-w", default="", metavar="PATH", help="Use this folder as the workspace of a new session."
)
def command(**typed: object) -> int:
    """Chat with the agent in this terminal."""
    options = ChatOptions(**typed)  # pyright: ignore[reportArgumentType]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused('the chat needs a terminal; without one, use: outrider run "…"')
    if options.is_continued and (options.session or options.is_new):
        raise Refused("--continue cannot be combined with --session or --new")
    check_not_blank(options.session, "--session")
    config = open_config()
    settings = session_settings(config, options.model, options.runtime, is_new=True)
    return run_async(partial(_open_chat, config, options, settings, resolve_workspace(config, options.workspace)))


async def _open_chat(config: Config, options: ChatOptions, settings: Mapping[str, str], root: Path | None) -> int:
    from outrider.cli.chat.app import run_chat  # Slow to import, and `--help` does without it.

    async with open_home_client(config, OpenMode("outrider chat", "all"), root) as agent:
        return await run_chat(agent, options, settings, root)
