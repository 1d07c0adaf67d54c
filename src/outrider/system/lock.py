"""One process per home. The kernel holds the lock and lets go when its process dies, however it dies."""

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
    """What the lock file says, for people and for whoever comes next."""

    pid: int = 0
    since: str = ""
    what: str = ""
    left: ShutdownState = ""
    """How it went: empty while it runs, and for ever if it was killed."""
    accepts_clients: bool = False
    """Whether others may join it over the link, now or in a moment."""


class HomeLock:
    """A held home."""

    def __init__(self, descriptor: int, what: str, *, listens: bool = False) -> None:
        self._descriptor = descriptor
        self.previous = _parse(os.pread(descriptor, 4096, 0))
        """Who held it last."""
        self._holder = LockHolder(os.getpid(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), what, accepts_clients=listens)
        self._write(self._holder)

    def record_shutdown(self, left: ShutdownState) -> None:
        """Tell whoever comes next how the store was left."""
        self._write(msgspec.structs.replace(self._holder, left=left))

    def _write(self, holder: LockHolder) -> None:
        content = msgspec.json.encode(holder) + b"\n"
        # In place first: on a full disk there is no room for anything but what is there.
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


@asynccontextmanager
async def lock_home(home: Path, what: str, wait: float, *, listens: bool = False) -> AsyncGenerator[HomeLock]:
    """Own this home, made if it is new. Raises HomeBusy, naming its owner, when it is not free in `wait` seconds."""
    _create_home(home)
    path = home / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise explain_os_error(error, home) from error
    try:
        await _acquire(descriptor, home, wait)
        try:
            hold = HomeLock(descriptor, what, listens=listens)
        except OSError as error:
            raise explain_os_error(error, home) from error
        yield hold
    finally:
        os.close(descriptor)


def _create_home(home: Path) -> None:
    try:
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(home.parent)
    except OSError as error:
        raise explain_os_error(error, home) from error


def is_locked(home: Path) -> bool:
    """Whether a process owns this home now. Asks the kernel, and waits for nobody."""
    try:
        descriptor = os.open(home / "lock", os.O_RDWR)
    except OSError:  # whoever opens the home is told why
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def last_holder(home: Path) -> LockHolder:
    """Who took this home last, whether or not they have it still."""
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
        return f"another process is using {home}; end it first, or name another home with OUTRIDER_HOME"
    way = "end it first"
    if holder.what == "outrider up":
        way = "talk to its API (`outrider up status` says where), end it (`outrider up stop`)"
    return (
        f"{holder.what} (process {holder.pid}) has been using {home} since {holder.since}; "
        f"{way}, or name another home with OUTRIDER_HOME"
    )


def _parse(content: bytes) -> LockHolder:
    try:
        return msgspec.json.decode(content, type=LockHolder)
    except ValueError:
        return LockHolder()
