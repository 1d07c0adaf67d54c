"""How a call and its result read in a line or two. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.cli.chat.clean import sanitize_line
from outrider.cli.chat.shows import DisplayItem, OutputLines, ToolLine
from outrider.core.events import Result
from outrider.core.parts import Call

SHELL = "shell"
_MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "url", "name")
"""Which argument says best what a call is about."""
_FAILED_OUTPUT_LINES = 3
"""Lines of output shown of a command that failed."""


class _ShellResult(Struct, frozen=True):
    """What a command's result tells besides its details."""

    status: str = ""
    task: str = ""
    exit_code: int | None = None
    output: str | None = None


def call_symbol(call: Call | None) -> str:
    """What stands before a call's line."""
    return "$" if call and call.tool == SHELL and not call.broken else "⚙"


def call_line(call: Call, longest: int = 60) -> str:
    """A call in a few words, e.g. `read README.md`; of a command, the command alone."""
    if call.tool == "tasks":
        return sanitize_line(f"tasks {call.args.get('action', '')} {call.args.get('task', '')}", longest)
    telling = [call.args[name] for name in _MAIN_ARGUMENTS if name in call.args] or list(call.args.values())
    words = next((value for value in telling if isinstance(value, str | int | float) and str(value).strip()), "")
    return sanitize_line(str(words) if call_symbol(call) == "$" else f"{call.tool} {words}", longest)


def result_items(call: Call | None, result: Result) -> Sequence[DisplayItem]:
    """A call's line, once its result is known; of a command that failed, also the end of its output."""
    what, mark = call_line(call) if call else "a call", call_symbol(call)
    if result.failed:
        return [ToolLine(what, sanitize_line(result.details or result.text or "failed", 160), failed=True, symbol=mark)]
    outcome = _parse_shell_result(result) if call and call.tool in (SHELL, "delegate") else _ShellResult()
    match outcome.status:
        case "background_started":
            return [ToolLine(what, f"runs as {sanitize_line(outcome.task)}", symbol=mark)]
        case "auto_backgrounded":
            return [ToolLine(what, f"goes on as {sanitize_line(outcome.task)}", symbol=mark)]
        case _:
            line = ToolLine(what, sanitize_line(result.details, 80), symbol=mark)
            tail = last_lines(outcome.output or "", _FAILED_OUTPUT_LINES) if outcome.exit_code else ()
            return [line, OutputLines(tail)] if tail else [line]


def denied_items(call: Call | None) -> Sequence[DisplayItem]:
    """The line of a call that a person did not allow."""
    return [ToolLine(call_line(call) if call else "a call", "not run", failed=True, symbol=call_symbol(call))]


def cut_off_items(call: Call) -> Sequence[DisplayItem]:
    """The line of a call whose turn ended before it did."""
    return [ToolLine(call_line(call), "cut off", failed=True, symbol=call_symbol(call))]


def _parse_shell_result(result: Result) -> _ShellResult:
    try:
        return msgspec.json.decode(result.text, type=_ShellResult)
    except (msgspec.MsgspecError, UnicodeError):  # Cut, or written by a tool of somebody else's.
        return _ShellResult()


def last_lines(output: str, most: int, longest: int = 200) -> tuple[str, ...]:
    """The last lines of an output that hold something, each cleaned and cut."""
    # What a carriage return has written over is not seen in a terminal either.
    ends = [line.rstrip("\r").rpartition("\r")[2] for line in output[-most * 2_000 :].split("\n")]
    lines = [sanitize_line(line, longest) for line in ends]
    return tuple([line for line in lines if line][-most:])
