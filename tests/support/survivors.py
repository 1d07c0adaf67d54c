"""Processes that a test left behind, found by its folder."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio

_PATIENCE = 60.0


def living(folder: Path) -> dict[int, bytes]:
    """The arguments, by pid, of the other processes whose cwd, arguments or environment name this folder."""
    mark = os.fsencode(folder)
    processes: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                is_dead = (entry / "stat").read_bytes().rpartition(b") ")[2].startswith(b"Z")
                words = (entry / "cmdline").read_bytes()
                if not is_dead and (mark in words or mark in (entry / "environ").read_bytes() or _is_in(entry, mark)):
                    processes[int(entry.name)] = words
    return processes


def survivors(folder: Path) -> list[str]:
    """The same processes as a failed test shows them."""
    return [f"{pid}: {words[-200:]!r}" for pid, words in living(folder).items()]


async def until_none_survives(folder: Path) -> None:
    """Wait until none is left: the kernel needs a moment to remove killed processes."""
    with anyio.move_on_after(_PATIENCE):
        while survivors(folder):
            await anyio.sleep(0.02)
    assert survivors(folder) == []


def end_all(folder: Path) -> None:
    """Kill every such process."""
    for pid in living(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_in(entry: Path, mark: bytes) -> bool:
    return os.readlink(os.fsencode(entry / "cwd")).startswith(mark)
