"""`up.json` in the home: which process serves it, where, and since when. Others find `outrider up` by it.

Looks at a running `outrider up` from outside, and ends it.

The log of a home, as people read it: its last lines, and those that are added.
"""

import os
import signal
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from outrider import __version__
from outrider.cli.commands import DONE, FAILED
from outrider.cli.logging import format_log_line, log_path
from outrider.cli.output import encode_json, print_line
from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import ProcessIdentity
from outrider.store.keys import first_key_file
from outrider.system.processes import identity_of, is_alive, process_table, send_signal

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


_HEALTH_TIMEOUT = 6.0
"""Seconds an answer about its health may take; it needs at most five to find out."""
_HEALTH_STATUSES = (200, 503)
_STOP_TIMEOUT = 25.0
"""Seconds it may take to leave: longer than it gives itself."""
_EXIT_POLL_INTERVAL = 0.05


class ServerStatus(Struct, frozen=True):
    """What there is to say about `outrider up` in a home."""

    state: str
    """`well`, `unwell`, `silent` (it runs and does not answer), `killed` (it did not leave in order) or `down`."""
    server: RunningServer | None = None
    health: msgspec.Raw = msgspec.Raw(b"null")
    """As it tells itself."""


def server_status(home: Path) -> ServerStatus:
    """By asking it, not by the file alone."""
    up = read_server_file(home)
    if up is None:
        return ServerStatus("down")
    if not up.is_alive:
        return ServerStatus("killed", up)
    answer = _fetch_health(up.url, home)
    if answer is None:
        return ServerStatus("silent", up)
    status, content = answer
    return ServerStatus("well" if status == 200 else "unwell", up, content)


def _fetch_health(url: str, home: Path) -> tuple[int, msgspec.Raw] | None:
    """With the first key, where it is still there: it is told more."""
    key = first_key_file(home)
    with suppress(OSError):
        answer = _get_health(url, {"authorization": f"Bearer {key.read_text().strip()}"})
        if answer and answer[0] in _HEALTH_STATUSES:
            return answer
    return _get_health(url, {})


def _get_health(url: str, headers: Mapping[str, str]) -> tuple[int, msgspec.Raw] | None:
    from http.client import HTTPConnection, HTTPException

    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=_HEALTH_TIMEOUT)
    try:
        connection.request("GET", "/health", headers=dict(headers))
        response = connection.getresponse()
        content = response.read(1_000_000)
        msgspec.json.decode(content)
        return response.status, msgspec.Raw(content)
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


def print_status(found: ServerStatus, *, is_json: bool) -> int:
    """Print it; the exit code."""
    up = found.server
    if is_json:
        facts = {"pid": up.pid, "url": up.url, "started": up.started, "version": up.version} if up else {}
        health = msgspec.json.decode(found.health)
        print_line(encode_json({"state": found.state, **facts, "health": health}, is_pretty=True))
    else:
        print_line(_status_text(found, up))
    return DONE if found.state == "well" else FAILED


class _HealthBody(Struct, frozen=True):
    problem: str = ""


def _status_text(found: ServerStatus, up: RunningServer | None) -> str:
    state = found.state
    if up is None:
        return "not running"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(up.started / 1000))
    if state == "killed":
        return f"not running: process {up.pid}, started {since}, was killed; `outrider up` takes up what it left"
    runs = f"process {up.pid} at {up.url} since {since}, version {up.version}"
    match state:
        case "well":
            return f"running: {runs}"
        case "unwell":
            problem = msgspec.json.decode(found.health, type=_HealthBody).problem
            return f"running, and not well: {runs}; {problem or '`outrider up logs` may say why'}"
        case _:
            return f"running, and not answering: {runs}; `outrider up logs` may say why"


def stop_server(home: Path, *, is_now: bool) -> int:
    """Tell it to leave and wait until it has: its process id, or 0 when there was none. Raises Unavailable."""
    up = find_running_server(home)
    row = process_table.find_process(up.pid) if up else None
    if up is None or row is None:
        return 0
    for _ in range(1 + is_now):
        send_signal(row, signal.SIGTERM)
    if not anyio.run(_wait_for_exit, up):
        raise Unavailable(f"process {up.pid} has not left within {_STOP_TIMEOUT:g} s; `outrider up logs` may say why")
    return up.pid


async def _wait_for_exit(up: RunningServer) -> bool:
    with anyio.move_on_after(_STOP_TIMEOUT):
        while True:
            if not up.is_alive:
                return True
            await anyio.sleep(_EXIT_POLL_INTERVAL)
    return False


_MAX_TAIL_BYTES = 4_000_000
"""Bytes looked at for the last lines: more than a whole file of the log has."""
_LOG_POLL_INTERVAL = 0.2


class _LogLine(Struct):
    at: str = ""
    level: str = ""
    logger: str = ""
    message: str = ""
    session: str = ""
    traceback: str = ""


def print_logs(home: Path, lines: int, *, is_followed: bool, is_json: bool) -> int:
    path = log_path(home)
    if not path.is_file() and not is_followed:
        raise Refused(f"there is no log yet at {path}")
    try:
        anyio.run(_print_lines, path, lines, is_followed, is_json)
    except KeyboardInterrupt:
        if not is_followed:
            raise
    return DONE


async def _print_lines(path: Path, lines: int, is_followed: bool, is_json: bool) -> None:
    file = _open_log(path)
    if file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        for line in file.read(size).splitlines()[-lines:] if lines else ():
            print_line(_render_log_line(line, is_json))
    while is_followed:
        file = _reopen_if_rotated(file, path, is_json)
        for line in _read_new_lines(file) if file else ():
            print_line(_render_log_line(line, is_json))
        await anyio.sleep(_LOG_POLL_INTERVAL)


def _reopen_if_rotated(file: BinaryIO | None, path: Path, is_json: bool) -> BinaryIO | None:
    """The file to go on with: a full one is moved aside and a new one begun. What is left in the old one is printed."""
    try:
        if file and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    except FileNotFoundError:
        return file
    for line in _read_new_lines(file) if file else ():
        print_line(_render_log_line(line, is_json))
    return _open_log(path)


def _read_new_lines(file: BinaryIO) -> list[bytes]:
    """Whole lines only; half of one is read again when its rest is there."""
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    file.seek(len(whole) - len(content), os.SEEK_CUR)
    return whole.splitlines()


def _open_log(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _render_log_line(line: bytes, is_json: bool) -> str:
    text = line.decode("utf-8", "replace")
    if is_json:
        return text
    try:
        found = msgspec.json.decode(line, type=_LogLine)
    except ValueError:
        return text
    last = found.traceback.rstrip().rpartition("\n")[2]
    message = f"{found.message} ({last})" if last else found.message
    return format_log_line(found.at.replace("T", " ").partition(".")[0], found.level, found.logger, message)
