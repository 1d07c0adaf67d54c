"""A guest's end of the link: finds the owner of a home, stays with it, and calls it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from outrider import __version__
from outrider.channels.link.place import socket_path
from outrider.channels.link.wire import (
    ATTACH,
    FOLLOW,
    HAND_OVER,
    CallError,
    CallResult,
    ConnectionLost,
    DeltaFrame,
    EntryFrame,
    IpcConnection,
    IpcRequest,
    IpcResponse,
    OwnerInfo,
    OwnerLeaving,
    parse_error,
    parse_result,
    render_args,
)
from outrider.core.events import Event
from outrider.core.ports import Session

_OWNER_INFO_TIMEOUT = 10.0
"""Seconds an owner may take to say who it is."""


class OwnerConnection:
    """Calls to the owner of a home, as it is now. Each raises Lost when the owner goes."""

    def __init__(self, home: Path, workspace: str, owner: OwnerInfo, line: IpcConnection) -> None:
        self._home = home
        self._workspace = workspace
        self.info = owner
        self._connection = line

    async def wait_closed(self) -> str:
        """Wait until the owner goes; whom it makes way for, if anybody."""
        try:
            answer = await self._connection.receive_response()
        except ConnectionLost:
            return ""
        return answer.successor if isinstance(answer, OwnerLeaving) else ""

    async def call(self, call: str, args: Mapping[str, object], pictures: Sequence[bytes] = ()) -> Any:
        """The result of this call of `Acting`, or what it raises."""
        async with _connect(self._home) as line:
            request = IpcRequest(__version__, call, render_args(args), self._workspace, len(pictures))
            await line.send(request, *pictures)
            match await line.receive_response():
                case CallResult(value=value):
                    return parse_result(call, value)
                case other:
                    raise _unexpected_response(other)

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """As `Agent.follow`; the session is taken up."""
        async with _connect(self._home) as line:
            await line.send(IpcRequest(__version__, FOLLOW, render_args({"session": session, "after": after})))
            while True:
                match await line.receive_response():
                    case EntryFrame(entry=entry):
                        yield entry
                    case DeltaFrame(delta=delta):
                        yield delta
                    case other:
                        raise _unexpected_response(other)


def _unexpected_response(answer: IpcResponse) -> Exception:
    return (
        parse_error(answer)
        if isinstance(answer, CallError)
        else ConnectionLost("the link brought another answer than asked for")
    )


@asynccontextmanager
async def _connect(home: Path) -> AsyncGenerator[IpcConnection]:
    with IpcConnection(socket.socket(socket.AF_UNIX)) as line:
        line.socket.setblocking(False)
        try:
            with socket_path(home) as path:
                await asyncio.get_running_loop().sock_connect(line.socket, path)
        except OSError as error:
            raise ConnectionLost("nobody answers at the link") from error
        yield line


@asynccontextmanager
async def connect_to_owner(home: Path, workspace: str = "") -> AsyncGenerator[OwnerConnection | None]:
    """Be a guest of whoever owns this home; None when nobody answers. Raises HomeBusy for another version of us."""
    async with AsyncExitStack() as stack:
        guest = None
        with suppress(ConnectionLost, TimeoutError), anyio.fail_after(_OWNER_INFO_TIMEOUT):
            line = await stack.enter_async_context(_connect(home))
            await line.send(IpcRequest(__version__, ATTACH))
            answer = await line.receive_response()
            if not isinstance(answer, OwnerInfo):
                raise _unexpected_response(answer)
            guest = OwnerConnection(home, workspace, answer, line)
        yield guest


async def request_hand_over(home: Path, heir: str) -> bool:
    """Ask the owner of this home to let go of it. False when nobody answers. Raises HomeBusy when it does not."""
    try:
        async with _connect(home) as line:
            await line.send(IpcRequest(__version__, HAND_OVER, render_args({"heir": heir})))
            answer = await line.receive_response()
    except ConnectionLost:
        return False
    if isinstance(answer, CallError):
        raise parse_error(answer)
    return True
