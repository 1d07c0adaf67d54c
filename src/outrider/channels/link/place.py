"""Where the socket of a home is, who may knock there, and how to get round the shortness of socket paths."""

import hashlib
import os
import socket
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from outrider.core.errors import Refused

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
