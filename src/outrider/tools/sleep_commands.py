"""Recognition of commands that only sleep, from their parsed command line. Pure.

A command that does anything else, or is not understood, does not count: it runs.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from outrider.tools.shell_grammar import (
    CommandList,
    Group,
    NotUnderstood,
    Pipeline,
    Redirection,
    SimpleCommand,
    Word,
    parse_command_line,
)

_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/")
_NUMBER = re.compile(r"\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_HEX = re.compile(r"\+?0[xX][0-9a-fA-F]{1,12}")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SETTINGS = frozenset(("cd", "set", "export", "readonly", "unset", "umask", "shopt", "true", ":"))
"""Commands beside which a command still only sleeps."""
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_OPTIONS_WITH_ARGUMENT = {
    "nice": ("-n", "--adjustment"),
    "env": ("-u", "--unset", "-C", "--chdir"),
    "timeout": ("-k", "--kill-after", "-s", "--signal"),
    "stdbuf": ("-i", "-o", "-e"),
    "exec": ("-a",),
    "ionice": ("-c", "-n"),
}
"""Commands that run the command in their arguments, and their options that take the next word."""
_WRAPPERS = frozenset((*_OPTIONS_WITH_ARGUMENT, "command", "builtin", "time", "nohup", "setsid", "busybox", "toybox"))
_MAX_NESTING = 8
"""Shells within shells."""


class _Sleep(Struct, frozen=True):
    """A part of a command that does nothing but sleep, for this long."""

    seconds: float = 0.0
    succeeds: bool = True
    waits: bool = False
    """Whether it waits for what is in the background."""
    exits: bool = False
    """Whether nothing after it runs."""


class _DoesMore(Exception):
    """The command does something besides sleeping."""


def sleep_seconds(command: str) -> float:
    """How many seconds this command only sleeps; 0 when it also does something else, or is not understood.

    `cd x && sleep 60` and `timeout 9 sh -c "sleep 60"` only sleep. A sleep before other work does not, nor does one in
    a loop or a script.
    """
    try:
        return _sleep_of_text(command, 0).seconds
    except (NotUnderstood, _DoesMore):
        return 0.0


def _sleep_of_text(command: str, nesting: int) -> _Sleep:
    if nesting > _MAX_NESTING:
        raise NotUnderstood("too many shells within shells")
    return _sleep_of_list(parse_command_line(command), nesting)


def _sleep_of_list(commands: CommandList, nesting: int) -> _Sleep:
    total, background, succeeds = 0.0, 0.0, True
    runs_next = True
    for item in commands.items:
        if runs_next:
            sleep = _sleep_of_pipeline(item.pipeline, nesting)
            if item.operator == "&":
                background = max(background, total + sleep.seconds)
            else:
                total, succeeds = total + sleep.seconds, sleep.succeeds
                total = max(total, background) if sleep.waits else total
            if sleep.exits and item.operator != "&":
                break
        # Of `a || b && c`, c runs after a, although b does not.
        runs_next = item.operator not in ("&&", "||") or succeeds == (item.operator == "&&")
    return _Sleep(total, succeeds)


def _sleep_of_pipeline(pipeline: Pipeline, nesting: int) -> _Sleep:
    sleeps = [_sleep_of_command(command, nesting) for command in pipeline.commands]
    last = sleeps[-1]
    if len(sleeps) == 1 and not pipeline.is_negated:
        return last
    return _Sleep(max(sleep.seconds for sleep in sleeps), last.succeeds != pipeline.is_negated)


def _sleep_of_command(command: SimpleCommand | Group, nesting: int) -> _Sleep:
    _check_redirections(command.redirections)
    if isinstance(command, Group):
        return _sleep_of_list(command.body, nesting)
    if any(word.runs_commands for word in (*command.words, *command.assignments)):
        raise _DoesMore
    return _sleep_of_words(command.words, nesting)


def _check_redirections(redirections: Sequence[Redirection]) -> None:
    """A redirection to or from a file that is more than /dev/null does more than sleep."""
    for one in redirections:
        is_descriptor = one.operator in ("<&", ">&") and re.fullmatch(r"\d+|-", one.target.text)
        if not one.target.is_literal or not (is_descriptor or one.target.text == "/dev/null"):
            raise _DoesMore


def _sleep_of_words(words: Sequence[Word], nesting: int) -> _Sleep:
    if not words:
        return _Sleep()
    if not words[0].is_literal:
        raise NotUnderstood("the name of the command is expanded")
    name, rest = _program(words[0].text), words[1:]
    if name in _SETTINGS:
        return _Sleep()
    if name in ("wait", "exit"):
        return _Sleep(waits=name == "wait", exits=name == "exit")
    if name == "false":
        return _Sleep(succeeds=False)
    if not all(word.is_literal for word in rest):
        raise NotUnderstood("its arguments are expanded")
    arguments = [word.text for word in rest]
    if name == "sleep":
        return _Sleep(_sum_of_spans(arguments))
    if name in _SHELLS:
        return _sleep_of_text(_shell_script(arguments), nesting + 1)
    if name == "eval":
        return _sleep_of_text(" ".join(arguments), nesting + 1)
    if name not in _WRAPPERS:
        raise _DoesMore
    return _sleep_of_wrapped(name, arguments, nesting)


def _sleep_of_wrapped(name: str, arguments: Sequence[str], nesting: int) -> _Sleep:
    if nesting > _MAX_NESTING:
        raise NotUnderstood("too many commands within commands")
    arguments = _without_options(name, arguments)
    limit = math.inf
    if name == "timeout":
        limit = _span(arguments[0]) if arguments else math.inf
        arguments = arguments[1:]
    if name == "env":
        while arguments and "=" in arguments[0]:
            arguments = arguments[1:]
    if not arguments:
        raise _DoesMore
    inner = _sleep_of_words([Word(text) for text in arguments], nesting + 1)
    if limit and inner.seconds > limit:  # a limit of 0 is none
        return _Sleep(limit, succeeds=False)
    return inner


def _without_options(name: str, arguments: Sequence[str]) -> Sequence[str]:
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        option = arguments[index]
        if option in ("--help", "--version", "-S") or (name == "command" and option in ("-v", "-V")):
            raise _DoesMore
        index += 2 if option in _OPTIONS_WITH_ARGUMENT.get(name, ()) else 1
        if option == "--":
            break
    return arguments[index:]


def _program(text: str) -> str:
    """The name of a program in one of the system's folders; a path elsewhere stays as it is."""
    folder, slash, name = text.rpartition("/")
    return name if folder + slash in _FOLDERS else text


def _shell_script(arguments: Sequence[str]) -> str:
    """The script of `sh -c`."""
    for index, argument in enumerate(arguments):
        if re.fullmatch(r"-[a-z]*c", argument):
            if index + 1 < len(arguments):
                return arguments[index + 1]
        elif argument.startswith(("-", "+")):
            continue
        break
    raise NotUnderstood("a shell that reads its script from elsewhere")


def _sum_of_spans(arguments: Sequence[str]) -> float:
    spans = [_span(argument) for argument in arguments if argument != "--"]
    if not spans:
        raise _DoesMore
    return sum(spans)


def _span(text: str) -> float:
    """Seconds, as sleep and timeout read them."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if number.lower() in ("inf", "infinity"):
        return math.inf
    if _HEX.fullmatch(text):
        return float(int(text, 16))
    if not _NUMBER.fullmatch(number):
        raise NotUnderstood("not a span of time")
    return float(number) * unit
