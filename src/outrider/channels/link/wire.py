"""What goes over the link: one request, then its answers, then the end. Frames of JSON, each after its length."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_type_hints

import msgspec
from msgspec import Raw, Struct

from outrider.app.acting import Acting
from outrider.core import errors
from outrider.core.events import Delta, Entry

LONGEST = 64 * 1024 * 1024
"""Bytes in a frame. A journal is asked for in pages, and every picture is a frame of its own."""
MOST_PICTURES = 20
_PIECE = 256 * 1024

CALLS = (
    "answer",
    "asks",
    "change",
    "create_key",
    "delete",
    "find",
    "find_key",
    "find_task",
    "finish",
    "forget_grant",
    "grants",
    "journal",
    "kill_task",
    "list_keys",
    "look_up",
    "post",
    "rename",
    "revoke_key",
    "search",
    "session",
    "sessions",
    "spent",
    "stop",
    "take_up",
    "tasks",
    "unfinished",
    "wait",
    "wait_task",
)
"""The calls of `Acting` that are answered once. Their parameters and results cross as they are declared there."""
STAY = "stay"
"""Be a guest for as long as the connection lasts: one is told who the owner is, and sees at once when it goes."""
FOLLOW = "follow"
MAKE_WAY = "make_way"
"""Ask the owner to let go of the home, for `outrider up`."""


class Lost(Exception):
    """The other end is gone. Who owns the home now has to be found out anew; then the call may be repeated."""


class Request(Struct, frozen=True, omit_defaults=True):
    """What a guest wants."""

    version: str
    call: str
    args: Mapping[str, Raw] = {}
    workspace: str = ""
    """The folder for sessions it begins; empty for one of their own."""
    pictures: int = 0
    """So many frames follow, a picture in each."""


class Done(Struct, frozen=True, tag="done"):
    """The call's result."""

    value: Raw


class Failed(Struct, frozen=True, tag="failed"):
    """The call raised this."""

    error: str
    text: str
    retry_after: float | None = None


class Noted(Struct, frozen=True, tag="entry"):
    """An entry that is being followed."""

    entry: Entry


class Hinted(Struct, frozen=True, tag="delta"):
    """A delta that is being followed."""

    delta: Delta


class Hello(Struct, frozen=True, tag="hello"):
    """Who owns the home."""

    label: str
    pid: int
    version: str
    model: str
    """The model it asks when a session names none; empty when it can ask none."""
    runtime: str = "native"
    """What carries the turns of sessions that ask for nothing else."""
    means: str = ""
    """What it can ask, and where: another process with the same can go on with its turns."""


class Leaving(Struct, frozen=True, tag="leaving"):
    """The owner goes. With an heir, nobody else takes the home at once."""

    heir: str = ""


Answer = Done | Failed | Noted | Hinted | Hello | Leaving

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        errors.Refused,
        errors.Unavailable,
        errors.NeedsAnotherProcess,
        errors.ContextTooLong,
        errors.StaleClaim,
        errors.WriteFailed,
        errors.HomeBusy,
        errors.StoreDamaged,
        errors.NameTaken,
        errors.QueueFull,
    )
}
CROSSING: tuple[type[Exception], ...] = tuple(_ERRORS.values())
"""Errors that cross the link as themselves."""


def render_error(error: Exception) -> Failed:
    """One of `CROSSING`, ready to be sent; what is none of them has no words for the other end but its own."""
    if isinstance(error, CROSSING):
        return Failed(type(error).__name__, str(error), getattr(error, "retry_after", None))
    if isinstance(error, ValueError):
        return Failed(errors.Refused.__name__, f"this is no request: {error}")
    return Failed(errors.Unavailable.__name__, f"internal error: {type(error).__name__}: {error}")


def parse_error(failed: Failed) -> Exception:
    """As it was raised at the other end."""
    kind = _ERRORS.get(failed.error, errors.Unavailable)
    return errors.Unavailable(failed.text, failed.retry_after) if kind is errors.Unavailable else kind(failed.text)


def render_args(args: Mapping[str, object]) -> dict[str, Raw]:
    return {name: Raw(msgspec.json.encode(value)) for name, value in args.items()}


def parse_args(call: str, args: Mapping[str, Raw]) -> dict[str, Any]:
    """As the call of `Acting` declares them. Raises ValueError for what it does not."""
    kinds = get_type_hints(getattr(Acting, call))
    if unknown := set(args) - set(kinds):
        raise ValueError(f"{call} takes no {', '.join(sorted(unknown))}")
    return {name: msgspec.json.decode(value, type=kinds[name]) for name, value in args.items()}


def parse_result(call: str, value: Raw) -> Any:
    """As the call of `Acting` declares it."""
    return msgspec.json.decode(value, type=get_type_hints(getattr(Acting, call))["return"])


class Line:
    """One end of a connection: a socket that does not block, closed with the block."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    async def send(self, *messages: Answer | Request | bytes) -> None:
        """Raises Lost, and Refused for what is too long to be sent."""
        frames: list[bytes] = []
        for message in messages:
            frame = message if isinstance(message, bytes) else msgspec.json.encode(message)
            if len(frame) > LONGEST:
                raise errors.Refused(f"this takes {len(frame):,} bytes; at most {LONGEST:,} are passed on at once")
            frames += (len(frame).to_bytes(4, "big"), frame)
        try:
            await asyncio.get_running_loop().sock_sendall(self.connection, b"".join(frames))
        except OSError as error:
            raise Lost("the link was cut") from error

    async def receive(self) -> bytes:
        """The next frame. Raises Lost when there is none, and for one that is too long."""
        length = int.from_bytes(await self._receive(4), "big")
        if length > LONGEST:
            raise Lost("the link brought a frame that is too long")
        return await self._receive(length)

    async def _receive(self, length: int) -> bytes:
        pieces: list[bytes] = []
        while length:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self.connection, min(length, _PIECE))
            except OSError as error:
                raise Lost("the link was cut") from error
            if not piece:
                raise Lost("the other end is gone")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    async def answer(self) -> Answer:
        """The next answer. Raises Lost, also for one that cannot be understood."""
        try:
            return msgspec.json.decode(await self.receive(), type=Answer)
        except ValueError as error:
            raise Lost(f"the link brought something else than an answer: {error}") from error

    async def request(self) -> tuple[Request, Sequence[bytes]]:
        """The one request, and its pictures. Raises Lost, and ValueError for anything else."""
        request = msgspec.json.decode(await self.receive(), type=Request)
        if request.pictures > MOST_PICTURES:
            raise ValueError("too many pictures")
        return request, [await self.receive() for _ in range(request.pictures)]
