"""The files in a task's folder. Whoever holds the folder can take the task up."""

from pathlib import Path

from msgspec import Struct

TASK_VARIABLE = "OUTRIDER_TASK"
"""The variable by which the processes of a task are found; its value is the folder."""


class TaskFiles:
    """By what they tell. Few, since to make one is most of what it costs to start a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.record = folder / "record"
        """What is known of the task, a line for each fact. It has content from the start, and so a block of the disk:
        a full one cannot hide how a command ended."""
        self.started = folder / "started"
        """A file: taken by the supervisor, the command runs; it holds what the shell remarked on the command's death.
        A folder: taken by `adopt`, it never will."""
        self.full = folder / "full"
        """There was more output than could be kept."""
        self.killed = folder / "killed"
        """Someone set out to kill it; written before the first signal."""
        self.stdin = folder / "stdin"
        self.hold = folder / "hold"
        """Whoever opens this to write ends the process that holds `stdin` open."""
        self.stdin_text = folder / "given"
        """Text for stdin, until the command has it."""


class TaskRecord(Struct, frozen=True):
    """The lines of a task's record, as far as they were written."""

    pipe: str = ""
    """The name of the pipe that takes the output to the copier."""
    supervisor: bytes = b""
    """As the system describes it. This and `boot` are complete before there is `started`."""
    boot: str = ""
    first_process: bytes = b""
    """The command's first process, as the system describes it."""
    exit: str = ""
    """Its status, and `silent` if the shell does not remark on deaths."""


def read_record(folder: Path) -> TaskRecord:
    """Half a line counts as none."""
    lines = (line.partition(b" ") for line in read_or_empty(TaskFiles(folder).record).split(b"\n")[:-1])
    facts = {name: fact for name, _, fact in lines}
    return TaskRecord(
        pipe=_decode_fact(facts.get(b"pipe")),
        supervisor=facts.get(b"supervisor", b""),
        boot=_decode_fact(facts.get(b"boot")),
        first_process=facts.get(b"first", b""),
        exit=_decode_fact(facts.get(b"exit")),
    )


def read_or_empty(path: Path) -> bytes:
    """Of a small file; empty when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _decode_fact(fact: bytes | None) -> str:
    return (fact or b"").decode("ascii", "replace").strip()
