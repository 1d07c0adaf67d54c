"""What goes over the link: one request, then its answers, then the end. Frames of JSON, each after its length."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_type_hints

import msgspec
from msgspec import Raw, Struct

from outrider.app.acting import AgentApi
from outrider.core import errors
from outrider.core.events import Delta, Entry

MAX_FRAME = 64 * 1024 * 1024
"""Bytes in a frame. A journal is asked for in pages, and every picture is a frame of its own."""
MAX_IMAGES = 20
_CHUNK = 256 * 1024

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
ATTACH = "stay"
"""Be a guest for as long as the connection lasts: one is told who the owner is, and sees at once when it goes."""
FOLLOW = "follow"
HAND_OVER = "make_way"
"""Ask the owner to let go of the home, for `outrider up`."""


class ConnectionLost(Exception):
    """The other end is gone. Who owns the home now has to be found out anew; then the call may be repeated."""


class IpcRequest(Struct, frozen=True, omit_defaults=True):
    """What a guest wants."""

    version: str
    call: str
    args: Mapping[str, Raw] = {}
    workspace: str = ""
    """The folder for sessions it begins; empty for one of their own."""
    image_count: int = 0
    """So many frames follow, a picture in each."""


class CallResult(Struct, frozen=True, tag="done"):
    """The call's result."""

    value: Raw


class CallError(Struct, frozen=True, tag="failed"):
    """The call raised this."""

    error: str
    text: str
    retry_after: float | None = None


class EntryFrame(Struct, frozen=True, tag="entry"):
    """An entry that is being followed."""

    entry: Entry


class DeltaFrame(Struct, frozen=True, tag="delta"):
    """A delta that is being followed."""

    delta: Delta


class OwnerInfo(Struct, frozen=True, tag="hello"):
    """Who owns the home."""

    label: str
    pid: int
    version: str
    model: str
    """The model it asks when a session names none; empty when it can ask none."""
    runtime: str = "native"
    """What carries the turns of sessions that ask for nothing else."""
    model_fingerprint: str = ""
    """What it can ask, and where: another process with the same can go on with its turns."""


class OwnerLeaving(Struct, frozen=True, tag="leaving"):
    """The owner goes. With an heir, nobody else takes the home at once."""

    successor: str = ""


IpcResponse = CallResult | CallError | EntryFrame | DeltaFrame | OwnerInfo | OwnerLeaving

_ERRORS_BY_NAME: dict[str, type[Exception]] = {
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
FORWARDED_ERRORS: tuple[type[Exception], ...] = tuple(_ERRORS_BY_NAME.values())
"""Errors that cross the link as themselves."""


def render_error(error: Exception) -> CallError:
    """One of `CROSSING`, ready to be sent; what is none of them has no words for the other end but its own."""
    if isinstance(error, FORWARDED_ERRORS):
        return CallError(type(error).__name__, str(error), getattr(error, "retry_after", None))
    if isinstance(error, ValueError):
        return CallError(errors.Refused.__name__, f"this is no request: {error}")
    return CallError(errors.Unavailable.__name__, f"internal error: {type(error).__name__}: {error}")


def parse_error(failed: CallError) -> Exception:
    """As it was raised at the other end."""
    kind = _ERRORS_BY_NAME.get(failed.error, errors.Unavailable)
    return errors.Unavailable(failed.text, failed.retry_after) if kind is errors.Unavailable else kind(failed.text)


def render_args(args: Mapping[str, object]) -> dict[str, Raw]:
    return {name: Raw(msgspec.json.encode(value)) for name, value in args.items()}


def parse_args(call: str, args: Mapping[str, Raw]) -> dict[str, Any]:
    """As the call of `Acting` declares them. Raises ValueError for what it does not."""
    kinds = get_type_hints(getattr(AgentApi, call))
    if unknown := set(args) - set(kinds):
        raise ValueError(f"{call} takes no {', '.join(sorted(unknown))}")
    return {name: msgspec.json.decode(value, type=kinds[name]) for name, value in args.items()}


def parse_result(call: str, value: Raw) -> Any:
    """As the call of `Acting` declares it."""
    return msgspec.json.decode(value, type=get_type_hints(getattr(AgentApi, call))["return"])


class IpcConnection:
    """One end of a connection: a socket that does not block, closed with the block."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    async def send(self, *messages: IpcResponse | IpcRequest | bytes) -> None:
        """Raises Lost, and Refused for what is too long to be sent."""
        frames: list[bytes] = []
        for message in messages:
            frame = message if isinstance(message, bytes) else msgspec.json.encode(message)
            if len(frame) > MAX_FRAME:
                raise errors.Refused(f"this takes {len(frame):,} bytes; at most {MAX_FRAME:,} are passed on at once")
            frames += (len(frame).to_bytes(4, "big"), frame)
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, b"".join(frames))
        except OSError as error:
            raise ConnectionLost("the link was cut") from error

    async def receive(self) -> bytes:
        """The next frame. Raises Lost when there is none, and for one that is too long."""
        length = int.from_bytes(await self._receive_exactly(4), "big")
        if length > MAX_FRAME:
            raise ConnectionLost("the link brought a frame that is too long")
        return await self._receive_exactly(length)

    async def _receive_exactly(self, length: int) -> bytes:
        pieces: list[bytes] = []
        while length:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self.socket, min(length, _CHUNK))
            except OSError as error:
                raise ConnectionLost("the link was cut") from error
            if not piece:
                raise ConnectionLost("the other end is gone")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    async def receive_response(self) -> IpcResponse:
        """The next answer. Raises Lost, also for one that cannot be understood."""
        try:
            return msgspec.json.decode(await self.receive(), type=IpcResponse)
        except ValueError as error:
            raise ConnectionLost(f"the link brought something else than an answer: {error}") from error

    async def receive_request(self) -> tuple[IpcRequest, Sequence[bytes]]:
        """The one request, and its pictures. Raises Lost, and ValueError for anything else."""
        request = msgspec.json.decode(await self.receive(), type=IpcRequest)
        if request.image_count > MAX_IMAGES:
            raise ValueError("too many pictures")
        return request, [await self.receive() for _ in range(request.image_count)]
