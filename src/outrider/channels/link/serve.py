"""The owner's end of the link: answers the calls of guests, and lets them know when it goes."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from msgspec import Raw

from outrider.app.agent import Agent
from outrider.channels.link.place import peer_of, reached
from outrider.channels.link.wire import (
    CALLS,
    CROSSING,
    FOLLOW,
    MAKE_WAY,
    STAY,
    Done,
    Failed,
    Hello,
    Hinted,
    Leaving,
    Line,
    Lost,
    Noted,
    Request,
    parse_args,
    render_error,
)
from outrider.core.errors import HomeBusy, Refused, Unavailable
from outrider.core.events import Entry

log = logging.getLogger("outrider.link")

_MOST = 500
"""Connections at once."""
_PATIENCE = 10.0
"""Seconds a guest may take to say what it wants."""
_FAREWELL = 1.0
_PAUSE = 0.1
_BACKLOG = 128


class Served:
    """An owner, as its guests have it."""

    def __init__(self, agent: Agent, me: Hello, *, refusal: str = "") -> None:
        self.agent = agent
        self._me = me
        self._refusal = refusal
        """Why it does not make way for `outrider up`; empty when it does."""
        self._guests: set[Line] = set()
        self._count = 0
        self._is_closing = False
        self._is_resting = False
        """What cannot be answered any more is left to the next owner."""
        self.heir = ""
        """Who asked for the home."""
        self.asked = anyio.Event()
        """Set when somebody did."""

    @property
    def guests(self) -> int:
        """How many processes are here besides the owner."""
        return len(self._guests)

    async def rest(self, reason: str, gently: float) -> None:
        """Carry nothing any more, as `Agent.rest`. Guests wait for the next owner, and leave the home to an heir."""
        self._is_resting = True
        await self.agent.rest(reason, gently)
        self._is_closing = True
        with anyio.move_on_after(_FAREWELL):
            for line in tuple(self._guests) if self.heir else ():
                with suppress(Lost):
                    await line.send(Leaving(self.heir))

    async def attend(self, listener: socket.socket) -> None:
        """Take every connection, until cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, say: those who wait are taken when there are some
                    log.warning("a guest could not be let in: %s", error)
                    await anyio.sleep(_PAUSE)
                else:
                    group.start_soon(self._converse, Line(connection))

    async def _converse(self, line: Line) -> None:
        """One connection, from its request to its end. Whatever goes wrong in it, the owner goes on."""
        self._count += 1
        try:
            with line, suppress(Lost, TimeoutError, OSError):
                line.connection.setblocking(False)
                await self._attend(line, peer_of(line.connection))
        except Exception:
            log.exception("a guest's connection failed")
        finally:
            self._count -= 1

    async def _attend(self, line: Line, peer: int | None) -> None:
        if peer not in (None, os.getuid()):
            await line.send(render_error(Refused("this home belongs to another user")))
            return
        if self._count > _MOST:
            await line.send(render_error(Unavailable("too many commands use this home at once; try again", 1.0)))
            return
        try:
            with anyio.fail_after(_PATIENCE):
                request, pictures = await line.request()
        except ValueError as error:
            await line.send(render_error(error))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, line, group.cancel_scope)
            with suppress(Lost):
                await self._answer(line, request, pictures)
            group.cancel_scope.cancel()

    async def _answer(self, line: Line, request: Request, pictures: Sequence[bytes]) -> None:
        """Every failure is an answer, so that a bug of ours ends a call and not the owner."""
        failed: Failed | None = None
        try:
            await self._carry_out(line, request, pictures)
        except Lost:
            raise
        except Unavailable as error:
            failed = None if self._is_resting else render_error(error)
        except Exception as error:
            if not isinstance(error, CROSSING):
                log.exception("a guest's call failed: %s", request.call)
            failed = render_error(error)
        if failed:
            await line.send(failed)

    async def _carry_out(self, line: Line, request: Request, pictures: Sequence[bytes]) -> None:
        if request.version != self._me.version:
            raise _other_version(self._me, request.version)
        if request.call == STAY:
            await self._keep(line)
        elif request.call == FOLLOW:
            await self._follow(line, request)
        elif request.call == MAKE_WAY:
            await line.send(Done(self._make_way(msgspec.json.decode(request.args["heir"], type=str))))
        else:
            await line.send(Done(await self._call(request, pictures)))

    async def _keep(self, line: Line) -> None:
        if self._is_closing:
            return
        self._guests.add(line)
        try:
            await line.send(self._me)
            await anyio.sleep_forever()
        finally:
            self._guests.discard(line)

    async def _follow(self, line: Line, request: Request) -> None:
        args = parse_args(FOLLOW, request.args)
        await self.agent.take_up(args["session"])
        async with aclosing(self.agent.follow(**args)) as events:
            async for event in events:
                await line.send(Noted(event) if isinstance(event, Entry) else Hinted(event))

    async def _call(self, request: Request, pictures: Sequence[bytes]) -> Raw:
        if request.call not in CALLS:
            raise Refused(f"{request.call!r} is no call")
        agent = self.agent.working_in(Path(request.workspace) if request.workspace else None)
        args = parse_args(request.call, request.args)
        if pictures:
            args["images"] = pictures
        return Raw(msgspec.json.encode(await getattr(agent, request.call)(**args)))

    def _make_way(self, heir: str) -> Raw:
        if self._refusal:
            raise HomeBusy(self._refusal)
        self.heir = heir
        self.asked.set()
        log.info("%s asks for the home", heir)
        return Raw(b"null")


def _other_version(me: Hello, version: str) -> HomeBusy:
    return HomeBusy(
        f"{me.label} (process {me.pid}) is Outrider {me.version} and this is Outrider {version}; "
        "end it and start it again"
    )


async def _watch(line: Line, scope: anyio.CancelScope) -> None:
    """Nothing more is expected of a guest but that it goes: that cancels its call, never a turn."""
    with suppress(Lost):
        await line.receive()
    scope.cancel()


@asynccontextmanager
async def serving(home: Path, served: Served) -> AsyncGenerator[None]:
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
            group.start_soon(served.attend, listener)
            try:
                yield
            finally:
                with suppress(OSError), reached(home) as path:
                    os.unlink(path)
                group.cancel_scope.cancel()


def _listen(home: Path) -> socket.socket:
    """A socket in this home, in place of one that was left there."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with reached(home) as path:
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
