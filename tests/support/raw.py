"""A connection that sends exactly what it is told to, and what the kernel says of a process."""

import socket
from contextlib import suppress
from pathlib import Path

from tests.journey.support import PATIENCE

CLOSE = "connection: close"


class Wire:
    """A socket, and nothing that would correct what is sent through it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def sends(self, content: bytes, most: int = 1) -> int:
        """Send it so many times, or until the other side refuses to take more: how many bytes were taken."""
        sent = 0
        with suppress(ConnectionError):
            for _ in range(most):
                self.socket.sendall(content)
                sent += len(content)
        return sent

    def hears(self, end: bytes = b"") -> bytes:
        """Everything until this comes, or until the other side closes."""
        heard = b""
        with suppress(ConnectionError):
            while not (end and end in heard) and (piece := self.socket.recv(65_536)):
                heard += piece
        return heard

    def status(self) -> int:
        """What the one answer was, before the other side closed; 0 for none."""
        heard = self.hears()
        starts = heard.count(b"HTTP/1.1 ")
        assert starts <= 1, heard
        return int(heard[9:12]) if heard else 0


def head(target: str, *lines: str, key: str = "", host: str = "127.0.0.1", method: str = "POST") -> bytes:
    """The head of a request: its first line, a host, a key and these lines. What is empty is left out."""
    named = [f"host: {host}"] if host else []
    opened = [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join([f"{method} {target} HTTP/1.1", *named, *opened, *lines, "", ""]).encode("latin-1")


def memory(process: int) -> int:
    """Bytes of memory it has now."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")


def sockets(process: int) -> int:
    """How many it has open."""
    found = 0
    for each in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(each.readlink()).startswith("socket:")
    return found
