"""The server process of `outrider up`: opens the home, resumes unfinished work, serves HTTP, and drains on a signal."""

import logging
import signal
import socket

import anyio

from outrider import __version__
from outrider.app.agent import Agent
from outrider.app.api import OpenMode
from outrider.channels.http.app import ENDPOINTS, build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.middleware import key_store, middleware_for
from outrider.channels.http.server import HttpServer, is_loopback, listen, url_of
from outrider.channels.http.webhooks import configure_webhooks
from outrider.cli.commands import DONE
from outrider.cli.output import print_line, warn
from outrider.cli.service import SERVER_FILE, advertise_server, find_running_server, read_server_file
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy, Refused
from outrider.ipc.server import OwnerServer, open_as_owner
from outrider.store.keys import ensure_key, first_key_file
from outrider.system.task_groups import unwrap_errors

log = logging.getLogger("outrider.up")
DRAIN_TIMEOUT = 8.0
"""Seconds a drain may take."""
REQUEST_GRACE = 3.0
"""Seconds that open requests may take in a drain. Requests that wait for a turn end at once."""
KILL_AFTER = 20
"""Seconds after the first signal at which SIGALRM ends a process that hangs."""
_KEY_VARIABLE = "OUTRIDER_API_KEY"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESTARTING = "Outrider is restarting; accepted work is saved and continues: try again in a moment"


class ShutdownSignals:
    """Stop signals: the first starts a drain, the second cuts it short."""

    def __init__(self) -> None:
        self.stop_requested = anyio.Event()
        self.startup_scope = anyio.CancelScope()
        """Cancelled by a signal that arrives before the server listens."""
        self.drain_scope = anyio.CancelScope()
        """Cancelled by the second signal."""
        self._is_serving = False

    def mark_serving(self) -> None:
        """From now on a signal starts a drain instead of cancelling the startup."""
        self._is_serving = True

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(*_STOP_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                log.info("received %s", signal.Signals(number).name)
                if self.stop_requested.is_set():
                    self.drain_scope.cancel()
                    continue
                signal.alarm(KILL_AFTER)
                self.stop_requested.set()
                if not self._is_serving:
                    self.startup_scope.cancel()


def check_not_running(config: Config) -> None:
    """Raises HomeBusy when another `outrider up` serves this home."""
    if server := find_running_server(config.home):
        raise HomeBusy(
            f"outrider up (process {server.pid}) already serves this home at {server.url}; `outrider up stop` stops it"
        )


def check_host(config: Config) -> None:
    """Raises Refused when other machines can reach the address and the command line does not name it."""
    host = config.http.host
    if not is_loopback(host) and config.source("http.host") != "flag":
        raise Refused(
            f"http.host = {host!r} ({config.source('http.host')}) opens this agent to other machines; "
            f"to confirm, name it on the command line: outrider up --host {host}"
        )


async def serve(config: Config) -> int:
    """Serve this home until a signal stops it; returns the exit code."""
    check_not_running(config)
    check_host(config)
    with unwrap_errors(), listen(config.http.host, config.http.port) as listener:
        await _open_and_serve(config, listener)
    signal.alarm(0)
    log.info("stopped")
    return DONE


async def _open_and_serve(config: Config, listener: socket.socket) -> None:
    signals = ShutdownSignals()
    async with anyio.create_task_group() as group:
        await group.start(signals.watch)
        with signals.startup_scope:
            async with open_as_owner(config, OpenMode("outrider up", "all")) as owner:
                for text in (*config.warnings, *owner.agent.notices):
                    warn(text)
                await _serve_home(config, owner, listener, signals)
        group.cancel_scope.cancel()


async def _serve_home(config: Config, owner: OwnerServer, listener: socket.socket, signals: ShutdownSignals) -> None:
    agent = owner.agent
    key_hint = await _prepare_key(config, agent)
    if previous := read_server_file(config.home):
        log.warning("the previous server (process %s) was killed; its %s will be replaced", previous.pid, SERVER_FILE)
    url = url_of(listener)
    webhooks = await configure_webhooks(agent)
    server = HttpServer(
        build_app(HttpContext(agent, __version__, webhooks=webhooks), ENDPOINTS, middleware_for(agent)), listener
    )
    async with anyio.create_task_group() as group:
        if webhooks:
            await group.start(webhooks.run)
        await group.start(server.run)
        sessions = await agent.resume_all()
        with advertise_server(config.home, url):
            signals.mark_serving()
            log.info("listening at %s; resumed sessions: %s", url, len(sessions))
            print_line(f"outrider up: {url} ({key_hint})")
            await signals.stop_requested.wait()
            with signals.drain_scope, anyio.move_on_after(DRAIN_TIMEOUT):
                await owner.drain(_RESTARTING, DRAIN_TIMEOUT - REQUEST_GRACE)
                await server.close(REQUEST_GRACE)
        group.cancel_scope.cancel()


async def _prepare_key(config: Config, agent: Agent) -> str:
    """Create the first key if there never was one, and say where the key is.

    Raises Refused when other machines could connect and there is no key.
    """
    keys = key_store(agent)
    has_active_key = any(not key.revoked for key in await keys.list_keys())
    has_variable = _KEY_VARIABLE in config.keys
    if not is_loopback(config.http.host) and not has_active_key and not has_variable:
        raise Refused(
            f"listening on {config.http.host} opens this agent to other machines, which needs a key: "
            f"create one with `outrider key create NAME` or set {_KEY_VARIABLE}, then start again"
        )
    if not has_variable and await ensure_key(config.home, keys):
        log.info("created the first key in %s", first_key_file(config.home))
    if has_variable:
        return f"key in {_KEY_VARIABLE}"
    if first_key_file(config.home).exists():
        return f"key in {first_key_file(config.home)}"
    return "keys: outrider key list" if has_active_key else "no active key; create one: outrider key create NAME"
