"""Looks at a running `outrider up` from outside, and ends it."""

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from outrider.cli.lines import encode_json
from outrider.cli.plain import print_line
from outrider.cli.root import DONE, FAILED
from outrider.cli.up_file import RunningServer, find_running_server, read_server_file
from outrider.core.errors import Unavailable
from outrider.store.keys import first_key_file
from outrider.workspaces.process.identity import process_table, send_signal

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
