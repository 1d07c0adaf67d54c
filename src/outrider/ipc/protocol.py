"""The protocol between the processes of one home: where the socket is, and what is sent over it.

A connection is one request, its responses, and the end. Every frame is a length and JSON, or the bytes of an image.
Both ends must be of the same version of Outrider.
"""

import asyncio
import hashlib
import os
import socket
import struct
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Raw, Struct

from outrider import __version__
from outrider.app.api import default_model_name
from outrider.app.operations import Access
from outrider.config.models import choose_models
from outrider.config.schema import Config
from outrider.core import errors
from outrider.core.errors import Refused
from outrider.core.events import Delta, Entry
from outrider.core.store_port import Session

SOCKET_NAME = "link"
_MAX_SOCKET_PATH = 100
"""Bytes in a socket's path: Linux takes 107, others 103."""
_PROC_FD = Path("/proc/self/fd")


@contextmanager
def socket_path(home: Path, descriptors: Path = _PROC_FD) -> Generator[str]:
    """A path of this home's socket that is short enough, valid while the block runs. Raises OSError, Refused."""
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
    """A folder in the temporary directory for the socket of this home, private to this user."""
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:20]
    folder = Path(tempfile.gettempdir(), f"outrider-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise Refused(f"{folder} belongs to another user, or is open to others; remove it")
    return folder


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end; None where the system does not tell, and only file modes protect the socket."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))[1]


MAX_FRAME = 64 * 1024 * 1024
"""Bytes in a frame. Journals are read in pages, and every image has a frame of its own."""
MAX_IMAGES = 20
HAND_OVER_TIMEOUT = 15.0
"""Seconds that an owner may take to hand over the home."""
_CHUNK = 256 * 1024
ATTACH = "stay"
"""Stay connected: the owner describes itself, and the client sees at once when it leaves."""
FOLLOW = "follow"
HAND_OVER = "make_way"
"""Ask the owner to hand over the home."""


class ConnectionLost(Exception):
    """The connection ended. The call may be repeated to the owner that the home has then."""


class IpcRequest(Struct, frozen=True, omit_defaults=True):
    """An operation by name, or one of the calls above."""

    version: str
    call: str
    args: Raw = Raw(b"{}")
    workspace: str = ""
    """The workspace of sessions that it creates; empty: a folder of their own."""
    image_count: int = 0
    """The number of frames that follow, each with an image."""


class FollowArgs(Struct, frozen=True, forbid_unknown_fields=True):
    session: Session
    after: int = 0


class HandOverArgs(Struct, frozen=True, forbid_unknown_fields=True):
    successor: str


class CallResult(Struct, frozen=True, tag="done"):
    """What the call returned."""

    value: Raw


class CallError(Struct, frozen=True, tag="failed"):
    """What the call raised."""

    error: str
    text: str
    retry_after: float | None = None


class EntryFrame(Struct, frozen=True, tag="entry"):
    """An entry of a followed session."""

    entry: Entry


class DeltaFrame(Struct, frozen=True, tag="delta"):
    """A delta of a followed session."""

    delta: Delta


class OwnerInfo(Struct, frozen=True, tag="hello"):
    """The owner of the home, as it describes itself."""

    label: str
    pid: int
    version: str
    model: str
    """The model of sessions that do not name one; empty when there is none."""
    runtime: str = "native"
    """The runtime of sessions that do not name one."""
    model_fingerprint: str = ""
    """Its models and where they are: a process with the same ones can continue its turns."""
    serves: Access = "full"


class OwnerLeaving(Struct, frozen=True, tag="leaving"):
    """The owner leaves. The other clients let a successor take the home first."""

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
"""Errors that are raised again at the other end."""


def render_error(error: Exception) -> CallError:
    """This error as a frame; one that is not forwarded becomes Refused or Unavailable."""
    if isinstance(error, FORWARDED_ERRORS):
        return CallError(type(error).__name__, str(error), getattr(error, "retry_after", None))
    if isinstance(error, ValueError):
        return CallError(errors.Refused.__name__, f"invalid request: {error}")
    return CallError(errors.Unavailable.__name__, f"internal error: {type(error).__name__}: {error}")


def parse_error(failed: CallError) -> Exception:
    """The error that was raised at the other end."""
    kind = _ERRORS_BY_NAME.get(failed.error, errors.Unavailable)
    return errors.Unavailable(failed.text, failed.retry_after) if kind is errors.Unavailable else kind(failed.text)


class IpcConnection:
    """One end of a connection: a non-blocking socket, closed with the block."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    async def send(self, *messages: IpcResponse | IpcRequest | bytes) -> None:
        """Raises ConnectionLost, and Refused for a message that is too long."""
        frames: list[bytes] = []
        for message in messages:
            frame = message if isinstance(message, bytes) else msgspec.json.encode(message)
            if len(frame) > MAX_FRAME:
                raise errors.Refused(f"the message has {len(frame):,} bytes; the limit is {MAX_FRAME:,}")
            frames += (len(frame).to_bytes(4, "big"), frame)
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, b"".join(frames))
        except OSError as error:
            raise ConnectionLost("the connection broke") from error

    async def receive(self) -> bytes:
        """The next frame. Raises ConnectionLost when there is none, and for one that is too long."""
        length = int.from_bytes(await self._receive_exactly(4), "big")
        if length > MAX_FRAME:
            raise ConnectionLost("received a frame that is too long")
        return await self._receive_exactly(length)

    async def _receive_exactly(self, length: int) -> bytes:
        pieces: list[bytes] = []
        while length:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self.socket, min(length, _CHUNK))
            except OSError as error:
                raise ConnectionLost("the connection broke") from error
            if not piece:
                raise ConnectionLost("the other end closed the connection")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    async def receive_response(self) -> IpcResponse:
        """The next response. Raises ConnectionLost, also for one that is invalid."""
        try:
            return msgspec.json.decode(await self.receive(), type=IpcResponse)
        except ValueError as error:
            raise ConnectionLost(f"received an invalid response: {error}") from error

    async def receive_request(self) -> tuple[IpcRequest, Sequence[bytes]]:
        """The request and its images. Raises ConnectionLost, and ValueError for an invalid request."""
        request = msgspec.json.decode(await self.receive(), type=IpcRequest)
        if request.image_count > MAX_IMAGES:
            raise ValueError("too many images")
        return request, [await self.receive() for _ in range(request.image_count)]


def owner_info(config: Config, label: str, serves: Access) -> OwnerInfo:
    """This process as an owner."""
    model, fingerprint = default_model_name(config), model_fingerprint(config)
    return OwnerInfo(label, os.getpid(), __version__, model, config.default_runtime, fingerprint, serves)


def process_label() -> str:
    """The name of this process when it asks for the home that it is a client of."""
    return f"process {os.getpid()}"


def model_fingerprint(config: Config) -> str:
    """The models that these settings choose, and where they are; equal for equal settings."""
    try:
        models = [f"{choice.name} at {choice.url}, key {bool(choice.key)}" for choice in choose_models(config)]
    except Refused:
        models = ["none"]
    return "; ".join((f"{config.default_runtime} {config.remote.url}".strip(), *models))
