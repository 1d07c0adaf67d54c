"""A guest's end of the link: finds the owner of a home, stays with it, and calls it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from outrider import __version__
from outrider.channels.link.place import reached
from outrider.channels.link.wire import (
    FOLLOW,
    MAKE_WAY,
    STAY,
    Answer,
    Done,
    Failed,
    Hello,
    Hinted,
    Leaving,
    Line,
    Lost,
    Noted,
    Request,
    parse_error,
    parse_result,
    render_args,
)
from outrider.core.events import Event
from outrider.core.ports import Session

_PATIENCE = 10.0
"""Seconds an owner may take to say who it is."""


class Guest:
    """Calls to the owner of a home, as it is now. Each raises Lost when the owner goes."""

    def __init__(self, home: Path, workspace: str, owner: Hello, line: Line) -> None:
        self._home = home
        self._workspace = workspace
        self.owner = owner
        self._line = line

    async def until_gone(self) -> str:
        """Wait until the owner goes; whom it makes way for, if anybody."""
        try:
            answer = await self._line.answer()
        except Lost:
            return ""
        return answer.heir if isinstance(answer, Leaving) else ""

    async def call(self, call: str, args: Mapping[str, object], pictures: Sequence[bytes] = ()) -> Any:
        """The result of this call of `Acting`, or what it raises."""
        async with _connection(self._home) as line:
            request = Request(__version__, call, render_args(args), self._workspace, len(pictures))
            await line.send(request, *pictures)
            match await line.answer():
                case Done(value=value):
                    return parse_result(call, value)
                case other:
                    raise _unexpected(other)

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """As `Agent.follow`; the session is taken up."""
        async with _connection(self._home) as line:
            await line.send(Request(__version__, FOLLOW, render_args({"session": session, "after": after})))
            while True:
                match await line.answer():
                    case Noted(entry=entry):
                        yield entry
                    case Hinted(delta=delta):
                        yield delta
                    case other:
                        raise _unexpected(other)


def _unexpected(answer: Answer) -> Exception:
    return parse_error(answer) if isinstance(answer, Failed) else Lost("the link brought another answer than asked for")


@asynccontextmanager
async def _connection(home: Path) -> AsyncGenerator[Line]:
    with Line(socket.socket(socket.AF_UNIX)) as line:
        line.connection.setblocking(False)
        try:
            with reached(home) as path:
                await asyncio.get_running_loop().sock_connect(line.connection, path)
        except OSError as error:
            raise Lost("nobody answers at the link") from error
        yield line


@asynccontextmanager
async def visiting(home: Path, workspace: str = "") -> AsyncGenerator[Guest | None]:
    """Be a guest of whoever owns this home; None when nobody answers. Raises HomeBusy for another version of us."""
    async with AsyncExitStack() as stack:
        guest = None
        with suppress(Lost, TimeoutError), anyio.fail_after(_PATIENCE):
            line = await stack.enter_async_context(_connection(home))
            await line.send(Request(__version__, STAY))
            answer = await line.answer()
            if not isinstance(answer, Hello):
                raise _unexpected(answer)
            guest = Guest(home, workspace, answer, line)
        yield guest


async def ask_to_make_way(home: Path, heir: str) -> bool:
    """Ask the owner of this home to let go of it. False when nobody answers. Raises HomeBusy when it does not."""
    try:
        async with _connection(home) as line:
            await line.send(Request(__version__, MAKE_WAY, render_args({"heir": heir})))
            answer = await line.answer()
    except Lost:
        return False
    if isinstance(answer, Failed):
        raise parse_error(answer)
    return True
