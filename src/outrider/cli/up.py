"""`outrider up`: the always-on process, in this terminal or behind it, and the commands that look after it."""

import sys
from functools import partial
from typing import Any

import click

from outrider.cli.opening import open_config
from outrider.cli.plain import check_text, print_line
from outrider.cli.root import DONE, FAILED
from outrider.config.load import Config, find_home
from outrider.config.redact import build_redactor


@click.group("up", invoke_without_command=True)
@click.option("--host", default="", metavar="ADDRESS", help="Where to listen; beyond loopback only with a key.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port to listen on; 0 takes a free one.")
@click.option("--detach", "-d", "is_detached", is_flag=True, help="Go to the background once it listens.")
@click.option("--print-unit", "is_unit", is_flag=True, help="Print a systemd unit that runs this, and do nothing.")
@click.pass_context
def command(ctx: click.Context, host: str, port: int | None, is_detached: bool, is_unit: bool) -> int:
    """Stay up: serve the HTTP API, and go on with turns and tasks.

    SIGTERM or Ctrl-C leaves in order: what was accepted is kept and goes on at the next start. A second one hurries.
    """
    options = (("--host", host), ("--port", "" if port is None else str(port)))
    given = [word for name, value in options if value for word in (name, value)]
    if ctx.invoked_subcommand:
        if given or is_detached or is_unit:
            raise click.UsageError(f"options of `outrider up` do not belong to `{ctx.invoked_subcommand}`", ctx)
        return DONE
    config = open_config({f"http.{name[2:]}": value for name, value in options})
    if is_unit:
        from outrider.cli.up_unit import render_unit

        print_line(render_unit(config.home, given))
        return DONE
    if is_detached:
        from outrider.cli.up_detach import start_detached

        return start_detached(config, given)
    return _run_in_foreground(config)


def _run_in_foreground(config: Config) -> int:
    import anyio

    from outrider.cli.logs import log_to_stderr
    from outrider.cli.up_serve import serve

    if sys.stderr.isatty():
        log_to_stderr(build_redactor(config).redact)
    options: dict[str, Any] = {"use_uvloop": _has_uvloop()}
    return anyio.run(partial(serve, config), backend_options=options)


def _has_uvloop() -> bool:
    from importlib.util import find_spec

    return find_spec("uvloop") is not None


@command.command("status")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def status(is_json: bool) -> int:
    """Whether it runs, where, since when, and how it is. Exit code 1 when it does not run or is not well."""
    from outrider.cli.up_control import print_status, server_status

    return print_status(server_status(find_home()), is_json=is_json)


@command.command("stop")
@click.option("--now", "is_now", is_flag=True, help="Do not wait for requests that are under way.")
def stop(is_now: bool) -> int:
    """Have it leave in order, and wait until it has. What it was doing goes on at the next start."""
    from outrider.cli.up_control import stop_server

    ended = stop_server(find_home(), is_now=is_now)
    print_line(f"stopped: process {ended} has left" if ended else "not running")
    return DONE if ended else FAILED


@command.command("logs")
@click.option("--lines", "-n", type=click.IntRange(0, 100_000), default=50, help="How many of the last lines.")
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Go on printing what is added.")
@click.option("--json", "is_json", is_flag=True, help="Print the lines as they stand in the file.")
def logs(lines: int, is_followed: bool, is_json: bool) -> int:
    """Print the last lines of this home's log."""
    from outrider.cli.up_logs import print_logs

    check_text(str(find_home()), "the home")
    return print_logs(find_home(), lines, is_followed=is_followed, is_json=is_json)
