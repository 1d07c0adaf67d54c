"""`outrider up`: start the server in the foreground, in the background or as a systemd unit; status, stop and logs."""

import select
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from outrider.cli.commands import DONE, FAILED, JSON_OPTION
from outrider.cli.output import check_text, print_line, warn
from outrider.cli.setup import open_config
from outrider.config.load import find_home
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.system.files import touch_private

_START_TIMEOUT = 60.0
"""Seconds a start may take; repairing a damaged store is slow."""
_MAX_ERROR_CHARS = 64_000


def outrider_argv() -> list[str]:
    """How to start this installation of Outrider. `-P` keeps Python from importing files of the current folder."""
    return [sys.executable, "-P", "-m", "outrider"]


def start_detached(config: Config, options: Sequence[str]) -> int:
    """Start the server in the background and wait until it listens; returns the exit code."""
    errors = config.home / "logs" / "up.err"
    try:
        for folder in (config.home, errors.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        touch_private(errors)
        stderr = errors.open("wb")
    except OSError as error:
        raise Refused(
            f"{errors} cannot be written ({error.strerror}); make it writable, or set OUTRIDER_HOME to another path"
        ) from error
    with stderr:
        child = subprocess.Popen(
            [*outrider_argv(), "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    line = _first_line(child)
    if line:
        print_line(line)
        print_line(f"process {child.pid} runs in the background; to stop it: outrider up stop")
        return DONE
    for text in errors.read_text(encoding="utf-8", errors="replace")[-_MAX_ERROR_CHARS:].splitlines():
        warn(text.removeprefix("outrider: "))
    return child.wait() or FAILED


def _first_line(child: "subprocess.Popen[bytes]") -> str:
    """The line that the server prints when it listens; empty when it ended instead. Raises Unavailable if neither."""
    stream = child.stdout
    if stream is None:
        raise AssertionError("its stdout is a pipe")
    with stream:
        ready, _, _ = select.select([stream], [], [], _START_TIMEOUT)
        if not ready:
            child.terminate()
            raise Unavailable(f"the server did not start within {_START_TIMEOUT:g} s; `outrider up logs` may say why")
        return stream.readline().decode().rstrip("\n")


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
# Commands that the agent started keep running while Outrider restarts.
KillMode=process
TimeoutStopSec=30
Restart=always
RestartSec=1
# Exit code 2 needs a change by the user; a restart does not help.
RestartPreventExitStatus=2
UMask=0077

[Install]
WantedBy=default.target"""


def render_unit(home: Path, options: Sequence[str]) -> str:
    """A systemd unit that serves this home with these options."""
    command = " ".join(_systemd_quote(word) for word in (*outrider_argv(), "up", *options))
    return _UNIT.format(command=command, home=_systemd_quote(f"OUTRIDER_HOME={home}").replace("$$", "$"))


def _systemd_quote(word: str) -> str:
    """Quote a word for systemd, which expands `%` and `$` and interprets quotes and backslashes."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != word or any(c.isspace() or c in "';" for c in word) else word


@click.group("up", invoke_without_command=True)
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="Listen on this address; unless it is loopback, a key must exist already.",
)
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen on this port; 0 picks a free one.")
@click.option("--detach", "-d", "is_detached", is_flag=True, help="Start in the background; return when it is ready.")
@click.option("--print-unit", "is_unit", is_flag=True, help="Print a systemd unit and exit.")
@click.pass_context
def command(ctx: click.Context, host: str, port: int | None, is_detached: bool, is_unit: bool) -> int:
    """Serve the HTTP API and keep turns and tasks running.

    SIGTERM or Ctrl-C shuts down gracefully: accepted work is saved and continues at the next start. A second signal
    does not wait for open requests.
    """
    options = (("--host", host), ("--port", "" if port is None else str(port)))
    arguments = [word for name, value in options if value for word in (name, value)]
    if ctx.invoked_subcommand:
        if arguments or is_detached or is_unit:
            raise click.UsageError(f"`{ctx.invoked_subcommand}` does not take options of `outrider up`", ctx)
        return DONE
    config = open_config({f"http.{name[2:]}": value for name, value in options})
    if is_unit:
        print_line(render_unit(config.home, arguments))
        return DONE
    if is_detached:
        return start_detached(config, arguments)
    return _run_in_foreground(config)


def _run_in_foreground(config: Config) -> int:
    import anyio

    from outrider.cli.logging import log_to_stderr
    from outrider.cli.serve import serve

    if sys.stderr.isatty():
        log_to_stderr(build_redactor(config).redact)
    return anyio.run(serve, config, backend_options={"use_uvloop": find_spec("uvloop") is not None})


@command.command("status")
@JSON_OPTION
def status(is_json: bool) -> int:
    """Show whether the server is running and healthy. Exits with 1 if it is not."""
    from outrider.cli.service import print_status, server_status

    return print_status(server_status(find_home()), is_json=is_json)


@command.command("stop")
@click.option("--now", "is_now", is_flag=True, help="Do not wait for open requests.")
def stop(is_now: bool) -> int:
    """Stop the server gracefully and wait until it has ended. Its work continues at the next start."""
    from outrider.cli.service import stop_server

    pid = stop_server(find_home(), is_now=is_now)
    print_line(f"stopped process {pid}" if pid else "not running")
    return DONE if pid else FAILED


@command.command("logs")
@click.option(
    "--lines", "-n", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Print this many lines."
)
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Keep printing new lines.")
@click.option("--json", "is_json", is_flag=True, help="Print the lines as JSON, as they are in the file.")
def logs(lines: int, is_followed: bool, is_json: bool) -> int:
    """Print the end of the log."""
    from outrider.cli.service import print_logs

    check_text(str(find_home()), "the home")
    return print_logs(find_home(), lines, is_followed=is_followed, is_json=is_json)
