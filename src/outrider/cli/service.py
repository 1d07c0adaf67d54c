"""Control of a running `outrider up` from other processes: its server file, status, stop, and the log.

`up.json` in the home names the process that serves it, its URL and its start. A process that was killed leaves the file
behind; the recorded process identity tells it from a running one.
"""

import os
import signal
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
from outrider.cli.output import format_time, now_ms, print_json, print_line
from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import ProcessIdentity
from outrider.store.keys import first_key_file
from outrider.system.files import write_atomic
from outrider.system.processes import identity_of, is_alive, process_table, send_signal

SERVER_FILE = "up.json"


class RunningServer(Struct, frozen=True):
    """A running `outrider up`, as recorded in its server file."""

    pid: int
    url: str
    started: int
    """Milliseconds since 1970."""
    version: str
    mark: ProcessIdentity
    """Tells this process from a later one with the same pid."""

    @property
    def is_alive(self) -> bool:
        return is_alive(self.mark)


def read_server_file(home: Path) -> RunningServer | None:
    """The last server of this home, running or not; None when it shut down gracefully."""
    try:
        return msgspec.json.decode((home / SERVER_FILE).read_bytes(), type=RunningServer)
    except (OSError, ValueError):
        return None


def find_running_server(home: Path) -> RunningServer | None:
    """The server that runs in this home now."""
    server = read_server_file(home)
    return server if server and server.is_alive else None


@contextmanager
def advertise_server(home: Path, url: str) -> Generator[RunningServer]:
    """Write the server file, and remove it after the block."""
    pid = os.getpid()
    server = RunningServer(pid, url, now_ms(), __version__, identity_of(pid))
    try:
        write_atomic(home / SERVER_FILE, msgspec.json.format(msgspec.json.encode(server), indent=2) + b"\n")
    except OSError as error:
        raise Refused(f"{home / SERVER_FILE} cannot be written: {error.strerror}") from error
    try:
        yield server
    finally:
        if read_server_file(home) == server:
            with suppress(FileNotFoundError):
                os.unlink(home / SERVER_FILE)


_HEALTH_TIMEOUT = 6.0
"""Seconds to wait for `/health`, which takes at most five."""
_HEALTH_STATUSES = (200, 503)
_STOP_TIMEOUT = 25.0
"""Seconds the server may take to stop: longer than its own limit."""
_EXIT_POLL_INTERVAL = 0.05


class ServerStatus(Struct, frozen=True):
    """The state of `outrider up` in a home."""

    state: str
    """`well`, `unwell`, `silent` (running, but not answering), `killed` (ended without a shutdown) or `down`."""
    server: RunningServer | None = None
    health: msgspec.Raw = msgspec.Raw(b"null")
    """The body of its `/health`."""


def server_status(home: Path) -> ServerStatus:
    """Ask the server for its health; the file alone proves nothing."""
    server = read_server_file(home)
    if server is None:
        return ServerStatus("down")
    if not server.is_alive:
        return ServerStatus("killed", server)
    answer = _fetch_health(server.url, home)
    if answer is None:
        return ServerStatus("silent", server)
    status, content = answer
    return ServerStatus("well" if status == 200 else "unwell", server, content)


def _fetch_health(url: str, home: Path) -> tuple[int, msgspec.Raw] | None:
    """Use the first key where it still exists: `/health` tells a key holder more."""
    with suppress(OSError):
        answer = _get_health(url, {"authorization": f"Bearer {first_key_file(home).read_text().strip()}"})
        if answer and answer[0] in _HEALTH_STATUSES:
            return answer
    return _get_health(url, {})


def _get_health(url: str, headers: Mapping[str, str]) -> tuple[int, msgspec.Raw] | None:
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_HEALTH_TIMEOUT)
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


def print_status(status: ServerStatus, *, is_json: bool) -> int:
    """Print a status; returns the exit code."""
    if is_json:
        server = status.server
        facts = {name: getattr(server, name) for name in ("pid", "url", "started", "version")} if server else {}
        print_json({"state": status.state, **facts, "health": status.health}, is_pretty=True)
    else:
        print_line(_status_text(status))
    return DONE if status.state == "well" else FAILED


class _HealthBody(Struct, frozen=True):
    problem: str = ""


def _status_text(status: ServerStatus) -> str:
    server = status.server
    if server is None:
        return "not running"
    since = format_time(server.started)
    if status.state == "killed":
        return f"not running: process {server.pid}, started {since}, was killed; `outrider up` resumes its work"
    process = f"process {server.pid} at {server.url} since {since}, version {server.version}"
    match status.state:
        case "well":
            return f"running: {process}"
        case "unwell":
            problem = msgspec.json.decode(status.health, type=_HealthBody).problem
            return f"running, but unhealthy: {process}; {problem or '`outrider up logs` may say why'}"
        case _:
            return f"running, but not answering: {process}; `outrider up logs` may say why"


def stop_server(home: Path, *, is_now: bool) -> int:
    """Stop the server and wait until it has ended: its process id, or 0 when none runs. Raises Unavailable."""
    server = find_running_server(home)
    row = process_table.find_process(server.pid) if server else None
    if server is None or row is None:
        return 0
    for _ in range(1 + is_now):
        send_signal(row, signal.SIGTERM)
    anyio.run(_wait_for_exit, server)
    return server.pid


async def _wait_for_exit(server: RunningServer) -> None:
    with anyio.move_on_after(_STOP_TIMEOUT):
        while True:
            if not server.is_alive:
                return
            await anyio.sleep(_EXIT_POLL_INTERVAL)
    raise Unavailable(
        f"process {server.pid} has not stopped within {_STOP_TIMEOUT:g} s; `outrider up logs` may say why"
    )


_MAX_TAIL_BYTES = 4_000_000
"""Bytes searched for the last lines: more than a whole log file has."""
_LOG_POLL_INTERVAL = 0.2


class _LogLine(Struct):
    at: str = ""
    level: str = ""
    logger: str = ""
    message: str = ""
    session: str = ""
    traceback: str = ""


def print_logs(home: Path, lines: int, *, is_followed: bool, is_json: bool) -> int:
    """Print the last lines of the log, and with `is_followed` new ones until Ctrl-C."""
    path = log_path(home)
    if not path.is_file() and not is_followed:
        raise Refused(f"there is no log at {path} yet")
    try:
        anyio.run(_print_lines, path, lines, is_followed, is_json)
    except KeyboardInterrupt:
        if not is_followed:
            raise
    return DONE


async def _print_lines(path: Path, lines: int, is_followed: bool, is_json: bool) -> None:
    file = _open_log(path)
    try:
        if file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _MAX_TAIL_BYTES))
            for line in file.read(size).splitlines()[-lines:] if lines else ():
                print_line(_render_log_line(line, is_json))
        while is_followed:
            is_replaced = _is_replaced(file, path)
            for line in _read_new_lines(file) if file else ():
                print_line(_render_log_line(line, is_json))
            if is_replaced:
                if file:
                    file.close()
                file = _open_log(path)
            else:
                await anyio.sleep(_LOG_POLL_INTERVAL)
    finally:
        if file:
            file.close()


def _is_replaced(file: BinaryIO | None, path: Path) -> bool:
    """Whether there is a log other than this file, which is renamed when it is full."""
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    return file is None or os.fstat(file.fileno()).st_ino != inode


def _read_new_lines(file: BinaryIO) -> list[bytes]:
    """The complete lines that were added; an incomplete one is read again later."""
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
        record = msgspec.json.decode(line, type=_LogLine)
    except ValueError:
        return text
    last = record.traceback.rstrip().rpartition("\n")[2]
    message = f"{record.message} ({last})" if last else record.message
    return format_log_line(record.at.replace("T", " ").partition(".")[0], record.level, record.logger, message)
