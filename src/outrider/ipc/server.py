"""The owner's end of the link: answers the calls of guests, and lets them know when it goes.

For a process that has to own its home, and that the others are to be guests of: `outrider up`.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from outrider.app.agent import Agent
from outrider.app.api import OpenMode
from outrider.app.open import open_agent
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Entry
from outrider.ipc.client import POLL_INTERVAL, OwnerWait, request_hand_over
from outrider.ipc.protocol import (
    ATTACH,
    CALLS,
    FOLLOW,
    FORWARDED_ERRORS,
    HAND_OVER,
    CallError,
    CallResult,
    ConnectionLost,
    DeltaFrame,
    EntryFrame,
    IpcConnection,
    IpcRequest,
    OwnerInfo,
    OwnerLeaving,
    owner_info,
    parse_args,
    peer_uid,
    render_error,
    socket_path,
)
from outrider.system.lock import HomeLock, lock_home

log = logging.getLogger("outrider.link")
_MAX_CONNECTIONS = 500
"""Connections at once."""
_REQUEST_TIMEOUT = 10.0
"""Seconds a guest may take to say what it wants."""
_NOTIFY_TIMEOUT = 1.0
_ACCEPT_RETRY_DELAY = 0.1
_BACKLOG = 128


class OwnerServer:
    """An owner, as its guests have it."""

    def __init__(self, agent: Agent, me: OwnerInfo, *, refusal: str = "") -> None:
        self.agent = agent
        self._info = me
        self._refusal = refusal
        """Why it does not make way for `outrider up`; empty when it does."""
        self._clients: set[IpcConnection] = set()
        self._connection_count = 0
        self._is_closing = False
        self._is_draining = False
        """What cannot be answered any more is left to the next owner."""
        self.successor = ""
        """Who asked for the home."""
        self.hand_over_requested = anyio.Event()
        """Set when somebody did."""

    @property
    def client_count(self) -> int:
        """How many processes are here besides the owner."""
        return len(self._clients)

    async def drain(self, reason: str, gently: float) -> None:
        """Carry nothing any more, as `Agent.rest`. Guests wait for the next owner, and leave the home to an heir."""
        self._is_draining = True
        await self.agent.drain(reason, gently)
        self._is_closing = True
        with anyio.move_on_after(_NOTIFY_TIMEOUT):
            for line in tuple(self._clients) if self.successor else ():
                with suppress(ConnectionLost):
                    await line.send(OwnerLeaving(self.successor))

    async def serve(self, listener: socket.socket) -> None:
        """Take every connection, until cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, say: those who wait are taken when there are some
                    log.warning("a guest could not be let in: %s", error)
                    await anyio.sleep(_ACCEPT_RETRY_DELAY)
                else:
                    group.start_soon(self._handle, IpcConnection(connection))

    async def _handle(self, line: IpcConnection) -> None:
        """One connection, from its request to its end. Whatever goes wrong in it, the owner goes on."""
        self._connection_count += 1
        try:
            with line, suppress(ConnectionLost, TimeoutError, OSError):
                line.socket.setblocking(False)
                await self._handle_request(line, peer_uid(line.socket))
        except Exception:
            log.exception("a guest's connection failed")
        finally:
            self._connection_count -= 1

    async def _handle_request(self, line: IpcConnection, peer: int | None) -> None:
        if peer not in (None, os.getuid()):
            await line.send(render_error(Refused("this home belongs to another user")))
            return
        if self._connection_count > _MAX_CONNECTIONS:
            await line.send(render_error(Unavailable("too many commands use this home at once; try again", 1.0)))
            return
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT):
                request, pictures = await line.receive_request()
        except ValueError as error:
            await line.send(render_error(error))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_on_disconnect, line, group.cancel_scope)
            with suppress(ConnectionLost):
                await self._respond(line, request, pictures)
            group.cancel_scope.cancel()

    async def _respond(self, line: IpcConnection, request: IpcRequest, pictures: Sequence[bytes]) -> None:
        """Every failure is an answer, so that a bug of ours ends a call and not the owner."""
        failed: CallError | None = None
        try:
            await self._dispatch(line, request, pictures)
        except ConnectionLost:
            raise
        except Unavailable as error:
            failed = None if self._is_draining else render_error(error)
        except Exception as error:
            if not isinstance(error, FORWARDED_ERRORS):
                log.exception("a guest's call failed: %s", request.call)
            failed = render_error(error)
        if failed:
            await line.send(failed)

    async def _dispatch(self, line: IpcConnection, request: IpcRequest, pictures: Sequence[bytes]) -> None:
        if request.version != self._info.version:
            raise _version_mismatch(self._info, request.version)
        if request.call == ATTACH:
            await self._keep_attached(line)
        elif request.call == FOLLOW:
            await self._follow(line, request)
        elif request.call == HAND_OVER:
            await line.send(CallResult(self._hand_over(msgspec.json.decode(request.args["successor"], type=str))))
        else:
            await line.send(CallResult(await self._call(request, pictures)))

    async def _keep_attached(self, line: IpcConnection) -> None:
        if self._is_closing:
            return
        self._clients.add(line)
        try:
            await line.send(self._info)
            await anyio.sleep_forever()
        finally:
            self._clients.discard(line)

    async def _follow(self, line: IpcConnection, request: IpcRequest) -> None:
        args = parse_args(FOLLOW, request.args)
        await self.agent.resume(args["session"])
        async with aclosing(self.agent.follow(**args)) as events:
            async for event in events:
                await line.send(EntryFrame(event) if isinstance(event, Entry) else DeltaFrame(event))

    async def _call(self, request: IpcRequest, pictures: Sequence[bytes]) -> Raw:
        if request.call not in CALLS:
            raise Refused(f"{request.call!r} is no call")
        agent = self.agent.in_workspace(Path(request.workspace) if request.workspace else None)
        args = parse_args(request.call, request.args)
        if pictures:
            args["images"] = pictures
        return Raw(msgspec.json.encode(await getattr(agent, request.call)(**args)))

    def _hand_over(self, successor: str) -> Raw:
        if self._refusal:
            raise HomeBusy(self._refusal)
        self.successor = successor
        self.hand_over_requested.set()
        log.info("%s asks for the home", successor)
        return Raw(b"null")


def _version_mismatch(me: OwnerInfo, version: str) -> HomeBusy:
    return HomeBusy(
        f"{me.label} (process {me.pid}) is Outrider {me.version} and this is Outrider {version}; "
        "end it and start it again"
    )


async def _cancel_on_disconnect(line: IpcConnection, scope: anyio.CancelScope) -> None:
    """Nothing more is expected of a guest but that it goes: that cancels its call, never a turn."""
    with suppress(ConnectionLost):
        await line.receive()
    scope.cancel()


@asynccontextmanager
async def serve_home(home: Path, server: OwnerServer) -> AsyncGenerator[None]:
    """Guests find the owner of this home for as long as the block runs. The caller holds the home.

    Where the home's disk takes no sockets the owner is alone, and others are told that the home is in use.
    """
    try:
        listener = _listen(home)
    except (OSError, Refused) as error:
        log.warning("others cannot join this process: %s", error)
        yield
        return
    with listener:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, listener)
            try:
                yield
            finally:
                with suppress(OSError), socket_path(home) as path:
                    os.unlink(path)
                group.cancel_scope.cancel()


def _listen(home: Path) -> socket.socket:
    """A socket in this home, in place of one that was left there."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(home) as path:
            with suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


_TAKE_OVER_TIMEOUT = 15.0
"""Seconds that an owner may take to make way."""


@asynccontextmanager
async def open_as_owner(config: Config, presence: OpenMode) -> AsyncGenerator[OwnerServer]:
    """A home that this process has to own, and that others may join. Whoever has it is asked to make way.

    Raises HomeBusy when that is refused, or takes too long.
    """
    async with AsyncExitStack() as stack:
        hold = await stack.enter_async_context(_take_ownership(config.home, presence))
        agent = await stack.enter_async_context(open_agent(config=config, presence=replace(presence, lock=hold)))
        me = owner_info(config, presence)
        served = OwnerServer(agent, me, refusal=f"{me.label} (process {me.pid}) serves this home, and stays")
        await stack.enter_async_context(serve_home(config.home, served))
        yield served


@asynccontextmanager
async def _take_ownership(home: Path, presence: OpenMode) -> AsyncGenerator[HomeLock]:
    until, waiting = time.monotonic() + _TAKE_OVER_TIMEOUT, OwnerWait(home, presence.wait)
    async with AsyncExitStack() as stack:
        hold = None
        while hold is None:
            try:
                hold = await stack.enter_async_context(lock_home(home, presence.label, 0.0, listens=True))
            except HomeBusy as busy:
                if time.monotonic() > until:
                    raise
                if await request_hand_over(home, presence.label):
                    await anyio.sleep(POLL_INTERVAL * 5)
                else:
                    await waiting.wait_or_raise(busy)
        yield hold
