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
from outrider.store.faults import explain

Left = Literal["", "clean", "damaged"]
_POLL = 0.05


class Holder(Struct, frozen=True):
    """What the lock file says, for people and for whoever comes next."""

    pid: int = 0
    since: str = ""
    what: str = ""
    left: Left = ""
    """How it went: empty while it runs, and for ever if it was killed."""


class Hold:
    """A held home."""

    def __init__(self, descriptor: int, what: str) -> None:
        self._descriptor = descriptor
        self.before = _parse(os.pread(descriptor, 4096, 0))
        """Who held it last."""
        self._mine = Holder(os.getpid(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), what)
        self._write(self._mine)

    def leave(self, left: Left) -> None:
        """Tell whoever comes next how the store was left."""
        self._write(msgspec.structs.replace(self._mine, left=left))

    def _write(self, holder: Holder) -> None:
        content = msgspec.json.encode(holder) + b"\n"
        # In place first: on a full disk there is no room for anything but what is there.
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


@asynccontextmanager
async def hold_home(home: Path, what: str, wait: float) -> AsyncGenerator[Hold]:
    """Own this home. Raises HomeBusy, naming the owner, when it is not free within `wait` seconds."""
    path = home / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise explain(error, home) from error
    try:
        await _take(descriptor, home, wait)
        try:
            hold = Hold(descriptor, what)
        except OSError as error:
            raise explain(error, home) from error
        yield hold
    finally:
        os.close(descriptor)


async def _take(descriptor: int, home: Path, wait: float) -> None:
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise HomeBusy(_busy(home, _parse(os.pread(descriptor, 4096, 0)))) from None
        await anyio.sleep(_POLL)


def _busy(home: Path, holder: Holder) -> str:
    if not holder.pid:
        return f"another process is using {home}; end it first, or name another home with OUTRIDER_HOME"
    return (
        f"{holder.what} (process {holder.pid}) has been using {home} since {holder.since}; "
        "end it first, or name another home with OUTRIDER_HOME"
    )


def _parse(content: bytes) -> Holder:
    try:
        return msgspec.json.decode(content, type=Holder)
    except ValueError:
        return Holder()
