"""Reads what the tools for commands answered. What a command wrote is material, never orders."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

_OPEN = frozenset({"background_started", "auto_backgrounded", "timeout", "queued", "running", "stalled"})
_MOST_LINES = 60
"""Lines of an output that are shown of its beginning, and as many of its end."""
_LONGEST_LINE = 500


class Outcome(Struct, frozen=True):
    """What became of a command, as `shell` and `tasks` tell it."""

    status: str
    task: str = ""
    state: str = ""
    what: str = ""
    exit_code: int | None = None
    reason: str = ""
    output: str | None = None
    notify: bool | None = None
    message: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the command goes on."""
        return (self.state or self.status) in _OPEN


class Row(Struct, frozen=True):
    """A task in a list."""

    task: str
    state: str
    what: str = ""
    exit_code: int | None = None

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN


class Rows(Struct, frozen=True):
    tasks: list[Row]
    """The newest first."""
    count: int = 0


def parse_outcome(text: str) -> Outcome | None:
    """None for an answer of another shape, such as a refusal's words."""
    try:
        return msgspec.json.decode(text, type=Outcome)
    except msgspec.DecodeError:
        return None


def parse_rows(text: str) -> Rows | None:
    try:
        return msgspec.json.decode(text, type=Rows)
    except msgspec.DecodeError:
        return None


def shown(output: str, most: int = _MOST_LINES) -> list[str]:
    """The lines of an output, or its first and last ones with a line that says how many are left out."""
    lines = [line.rstrip("\r") for line in output.strip("\n").split("\n")] if output.strip("\n") else []
    left_out = len(lines) - 2 * most
    if left_out > 0:
        lines = [*lines[:most], f"[… {left_out:,} lines left out …]", *lines[-most:]]
    return [_clipped(line) for line in lines]


def last(lines: Sequence[str], most: int) -> list[str]:
    return [_clipped(line) for line in lines[-most:]]


def _clipped(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + " …"
