"""How to speak to a command inside: a signal to bubblewrap itself ends everything at once."""

from pathlib import Path


def command_group(pid: int) -> int | None:
    """The process group of the command that the sandbox started as `pid` holds; None before it runs or when it ended.

    SIGTERM or SIGINT to this group asks the command to stop in its own way; SIGKILL to `pid` ends all of it.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        first = int(children[0])
        fields = Path(f"/proc/{first}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, IndexError):
        return None
    group = int(fields[2])
    return group if group == first else None
