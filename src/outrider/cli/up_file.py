"""`up.json` in the home: which process serves it, where, and since when. Others find `outrider up` by it."""

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from outrider import __version__
from outrider.core.errors import Refused
from outrider.workspaces.process.identity import identity_of, is_alive
from outrider.workspaces.process.spec import ProcessIdentity

SERVER_FILE = "up.json"


class RunningServer(Struct, frozen=True):
    """A running `outrider up`, as it describes itself."""

    pid: int
    url: str
    started: int
    """Milliseconds since 1970."""
    version: str
    mark: ProcessIdentity
    """Tells this process from a later one of the same number."""

    @property
    def is_alive(self) -> bool:
        return is_alive(self.mark)


def read_server_file(home: Path) -> RunningServer | None:
    """Who said last that they serve this home, alive or not; None when they left in order."""
    try:
        return msgspec.json.decode((home / SERVER_FILE).read_bytes(), type=RunningServer)
    except (OSError, ValueError):
        return None


def find_running_server(home: Path) -> RunningServer | None:
    """Who serves this home now."""
    found = read_server_file(home)
    return found if found and found.is_alive else None


@contextmanager
def advertise_server(home: Path, url: str) -> Generator[RunningServer]:
    """Be found by others at this address for as long as the block runs."""
    pid = os.getpid()
    up = RunningServer(pid, url, time.time_ns() // 1_000_000, __version__, identity_of(pid))
    _write_server_file(home / SERVER_FILE, msgspec.json.format(msgspec.json.encode(up), indent=2) + b"\n")
    try:
        yield up
    finally:
        if read_server_file(home) == up:
            with suppress(FileNotFoundError):
                os.unlink(home / SERVER_FILE)


def _write_server_file(path: Path, content: bytes) -> None:
    """All at once, and for the owner's eyes only."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".up-", dir=path.parent)  # 0600 from the first moment
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
