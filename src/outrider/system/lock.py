"""The lock of a home: one process owns it. The kernel releases the lock when that process ends, however it ends."""

import fcntl
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from msgspec import Struct

from outrider.core.errors import HomeBusy
from outrider.system.files import explain_os_error, fsync_folder

ShutdownState = Literal["", "clean", "damaged"]
_POLL_INTERVAL = 0.05


class LockHolder(Struct, frozen=True):
    """The content of the lock file: the last owner."""

    pid: int = 0
    since: str = ""
    what: str = ""
    left: ShutdownState = ""
    """How it left the store: empty while it runs, and when it was killed."""
    serves: Literal["", "read", "full"] = ""
    """What other processes may do through its socket, now or in a moment."""


class HomeLock:
    def __init__(self, descriptor: int, what: str, serves: Literal["", "read", "full"]) -> None:
        self._descriptor = descriptor
        self.previous = _parse(os.pread(descriptor, 4096, 0))
        """The owner before this process."""
        self._holder = LockHolder(os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"), what, serves=serves)
        self._write(self._holder)

    def record_shutdown(self, left: ShutdownState) -> None:
        """Record for the next owner how the store was left."""
        self._write(msgspec.structs.replace(self._holder, left=left))

    def _write(self, holder: LockHolder) -> None:
        content = msgspec.json.encode(holder) + b"\n"
        # In place: on a full disk there may be no room for a second file.
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


@asynccontextmanager
async def lock_home(
    home: Path, what: str, wait: float, *, serves: Literal["", "read", "full"] = ""
) -> AsyncGenerator[HomeLock]:
    """Lock this home, created if it is new. Raises HomeBusy, naming the owner, when it is not free within `wait` s."""
    _create_home(home)
    path = home / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise explain_os_error(error, home) from error
    try:
        await _acquire(descriptor, home, wait)
        try:
            lock = HomeLock(descriptor, what, serves)
        except OSError as error:
            raise explain_os_error(error, home) from error
        yield lock
    finally:
        os.close(descriptor)


def _create_home(home: Path) -> None:
    try:
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(home.parent)
    except OSError as error:
        raise explain_os_error(error, home) from error


def last_holder(home: Path) -> LockHolder:
    """The last owner of this home, which may have left it."""
    try:
        return _parse((home / "lock").read_bytes())
    except OSError:
        return LockHolder()


async def _acquire(descriptor: int, home: Path, wait: float) -> None:
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise HomeBusy(_busy_message(home, _parse(os.pread(descriptor, 4096, 0)))) from None
        await anyio.sleep(_POLL_INTERVAL)


def _busy_message(home: Path, holder: LockHolder) -> str:
    if not holder.pid:
        return f"another process is using {home}; stop it, or choose another home with OUTRIDER_HOME"
    advice = "stop it"
    if holder.what == "outrider up":
        advice = "use its API (`outrider up status` shows the URL), stop it (`outrider up stop`)"
    return (
        f"{holder.what} (process {holder.pid}) has been using {home} since {holder.since}; "
        f"{advice}, or choose another home with OUTRIDER_HOME"
    )


def _parse(content: bytes) -> LockHolder:
    try:
        return msgspec.json.decode(content, type=LockHolder)
    except ValueError:
        return LockHolder()
