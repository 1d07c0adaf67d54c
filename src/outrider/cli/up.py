"""`outrider up`: the always-on process, in this terminal or behind it, and the commands that look after it.

Starts `outrider up` in the background, and stays until it listens or says why it does not.

A systemd unit for `outrider up`.
"""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from outrider.cli.commands import DONE, FAILED
from outrider.cli.output import check_text, print_line, warn
from outrider.cli.setup import open_config
from outrider.config.load import find_home
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable

_START_TIMEOUT = 60.0
"""Seconds a start may take: a store that must be mended first takes its time."""
_MAX_ERROR_CHARS = 64_000


def outrider_argv() -> list[str]:
    """How to start this very Outrider; `-P`, so that no file of the current folder is taken for a part of it."""
    return [sys.executable, "-P", "-m", "outrider"]


def start_detached(config: Config, options: Sequence[str]) -> int:
    """Start it with these options; the exit code. Its process is told on stdout."""
    errors = config.home / "logs" / "up.err"
    with _open_private(errors) as file:
        child = subprocess.Popen(
            [*outrider_argv(), "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    line = _first_line(child)
    if line:
        print_line(line)
        print_line(f"process {child.pid} is in the background; `outrider up stop` ends it")
        return DONE
    for text in errors.read_text(encoding="utf-8", errors="replace")[-_MAX_ERROR_CHARS:].splitlines():
        warn(text.removeprefix("outrider: "))
    return child.wait() or FAILED


def _first_line(child: "subprocess.Popen[bytes]") -> str:
    """What it says once it listens; empty when it ended instead. Raises Unavailable when it does neither."""
    stream = child.stdout
    if stream is None:
        raise AssertionError("its stdout is a pipe")
    with stream:
        ready, _, _ = select.select([stream], [], [], _START_TIMEOUT)
        if not ready:
            child.terminate()
            raise Unavailable(f"it has not begun to listen within {_START_TIMEOUT:g} s; `outrider up logs` may say why")
        return stream.readline().decode().rstrip("\n")


def _open_private(path: Path):
    try:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}); "
            "make it one that you can write to, or name another home with OUTRIDER_HOME"
        ) from error


_UNIT = """\
# mkdir -p ~/.config/systemd/user
# outrider up --print-unit > ~/.config/systemd/user/outrider.service
# systemctl --user enable --now outrider; loginctl enable-linger

[Unit]
Description=Outrider
After=network.target

[Service]
Type=exec
ExecStart={command}
Environment={home}
# Commands that the agent started go on while Outrider restarts.
KillMode=process
TimeoutStopSec=30
Restart=always
RestartSec=1
# Something must be changed first; starting again does not help.
RestartPreventExitStatus=2
UMask=0077

[Install]
WantedBy=default.target"""


def render_unit(home: Path, options: Sequence[str]) -> str:
    """The unit that serves this home with these options."""
    command = " ".join(_systemd_quote(word) for word in (*outrider_argv(), "up", *options))
    return _UNIT.format(command=command, home=_systemd_quote(f"OUTRIDER_HOME={home}").replace("$$", "$"))


def _systemd_quote(word: str) -> str:
    """As systemd reads it back: `%` and `$` would be replaced, quotes and backslashes read as such."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != word or any(c.isspace() or c in "';" for c in word) else word


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
        print_line(render_unit(config.home, given))
        return DONE
    if is_detached:
        return start_detached(config, given)
    return _run_in_foreground(config)


def _run_in_foreground(config: Config) -> int:
    import anyio

    from outrider.cli.logging import log_to_stderr
    from outrider.cli.serve import serve

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
    from outrider.cli.service import print_status, server_status

    return print_status(server_status(find_home()), is_json=is_json)


@command.command("stop")
@click.option("--now", "is_now", is_flag=True, help="Do not wait for requests that are under way.")
def stop(is_now: bool) -> int:
    """Have it leave in order, and wait until it has. What it was doing goes on at the next start."""
    from outrider.cli.service import stop_server

    ended = stop_server(find_home(), is_now=is_now)
    print_line(f"stopped: process {ended} has left" if ended else "not running")
    return DONE if ended else FAILED


@command.command("logs")
@click.option("--lines", "-n", type=click.IntRange(0, 100_000), default=50, help="How many of the last lines.")
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Go on printing what is added.")
@click.option("--json", "is_json", is_flag=True, help="Print the lines as they stand in the file.")
def logs(lines: int, is_followed: bool, is_json: bool) -> int:
    """Print the last lines of this home's log."""
    from outrider.cli.service import print_logs

    check_text(str(find_home()), "the home")
    return print_logs(find_home(), lines, is_followed=is_followed, is_json=is_json)
