"""The server side: the owner of a home does the operations of its clients and lets them know when it leaves.

Every owner serves. What it lets others do depends on it: a command or `outrider up` does everything for them; a Python
program, whose tools and model are its own, only answers questions about the home and kills tasks.
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

from outrider.app.agent import Agent
from outrider.app.api import OpenMode
from outrider.app.open import open_agent
from outrider.app.operations import OPERATIONS
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Entry
from outrider.ipc.client import POLL_INTERVAL, OwnerWait, request_hand_over
from outrider.ipc.protocol import (
    ATTACH,
    FOLLOW,
    FORWARDED_ERRORS,
    HAND_OVER,
    HAND_OVER_TIMEOUT,
    CallError,
    CallResult,
    ConnectionLost,
    DeltaFrame,
    EntryFrame,
    FollowArgs,
    HandOverArgs,
    IpcConnection,
    IpcRequest,
    OwnerInfo,
    OwnerLeaving,
    owner_info,
    peer_uid,
    render_error,
    socket_path,
)
from outrider.system.lock import HomeLock, last_holder, lock_home

log = logging.getLogger("outrider.ipc")
_MAX_CONNECTIONS = 500
_REQUEST_TIMEOUT = 10.0
"""Seconds that a client may take to send its request."""
_NOTIFY_TIMEOUT = 1.0
_ACCEPT_RETRY_DELAY = 0.1
_BACKLOG = 128


class OwnerServer:
    """An owner, as its clients see it."""

    def __init__(self, agent: Agent, info: OwnerInfo, *, refusal: str = "") -> None:
        self.agent = agent
        self._info = info
        self._refusal = refusal
        """Why it does not hand over the home; empty when it does."""
        self._clients: set[IpcConnection] = set()
        self._connection_count = 0
        self._is_closing = False
        self._is_draining = False
        """What cannot be answered any more is left to the next owner."""
        self.successor = ""
        """The process that asked for the home."""
        self.hand_over_requested = anyio.Event()

    @property
    def client_count(self) -> int:
        """The number of attached processes."""
        return len(self._clients)

    async def drain(self, reason: str, seconds: float) -> None:
        """Stop running turns, as `Agent.drain`. Clients wait for the next owner and let a successor take the home."""
        if self.successor:
            log.info("handing over the home to %s", self.successor)
        self._is_draining = True
        await self.agent.drain(reason, seconds)
        self._is_closing = True
        with anyio.move_on_after(_NOTIFY_TIMEOUT):
            for client in tuple(self._clients) if self.successor else ():
                with suppress(ConnectionLost):
                    await client.send(OwnerLeaving(self.successor))

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, for example: accept again when there are some
                    log.warning("a connection could not be accepted: %s", error)
                    await anyio.sleep(_ACCEPT_RETRY_DELAY)
                else:
                    group.start_soon(self._handle, IpcConnection(connection))

    async def _handle(self, connection: IpcConnection) -> None:
        """One connection. An error in it never ends the owner."""
        self._connection_count += 1
        try:
            with connection, suppress(ConnectionLost, TimeoutError, OSError):
                connection.socket.setblocking(False)
                await self._handle_request(connection, peer_uid(connection.socket))
        except Exception:
            log.exception("a client's connection failed")
        finally:
            self._connection_count -= 1

    async def _handle_request(self, connection: IpcConnection, peer: int | None) -> None:
        if peer not in (None, os.getuid()):
            await connection.send(render_error(Refused("this home belongs to another user")))
            return
        if self._connection_count > _MAX_CONNECTIONS:
            await connection.send(render_error(Unavailable("too many commands use this home at once; try again", 1.0)))
            return
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT):
                request, images = await connection.receive_request()
        except ValueError as error:
            await connection.send(render_error(error))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_on_disconnect, connection, group.cancel_scope)
            with suppress(ConnectionLost):
                await self._respond(connection, request, images)
            group.cancel_scope.cancel()

    async def _respond(self, connection: IpcConnection, request: IpcRequest, images: Sequence[bytes]) -> None:
        """Every error is a response, so that a bug ends one call and not the owner."""
        response: CallError | None = None
        try:
            await self._dispatch(connection, request, images)
        except ConnectionLost:
            raise
        except Unavailable as error:
            response = None if self._is_draining else render_error(error)
        except Exception as error:
            if not isinstance(error, FORWARDED_ERRORS):
                log.exception("a client's call failed: %s", request.call)
            response = render_error(error)
        if response:
            await connection.send(response)

    async def _dispatch(self, connection: IpcConnection, request: IpcRequest, images: Sequence[bytes]) -> None:
        if request.version != self._info.version:
            raise _version_mismatch(self._info, request.version)
        if request.call == ATTACH:
            await self._keep_attached(connection)
        elif request.call == FOLLOW:
            await self._follow(connection, msgspec.json.decode(request.args, type=FollowArgs))
        elif request.call == HAND_OVER:
            self._hand_over(msgspec.json.decode(request.args, type=HandOverArgs).successor)
            await connection.send(CallResult(msgspec.Raw(b"null")))
        else:
            await connection.send(CallResult(await self._call(request, images)))

    async def _keep_attached(self, connection: IpcConnection) -> None:
        if self._is_closing:
            return
        self._clients.add(connection)
        try:
            await connection.send(self._info)
            await anyio.sleep_forever()
        finally:
            self._clients.discard(connection)

    async def _follow(self, connection: IpcConnection, args: FollowArgs) -> None:
        self._require_full_access()
        await self.agent.resume(args.session)
        async with aclosing(self.agent.follow(args.session, args.after)) as events:
            async for event in events:
                await connection.send(EntryFrame(event) if isinstance(event, Entry) else DeltaFrame(event))

    async def _call(self, request: IpcRequest, images: Sequence[bytes]) -> msgspec.Raw:
        operation = OPERATIONS.get(request.call)
        if operation is None:
            raise Refused(f"there is no operation {request.call!r}")
        if operation.access == "full":
            self._require_full_access()
        agent = self.agent.in_workspace(Path(request.workspace) if request.workspace else None)
        args = operation.decode_args(request.args, images)
        return msgspec.Raw(msgspec.json.encode(await getattr(agent, operation.name)(**args)))

    def _require_full_access(self) -> None:
        if self._info.serves != "full":
            raise HomeBusy(
                f"{self._info.label} (process {self._info.pid}) is using this home and runs no turns for "
                "other processes; wait until it ends, or choose another home with OUTRIDER_HOME"
            )

    def _hand_over(self, successor: str) -> None:
        if self._refusal:
            raise HomeBusy(self._refusal)
        self._require_full_access()
        self.successor = successor
        self.hand_over_requested.set()
        log.info("%s asks for the home", successor)


def _version_mismatch(owner: OwnerInfo, version: str) -> HomeBusy:
    return HomeBusy(
        f"{owner.label} (process {owner.pid}) is Outrider {owner.version} and this is Outrider {version}; restart it"
    )


async def _cancel_on_disconnect(connection: IpcConnection, scope: anyio.CancelScope) -> None:
    """A client that disconnects cancels its call, never a turn."""
    with suppress(ConnectionLost):
        await connection.receive()
    scope.cancel()


@asynccontextmanager
async def serve_home(home: Path, server: OwnerServer) -> AsyncGenerator[None]:
    """Accept clients while the block runs. The caller owns the home.

    Where the disk does not support sockets, the owner is alone and other commands report that the home is in use.
    """
    try:
        listener = _listen(home)
    except (OSError, Refused) as error:
        log.warning("other processes cannot connect to this one: %s", error)
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
    """A socket in this home. It replaces one that a killed owner left."""
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


@asynccontextmanager
async def open_as_owner(config: Config, mode: OpenMode) -> AsyncGenerator[OwnerServer]:
    """Open a home that this process must own, for `outrider up`. The present owner is asked to hand it over.

    Raises HomeBusy when it refuses, or takes too long.
    """
    async with AsyncExitStack() as stack:
        lock = await stack.enter_async_context(_take_ownership(config.home, mode))
        agent = await stack.enter_async_context(open_agent(config, lock, mode))
        info = owner_info(config, mode.label, mode.serves)
        server = OwnerServer(agent, info, refusal=f"{info.label} (process {info.pid}) serves this home; stop it first")
        await stack.enter_async_context(serve_home(config.home, server))
        yield server


@asynccontextmanager
async def _take_ownership(home: Path, mode: OpenMode) -> AsyncGenerator[HomeLock]:
    until, owner_wait = time.monotonic() + HAND_OVER_TIMEOUT, OwnerWait(home, mode.access, mode.wait)
    async with AsyncExitStack() as stack:
        lock = None
        while lock is None:
            try:
                lock = await stack.enter_async_context(lock_home(home, mode.label, 0.0, serves=mode.serves))
            except HomeBusy as busy:
                if time.monotonic() > until:
                    raise
                if last_holder(home).serves == "full" and await request_hand_over(home, mode.label):
                    await anyio.sleep(POLL_INTERVAL * 5)
                else:
                    await owner_wait.wait_or_raise(busy)
        yield lock
