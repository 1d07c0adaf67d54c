"""A raw connection that sends exact bytes, and facts about a process from the kernel."""

import socket
from contextlib import suppress
from pathlib import Path

from tests.journey.support import PATIENCE

CLOSE = "connection: close"


class Wire:
    """A socket without anything that would correct what is sent."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def sends(self, content: bytes, most: int = 1) -> int:
        """Send it so many times, or until the server accepts no more: the number of bytes sent."""
        sent = 0
        with suppress(ConnectionError):
            for _ in range(most):
                self.socket.sendall(content)
                sent += len(content)
        return sent

    def hears(self, end: bytes = b"") -> bytes:
        """Everything up to `end`, or until the server closes."""
        received = b""
        with suppress(ConnectionError):
            while not (end and end in received) and (piece := self.socket.recv(65_536)):
                received += piece
        return received

    def status(self) -> int:
        """The status of the one response before the server closed; 0 for none."""
        received = self.hears()
        starts = received.count(b"HTTP/1.1 ")
        assert starts <= 1, received
        return int(received[9:12]) if received else 0


def head(target: str, *lines: str, key: str = "", host: str = "127.0.0.1", method: str = "POST") -> bytes:
    """The head of a request: its first line, a host, a key and these lines. Empty ones are omitted."""
    host_lines = [f"host: {host}"] if host else []
    key_lines = [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join([f"{method} {target} HTTP/1.1", *host_lines, *key_lines, *lines, "", ""]).encode("latin-1")


def memory(process: int) -> int:
    """The resident memory in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS in /proc")


def sockets(process: int) -> int:
    """The number of open sockets."""
    count = 0
    for each in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(each.readlink()).startswith("socket:")
    return count
