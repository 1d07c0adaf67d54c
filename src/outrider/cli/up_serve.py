"""The always-on process: opens the home, takes up what is unfinished, serves HTTP, and leaves in order when told to."""

import logging
import signal
import socket

import anyio

from outrider import __version__
from outrider.app.agent import Agent
from outrider.app.groups import unwrap_single
from outrider.app.presence import OpenMode
from outrider.channels.http.app import build_app
from outrider.channels.http.context import HttpContext
from outrider.channels.http.guards import key_store, middleware_for
from outrider.channels.http.routes import ROUTES
from outrider.channels.http.server import HttpServer, is_loopback, listen, url_of
from outrider.channels.http.webhooks import configure_webhooks
from outrider.channels.link.own import open_as_owner
from outrider.channels.link.serve import OwnerServer
from outrider.cli.plain import notice, say
from outrider.cli.root import DONE
from outrider.cli.up_file import FILE, announced, find_up, read_up
from outrider.config.load import Config
from outrider.core.errors import HomeBusy, Refused
from outrider.store.keys import ensure_key, first_key_file

log = logging.getLogger("outrider.up")

DRAIN = 8.0
"""Seconds after which a drain is cut short."""
GRACE = 3.0
"""Seconds that requests may go on in a drain. Those that wait for a turn end at once."""
LAST = 20
"""Seconds after the first signal at which the kernel ends a process that could not even be cut short."""
_VARIABLE = "OUTRIDER_API_KEY"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LEAVING = "Outrider is restarting; what was accepted is kept and goes on: ask again in a moment"


class Halt:
    """What signals ask for: the first to leave in order, the next to hurry."""

    def __init__(self) -> None:
        self.leave = anyio.Event()
        self.starting = anyio.CancelScope()
        """Cancelled by a signal that comes before it `is_up`."""
        self.draining = anyio.CancelScope()
        """Cancelled by the second signal."""
        self.is_up = False

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(*_ENDING) as signals:
            task_status.started()
            async for number in signals:
                log.info("told to leave by %s", signal.Signals(number).name)
                if self.leave.is_set():
                    self.draining.cancel()
                    continue
                signal.alarm(LAST)
                self.leave.set()
                if not self.is_up:
                    self.starting.cancel()


def check_free(config: Config) -> None:
    """Raises HomeBusy when `outrider up` serves this home already."""
    if up := find_up(config.home):
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
    check_free(config)
    check_host(config)
    try:
        with listen(config.http.host, config.http.port) as listener:
            await _attend(config, listener)
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    signal.alarm(0)
    log.info("left")
    return DONE


async def _attend(config: Config, listener: socket.socket) -> None:
    halt = Halt()
    async with anyio.create_task_group() as group:
        await group.start(halt.watch)
        with halt.starting:
            async with open_as_owner(config, OpenMode("outrider up", "all")) as served:
                for text in (*config.warnings, *served.agent.notices):
                    notice(text)
                await _serve(config, served, listener, halt)
        group.cancel_scope.cancel()


async def _serve(config: Config, served: OwnerServer, listener: socket.socket, halt: Halt) -> None:
    agent = served.agent
    key = await _find_key(config, agent)
    if before := read_up(config.home):
        log.warning("the last outrider up (process %s) was killed: it left %s behind", before.pid, FILE)
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
        with announced(config.home, url):
            halt.is_up = True
            log.info("listening at %s; unfinished sessions taken up: %s", url, len(waiting))
            say(f"outrider up: {url} ({key})")
            await halt.leave.wait()
            with halt.draining, anyio.move_on_after(DRAIN):
                await served.drain(_LEAVING, gently=DRAIN - GRACE)
                await server.close(GRACE)
        group.cancel_scope.cancel()


async def _find_key(config: Config, agent: Agent) -> str:
    """Where the key is, made now if there never was one. Raises Refused when strangers could knock without."""
    keys = key_store(agent)
    is_held = any(not key.revoked for key in await keys.list_keys())
    is_given = _VARIABLE in config.keys
    if not is_loopback(config.http.host) and not is_held and not is_given:
        raise Refused(
            f"listening on {config.http.host} opens this agent to other machines, which needs a key: "
            f"make one with `outrider key create NAME` or set {_VARIABLE}, then start again"
        )
    if not is_given and await ensure_key(config.home, keys):
        log.info("made the first key, in %s", first_key_file(config.home))
    if is_given:
        return f"key in {_VARIABLE}"
    if first_key_file(config.home).exists():
        return f"key in {first_key_file(config.home)}"
    return "`outrider key list` shows the keys" if is_held else "no key opens it: `outrider key create NAME` makes one"
