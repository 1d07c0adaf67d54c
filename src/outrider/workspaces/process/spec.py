"""What is to be run, who runs it, and how it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

ExitReason = Literal["exit", "signal", "output", "killed", "lost"]


class CommandSpec(Struct, frozen=True):
    """A command, complete: nothing is taken from the process that starts it but its umask."""

    argv: tuple[str, ...]
    folder: Path
    """Of this task alone; made by `start`, and never used for a second task."""
    cwd: Path
    environ: Mapping[str, str]
    """All of it, besides OUTRIDER_TASK, which names the folder. Names that no shell accepts are dropped."""
    stdin: Literal["closed", "open"] | bytes = "closed"
    max_output: int = 10 * 1024 * 1024
    """Most bytes of output that are kept, in steps of 512; a command that says more is ended."""
    rlimits: Mapping[str, int] = {}
    """Of the command, by the names of `LIMITS`; sizes in bytes."""


class ProcessIdentity(Struct, frozen=True):
    """The supervisor of one task, never mistaken for another process that got its number later."""

    pid: int
    started: int
    """As the system counts it: ticks since boot where there is /proc, seconds of the clock elsewhere."""
    boot: str


class Exit(Struct, frozen=True):
    """How a task ended."""

    code: int | None
    """As a shell would say it, so 128 + n for signal n; None when nobody can know."""
    reason: ExitReason
    """`output`: there was more of it than may be kept, or the disk took no more.
    `killed`: by `kill`. `lost`: the supervisor was killed, or the machine went down."""
    signal: int = 0
    at: int = 0
    """Milliseconds of the clock; when it was noticed, if `lost`."""
