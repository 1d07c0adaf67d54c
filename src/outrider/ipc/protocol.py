"""Where the socket of a home is, who may knock there, and how to get round the shortness of socket paths.

What goes over the link: one request, then its answers, then the end. Frames of JSON, each after its length.
"""

import asyncio
import hashlib
import os
import socket
import struct
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_type_hints

import msgspec
from msgspec import Raw, Struct

from outrider import __version__
from outrider.app.api import AgentApi, OpenMode, default_model_name
from outrider.config.models import choose_models
from outrider.config.schema import Config
from outrider.core import errors
from outrider.core.errors import Refused
from outrider.core.events import Delta, Entry

SOCKET_NAME = "link"
_MAX_SOCKET_PATH = 100
"""Bytes in a socket's path: Linux takes 107, others 103."""
_PROC_FD = Path("/proc/self/fd")


@contextmanager
def socket_path(home: Path, descriptors: Path = _PROC_FD) -> Generator[str]:
    """The path of this home's socket, short enough for the system while the block runs. Raises OSError, Refused."""
    path = home / SOCKET_NAME
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield str(path)
    elif descriptors.is_dir():
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"{descriptors}/{descriptor}/{SOCKET_NAME}"
        finally:
            os.close(descriptor)
    else:
        yield str(_private_folder(home) / SOCKET_NAME)


def _private_folder(home: Path) -> Path:
    """A folder elsewhere that is this home's and this person's alone."""
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:20]
    folder = Path(tempfile.gettempdir(), f"outrider-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise Refused(f"{folder} belongs to somebody else, or is open to others; remove it")
    return folder


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end; None where the system does not say, and the folder's mode has to do."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))[1]


MAX_FRAME = 64 * 1024 * 1024
"""Bytes in a frame. A journal is asked for in pages, and every picture is a frame of its own."""
MAX_IMAGES = 20
_CHUNK = 256 * 1024
CALLS = (
    "answer",
    "questions",
    "change",
    "create_key",
    "delete",
    "find",
    "find_key",
    "find_task",
    "resume_all",
    "revoke_permission",
    "permissions",
    "journal",
    "kill_task",
    "list_keys",
    "find_by_prefix",
    "post",
    "rename",
    "revoke_key",
    "search",
    "session",
    "sessions",
    "spent",
    "stop",
    "resume",
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


def owner_info(config: Config, presence: OpenMode) -> OwnerInfo:
    """What an owner says of itself."""
    model = default_model_name(config)
    return OwnerInfo(presence.label, os.getpid(), __version__, model, config.runtime.name, model_fingerprint(config))


def process_label() -> str:
    """What this process is called when it asks for a home that it is a guest in."""
    return f"process {os.getpid()}"


def model_fingerprint(config: Config) -> str:
    """What these settings let a process ask, and where; the same text for the same means."""
    try:
        models = [f"{choice.name} at {choice.url}, key {bool(choice.key)}" for choice in choose_models(config)]
    except Refused:
        models = ["none"]
    return "; ".join((config.runtime.name, *models))
