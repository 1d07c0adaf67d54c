"""The files in a task's folder. Whoever holds the folder can take the task up."""

from pathlib import Path

MARKER = "OUTRIDER_TASK"
"""The variable by which the processes of a task are found; its value is the folder."""


class Files:
    """By what they tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.exit = folder / "exit"
        """The status and a newline. Room for it is taken at the start: a full disk cannot hide how a command ended."""
        self.pid = folder / "pid"
        """The supervisor, as the system describes it. Complete before there is `started`."""
        self.started = folder / "started"
        """A file: taken by the supervisor, the command runs. A folder: taken by `adopt`, it never will."""
        self.group = folder / "group"
        """The command's first process, as the system describes it."""
        self.pipe = folder / "pipe"
        """The name of the pipe that takes the output to the copier."""
        self.full = folder / "full"
        """There was more output than could be kept."""
        self.killed = folder / "killed"
        """Someone set out to kill it; written before the first signal."""
        self.said = folder / "said"
        """What the supervising shell remarked about the command's death."""
        self.stdin = folder / "stdin"
        self.hold = folder / "hold"
        """Whoever opens this to write ends the process that holds `stdin` open."""
        self.given = folder / "given"
        """Text for stdin, until the command has it."""


def content(path: Path) -> bytes:
    """Of a small file; empty when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
