"""How a call and its result read in a line or two. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.cli.chat.clean import one_line
from outrider.cli.chat.shows import Output, Ran, Show
from outrider.core.events import Result
from outrider.core.parts import Call

SHELL = "shell"
_TELLING = ("path", "command", "pattern", "query", "url", "name")
"""Which argument says best what a call is about."""
_SHOWN = 3
"""Lines of output shown of a command that failed."""


class _Outcome(Struct, frozen=True):
    """What a command's result tells besides its details."""

    status: str = ""
    task: str = ""
    exit_code: int | None = None
    output: str | None = None


def mark_of(call: Call | None) -> str:
    """What stands before a call's line."""
    return "$" if call and call.tool == SHELL and not call.broken else "⚙"


def call_line(call: Call, longest: int = 60) -> str:
    """A call in a few words, e.g. `read README.md`; of a command, the command alone."""
    if call.tool == "tasks":
        return one_line(f"tasks {call.args.get('action', '')} {call.args.get('task', '')}", longest)
    telling = [call.args[name] for name in _TELLING if name in call.args] or list(call.args.values())
    words = next((value for value in telling if isinstance(value, str | int | float) and str(value).strip()), "")
    return one_line(str(words) if mark_of(call) == "$" else f"{call.tool} {words}", longest)


def ran(call: Call | None, result: Result) -> Sequence[Show]:
    """A call's line, once its result is known; of a command that failed, also the end of its output."""
    what, mark = call_line(call) if call else "a call", mark_of(call)
    if result.failed:
        return [Ran(what, one_line(result.details or result.text or "failed", 160), failed=True, mark=mark)]
    outcome = _outcome(result) if call and call.tool in (SHELL, "delegate") else _Outcome()
    match outcome.status:
        case "background_started":
            return [Ran(what, f"runs as {one_line(outcome.task)}", mark=mark)]
        case "auto_backgrounded":
            return [Ran(what, f"goes on as {one_line(outcome.task)}", mark=mark)]
        case _:
            line = Ran(what, one_line(result.details, 80), mark=mark)
            tail = last_lines(outcome.output or "", _SHOWN) if outcome.exit_code else ()
            return [line, Output(tail)] if tail else [line]


def denied(call: Call | None) -> Sequence[Show]:
    """The line of a call that a person did not allow."""
    return [Ran(call_line(call) if call else "a call", "not run", failed=True, mark=mark_of(call))]


def cut_off(call: Call) -> Sequence[Show]:
    """The line of a call whose turn ended before it did."""
    return [Ran(call_line(call), "cut off", failed=True, mark=mark_of(call))]


def _outcome(result: Result) -> _Outcome:
    try:
        return msgspec.json.decode(result.text, type=_Outcome)
    except (msgspec.MsgspecError, UnicodeError):  # Cut, or written by a tool of somebody else's.
        return _Outcome()


def last_lines(output: str, most: int, longest: int = 200) -> tuple[str, ...]:
    """The last lines of an output that hold something, each cleaned and cut."""
    # What a carriage return has written over is not seen in a terminal either.
    ends = [line.rstrip("\r").rpartition("\r")[2] for line in output[-most * 2_000 :].split("\n")]
    lines = [one_line(line, longest) for line in ends]
    return tuple([line for line in lines if line][-most:])
