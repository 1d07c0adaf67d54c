"""Starts `outrider up` in the background, and stays until it listens or says why it does not."""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.cli.plain import print_line, warn
from outrider.cli.root import DONE, FAILED
from outrider.config.load import Config
from outrider.core.errors import Refused, Unavailable

_START_TIMEOUT = 60.0
"""Seconds a start may take: a store that must be mended first takes its time."""
_MAX_ERROR_CHARS = 64_000


def outrider_argv() -> list[str]:
    """How to start this very Outrider; `-P`, so that no file of the current folder is taken for a part of it."""
    return [sys.executable, "-P", "-m", "outrider"]


def start_detached(config: Config, options: Sequence[str]) -> int:
    """Start it with these options; the exit code. Its process is told on stdout."""
    errors = config.home / "logs" / "up.err"
    with _open_private(errors) as file:
        child = subprocess.Popen(
            [*outrider_argv(), "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    line = _first_line(child)
    if line:
        print_line(line)
        print_line(f"process {child.pid} is in the background; `outrider up stop` ends it")
        return DONE
    for text in errors.read_text(encoding="utf-8", errors="replace")[-_MAX_ERROR_CHARS:].splitlines():
        warn(text.removeprefix("outrider: "))
    return child.wait() or FAILED


def _first_line(child: "subprocess.Popen[bytes]") -> str:
    """What it says once it listens; empty when it ended instead. Raises Unavailable when it does neither."""
    stream = child.stdout
    if stream is None:
        raise AssertionError("its stdout is a pipe")
    with stream:
        ready, _, _ = select.select([stream], [], [], _START_TIMEOUT)
        if not ready:
            child.terminate()
            raise Unavailable(f"it has not begun to listen within {_START_TIMEOUT:g} s; `outrider up logs` may say why")
        return stream.readline().decode().rstrip("\n")


def _open_private(path: Path):
    try:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}); "
            "make it one that you can write to, or name another home with OUTRIDER_HOME"
        ) from error
