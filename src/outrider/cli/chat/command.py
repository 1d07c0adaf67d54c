"""`outrider chat`, which is also `outrider` alone: checks what was typed, opens the home, and hands over.

What was typed after `outrider chat`.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
from msgspec import Struct

from outrider.app.api import OpenMode
from outrider.cli.options import session_settings
from outrider.cli.output import check_text
from outrider.cli.setup import open_config, resolve_workspace, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.ipc.takeover import open_home_client


class ChatOptions(Struct, frozen=True):
    """Which session to open, and how."""

    session: str = ""
    model: str = ""
    runtime: str | None = None
    workspace: str = ""
    is_new: bool = False
    is_continued: bool = False


@click.command("chat")
@click.option("--session", "-s", default="", metavar="NAME", help="Go on with the session of this name, or begin it.")
@click.option("--continue", "-c", "is_continued", is_flag=True, help="Go on with the latest session of this folder.")
@click.option("--new", "is_new", is_flag=True, help="Begin a new session, as without options.")
@click.option("--model", "-m", default="", metavar="NAME", help="The model this session is to use from now on.")
@click.option("--runtime", "-r", metavar="NAME", help="What carries its turns from now on, e.g. codex.")
@click.option("--workspace", "-w", default="", metavar="PATH", help="The folder a new session works in.")
def command(**typed: object) -> int:
    """Talk to the agent in this terminal."""
    wish = ChatOptions(**typed)  # pyright: ignore[reportArgumentType]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused('the chat needs a terminal; without one: outrider run "…"')
    if wish.is_continued and (wish.session or wish.is_new):
        raise Refused("--continue goes on with the latest session; leave out --session and --new")
    check_text(wish.session, "--session")
    config = open_config()
    settings = session_settings(config, wish.model, wish.runtime, is_new=True)
    return run_async(partial(_open_chat, config, wish, settings, resolve_workspace(config, wish.workspace)))


async def _open_chat(config: Config, options: ChatOptions, settings: Mapping[str, str], root: Path | None) -> int:
    from outrider.cli.chat.app import run_chat  # Slow to import, and `--help` does without it.

    async with open_home_client(config, OpenMode("outrider chat", "all"), root) as agent:
        return await run_chat(agent, options, settings, root)
