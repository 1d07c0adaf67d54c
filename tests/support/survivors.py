"""Processes that a test left behind, by what they carry of its folder."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio

_PATIENCE = 20.0


def living(folder: Path) -> dict[int, bytes]:
    """By pid the arguments of all living processes whose folder, arguments or environment name this one, save ours."""
    mark = os.fsencode(folder)
    found: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                is_dead = (entry / "stat").read_bytes().rpartition(b") ")[2].startswith(b"Z")
                words = (entry / "cmdline").read_bytes()
                if not is_dead and (mark in words or mark in (entry / "environ").read_bytes() or _is_in(entry, mark)):
                    found[int(entry.name)] = words
    return found


def survivors(folder: Path) -> list[str]:
    """The same, as a failed test shows them."""
    return [f"{pid}: {words[-200:]!r}" for pid, words in living(folder).items()]


async def until_none_survives(folder: Path) -> None:
    """The kernel needs a moment to clear away what was killed."""
    with anyio.move_on_after(_PATIENCE):
        while survivors(folder):
            await anyio.sleep(0.02)
    assert survivors(folder) == []


def end_all(folder: Path) -> None:
    """Whatever became of the test."""
    for pid in living(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_in(entry: Path, mark: bytes) -> bool:
    return os.readlink(os.fsencode(entry / "cwd")).startswith(mark)
