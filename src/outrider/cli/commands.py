"""Root command, command table, exit codes, and the translation of errors into exit codes.

A command's module is imported only when the command runs or shows its own help. Every error is printed as one line on
stderr.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

import click

from outrider import __version__
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.text import closest_match

DONE = 0
FAILED = 1
"""The turn or task failed, or a check found a problem."""
USAGE_ERROR = 2
"""The user must change something first: the command line, a setting, the home."""
INTERNAL_ERROR = 70
TRY_AGAIN = 75
"""The same command may succeed later."""
INTERRUPTED = 130
"""Ctrl-C."""
TURN_EXIT_CODES: Mapping[str, int] = {"done": DONE, "failed": FAILED, "interrupted": INTERRUPTED}
"""Exit code by the outcome of a turn."""

JSON_OPTION = click.option("--json", "is_json", is_flag=True, help="Print JSON.")

_COMMANDS = {
    "chat": ("outrider.cli.chat.command", "Chat with the agent in this terminal (the default command)."),
    "run": ("outrider.cli.run", "Run one turn and print the reply."),
    "resume": ("outrider.cli.resume", "Finish turns that a crash or a shutdown interrupted."),
    "up": ("outrider.cli.up", "Serve the HTTP API and keep turns and tasks running."),
    "sessions": ("outrider.cli.sessions", "List, show, search, export, rename and delete sessions."),
    "tasks": ("outrider.cli.tasks", "List, follow, wait for, write to and kill background tasks."),
    "questions": ("outrider.cli.questions", "List pending questions and answer them."),
    "permissions": ("outrider.cli.questions:permissions_command", "List and revoke the permissions you granted."),
    "runtime": ("outrider.cli.runtime", "Choose the runtime: the built-in loop, Codex or an ACP agent."),
    "key": ("outrider.cli.keys", "Show, create, list and revoke API keys."),
    "config": ("outrider.cli.config", "List and change settings."),
    "doctor": ("outrider.cli.doctor", "Check this installation and suggest fixes."),
    "practice-model": (
        "outrider.cli.practice_model",
        "Serve the practice model, or replies that you script, on 127.0.0.1.",
    ),
}


class _LazyGroup(click.Group):
    """A group that reads names and descriptions from the table and imports a command's module on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        return getattr(import_module(module), attribute or "command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            near = closest_match(args[0], _COMMANDS)
            hint = f"did you mean `outrider {near}`?" if near else f'to send a message: outrider run "{args[0]} …"'
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Without a command, `outrider` opens the chat. Data and settings are in OUTRIDER_HOME, or ~/.outrider.",
)
@click.version_option(__version__, message="outrider %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """A self-hosted agent whose work survives crashes and restarts."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(import_module(_COMMANDS["chat"][0]).command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. An error is one line on stderr; its traceback goes to the log."""
    _fill_closed_streams()
    try:
        code = root.main(list(arguments), prog_name="outrider", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        return _print_error(_usage_error_text(error), error.exit_code)
    except (HomeBusy, Unavailable) as error:
        return _print_error(str(error), TRY_AGAIN)
    except Refused as error:
        return _print_error(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        describe_log = _start_fallback_log()
        logging.getLogger("outrider").exception("command failed: %s", " ".join(arguments[:1]))
        return _print_error(f"internal error: {type(error).__name__}: {error}; {describe_log()}", INTERNAL_ERROR)
    return code if isinstance(code, int) else DONE


def _fill_closed_streams() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr, so that no file we open gets its descriptor."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)


def _usage_error_text(error: click.ClickException) -> str:
    """Click's message as one line, with a reference to the command's help."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see `{context.command_path} --help`" if context else text


def _start_fallback_log() -> Callable[[], str]:
    """Start logging if the command has not. The result says, once a line was logged, where it is."""
    from outrider.cli.logging import log_path, start_logging
    from outrider.config.load import find_home

    home = find_home()
    if not logging.getLogger().handlers:
        start_logging(home)
    path = log_path(home)
    return lambda: f"details are in {path}" if path.exists() else f"the log {path} could not be written"


def _print_error(text: str, code: int) -> int:
    from outrider.cli.output import warn

    warn(text)
    return code
