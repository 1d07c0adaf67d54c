"""The always-on process: opens the home, takes up what is unfinished, serves HTTP, and leaves in order when told to."""

import logging
import signal
import socket

import anyio

from outrider import __version__
from outrider.app.agent import Agent
from outrider.app.api import OpenMode
from outrider.channels.http.app import ROUTES, build_app
from outrider.channels.http.inputs import HttpContext
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
from outrider.system.tasks import unwrap_single

log = logging.getLogger("outrider.up")
DRAIN_TIMEOUT = 8.0
"""Seconds after which a drain is cut short."""
REQUEST_GRACE = 3.0
"""Seconds that requests may go on in a drain. Those that wait for a turn end at once."""
KILL_AFTER = 20
"""Seconds after the first signal at which the kernel ends a process that could not even be cut short."""
_KEY_VARIABLE = "OUTRIDER_API_KEY"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESTARTING = "Outrider is restarting; what was accepted is kept and goes on: ask again in a moment"


class ShutdownSignals:
    """What signals ask for: the first to leave in order, the next to hurry."""

    def __init__(self) -> None:
        self.stop_requested = anyio.Event()
        self.startup_scope = anyio.CancelScope()
        """Cancelled by a signal that comes before it `is_up`."""
        self.drain_scope = anyio.CancelScope()
        """Cancelled by the second signal."""
        self.is_serving = False

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(*_STOP_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                log.info("told to leave by %s", signal.Signals(number).name)
                if self.stop_requested.is_set():
                    self.drain_scope.cancel()
                    continue
                signal.alarm(KILL_AFTER)
                self.stop_requested.set()
                if not self.is_serving:
                    self.startup_scope.cancel()


def check_not_running(config: Config) -> None:
    """Raises HomeBusy when `outrider up` serves this home already."""
    if up := find_running_server(config.home):
        raise HomeBusy(
            f"outrider up (process {up.pid}) serves this home already at {up.url}; `outrider up stop` ends it"
        )


def check_host(config: Config) -> None:
    """Raises Refused when the address can be reached from elsewhere and nobody said so on the command line."""
    host = config.http.host
    if not is_loopback(host) and config.source("http.host") != "flag":
        raise Refused(
            f"http.host = {host!r} ({config.source('http.host')}) opens this agent to other machines; "
            f"say so on the command line too: outrider up --host {host}"
        )


async def serve(config: Config) -> int:
    """Serve this home until a signal says to leave; the exit code."""
    check_not_running(config)
    check_host(config)
    try:
        with listen(config.http.host, config.http.port) as listener:
            await _open_and_serve(config, listener)
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    signal.alarm(0)
    log.info("left")
    return DONE


async def _open_and_serve(config: Config, listener: socket.socket) -> None:
    halt = ShutdownSignals()
    async with anyio.create_task_group() as group:
        await group.start(halt.watch)
        with halt.startup_scope:
            async with open_as_owner(config, OpenMode("outrider up", "all")) as served:
                for text in (*config.warnings, *served.agent.notices):
                    warn(text)
                await _serve_home(config, served, listener, halt)
        group.cancel_scope.cancel()


async def _serve_home(config: Config, served: OwnerServer, listener: socket.socket, halt: ShutdownSignals) -> None:
    agent = served.agent
    key = await _find_key(config, agent)
    if before := read_server_file(config.home):
        log.warning("the last outrider up (process %s) was killed: it left %s behind", before.pid, SERVER_FILE)
    url = url_of(listener)
    webhooks = await configure_webhooks(agent)
    server = HttpServer(
        build_app(HttpContext(agent, __version__, webhooks=webhooks), ROUTES, middleware_for(agent)), listener
    )
    async with anyio.create_task_group() as group:
        if webhooks:
            await group.start(webhooks.run)
        await group.start(server.run)
        waiting = await agent.resume_all()
        with advertise_server(config.home, url):
            halt.is_serving = True
            log.info("listening at %s; unfinished sessions taken up: %s", url, len(waiting))
            print_line(f"outrider up: {url} ({key})")
            await halt.stop_requested.wait()
            with halt.drain_scope, anyio.move_on_after(DRAIN_TIMEOUT):
                await served.drain(_RESTARTING, gently=DRAIN_TIMEOUT - REQUEST_GRACE)
                await server.close(REQUEST_GRACE)
        group.cancel_scope.cancel()


async def _find_key(config: Config, agent: Agent) -> str:
    """Where the key is, made now if there never was one. Raises Refused when strangers could knock without."""
    keys = key_store(agent)
    is_held = any(not key.revoked for key in await keys.list_keys())
    is_given = _KEY_VARIABLE in config.keys
    if not is_loopback(config.http.host) and not is_held and not is_given:
        raise Refused(
            f"listening on {config.http.host} opens this agent to other machines, which needs a key: "
            f"make one with `outrider key create NAME` or set {_KEY_VARIABLE}, then start again"
        )
    if not is_given and await ensure_key(config.home, keys):
        log.info("made the first key, in %s", first_key_file(config.home))
    if is_given:
        return f"key in {_KEY_VARIABLE}"
    if first_key_file(config.home).exists():
        return f"key in {first_key_file(config.home)}"
    return "`outrider key list` shows the keys" if is_held else "no key opens it: `outrider key create NAME` makes one"
