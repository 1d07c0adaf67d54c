"""The always-on process: opens the home, takes up what is unfinished, serves HTTP, and leaves in order when told to."""

import logging
import signal
import socket

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from outrider import __version__
from outrider.app.agent import Agent
from outrider.app.compose import Presence
from outrider.channels.http.app import build, route
from outrider.channels.http.context import Context
from outrider.channels.http.server import Server, is_loopback, listen, url_of
from outrider.cli.opening import open_here
from outrider.cli.plain import say
from outrider.cli.root import DONE
from outrider.cli.up_file import FILE, announced, find_up, read_up
from outrider.config.load import Config
from outrider.core.errors import HomeBusy, Refused

log = logging.getLogger("outrider.up")

DRAIN = 8.0
"""Seconds after which a drain is cut short."""
LAST = 20
"""Seconds after the first signal at which the kernel ends a process that could not even be cut short."""
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
    with listen(config.http.host, config.http.port) as listener:
        halt = Halt()
        async with anyio.create_task_group() as group:
            await group.start(halt.watch)
            with halt.starting:
                async with open_here(config, Presence("outrider up", "all")) as agent:
                    await _serve(config, agent, listener, halt)
            group.cancel_scope.cancel()
    signal.alarm(0)
    log.info("left")
    return DONE


async def _serve(config: Config, agent: Agent, listener: socket.socket, halt: Halt) -> None:
    if before := read_up(config.home):
        log.warning("the last outrider up (process %s) was killed: it left %s behind", before.pid, FILE)
    url = url_of(listener)
    server = Server(_app(config, agent), listener)
    async with anyio.create_task_group() as group:
        await group.start(server.run)
        waiting = await agent.finish()
        with announced(config.home, url):
            halt.is_up = True
            log.info("listening at %s; unfinished sessions taken up: %s", url, len(waiting))
            say(f"outrider up: {url}")
            await halt.leave.wait()
            with halt.draining, anyio.move_on_after(DRAIN):
                await agent.rest(_LEAVING)
                await server.close(DRAIN)
        group.cancel_scope.cancel()


def _app(config: Config, agent: Agent) -> ASGIApp:
    async def health(request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    return build(Context(agent, __version__), [route("/health", health, "GET")], [])
