"""The root command: which commands there are, each loaded when it is used, and how errors are shown."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import click

from outrider import __version__
from outrider.core.errors import HomeBusy, Refused, Unavailable

DONE, FAILED, MISUSED, BROKEN, LATER, STOPPED = 0, 1, 2, 70, 75, 130
"""Exit codes: the turn is done; it failed; something must be changed first; a bug of ours; try again later; Ctrl-C."""
_COMMANDS = {
    "chat": ("outrider.cli.chat.command", "Talk to the agent in this terminal (what `outrider` alone does)."),
    "run": ("outrider.cli.run", "Do one thing and print the reply."),
    "resume": ("outrider.cli.resume", "Finish what a crash or a shutdown left unfinished."),
    "up": ("outrider.cli.up", "Stay up: serve the HTTP API, go on with turns and tasks."),
    "sessions": ("outrider.cli.sessions", "List, show, search, export, rename and delete sessions."),
    "tasks": ("outrider.cli.tasks", "List, follow, wait for, write to and kill background tasks."),
    "questions": ("outrider.cli.questions", "List the questions that wait for you, and answer them."),
    "permissions": ("outrider.cli.questions:permissions_command", "List what you allowed for good, and take it back."),
    "runtime": ("outrider.cli.runtime", "Choose what carries turns: our own loop, Codex, an ACP agent."),
    "key": ("outrider.cli.keys", "Show, make, list and revoke keys to the API."),
    "config": ("outrider.cli.config", "List and change settings."),
    "doctor": ("outrider.cli.doctor", "Check this installation and say what to do about problems."),
    "practice-model": ("outrider.cli.practice_model", "Serve a scripted model on loopback, for tests and tries."),
}


class _LazyGroup(click.Group):
    """Knows names and one-line descriptions; imports a command's module only to run it or show its own help."""

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
            from difflib import get_close_matches

            near = get_close_matches(args[0], _COMMANDS, 1)
            hint = f"did you mean `outrider {near[0]}`?" if near else f'to say something: outrider run "{args[0]} …"'
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="With no command, `outrider` opens the chat. Home: OUTRIDER_HOME, else ~/.outrider.",
)
@click.version_option(__version__, message="outrider %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """An agent that finishes what it starts."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(import_module(_COMMANDS["chat"][0]).command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. No error reaches the terminal as more than one line."""
    _fill_closed_streams()
    try:
        code = root.main(list(arguments), prog_name="outrider", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return STOPPED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        return _print_error(_usage_error_text(error), error.exit_code)
    except (HomeBusy, Unavailable) as error:
        return _print_error(str(error), LATER)
    except Refused as error:
        return _print_error(str(error), MISUSED)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        log = _start_fallback_log()
        logging.getLogger("outrider").exception("a command failed: %s", " ".join(arguments[:1]))
        return _print_error(f"internal error: {type(error).__name__}: {error}; {log()}", BROKEN)
    return code if isinstance(code, int) else DONE


def _fill_closed_streams() -> None:
    """A closed stdin, stdout or stderr becomes an empty one, so that no file of ours is opened in its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)


def _usage_error_text(error: click.ClickException) -> str:
    """What click has to say, on one line, with where to read on."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see `{context.command_path} --help`" if context else text


def _start_fallback_log() -> Callable[[], str]:
    """Begin the log if no command has yet; what to say about it once the line is written."""
    from outrider.cli.logging import log_path, start_logging
    from outrider.config.load import find_home

    home = find_home()
    if not logging.getLogger().handlers:
        start_logging(home)
    path = log_path(home)
    return lambda: f"details are in {path}" if path.exists() else f"no log could be written to {path}"


def _print_error(text: str, code: int) -> int:
    from outrider.cli.output import warn

    warn(text)
    return code
