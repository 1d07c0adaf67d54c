"""An unreliable network: a proxy on a loopback port that cuts every connection after some time or some bytes."""

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

MOST_BYTES = 6_000
MOST_SECONDS = 0.4
PATIENCE = 120.0


class CuttingProxy:
    """Where to connect, and how many connections were cut so far."""

    def __init__(self, listener: socket.socket, port: int, seed: int) -> None:
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.cuts = 0
        self._listener = listener
        self._target = port
        self._random = random.Random(seed)
        self._open: list[threading.Thread] = []

    def accept_connections(self) -> None:
        """Accept connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                bounds = self._random.randint(1, MOST_BYTES), self._random.uniform(0.05, MOST_SECONDS)
                thread = threading.Thread(target=self._pass_on, args=(client, *bounds), daemon=True)
                self._open.append(thread)
                thread.start()
        for thread in self._open:
            thread.join(PATIENCE)

    def _pass_on(self, client: socket.socket, most: int, seconds: float) -> None:
        """Forward at most so many bytes in both directions, for at most so many seconds."""
        end = time.monotonic() + seconds
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target), 60) as server:
            others = {client: server, server: client}
            while ready := select.select([client, server], [], [], max(0.0, end - time.monotonic()))[0]:
                for side in ready:
                    piece = side.recv(65_536)[:most]
                    if not piece and most:
                        return
                    others[side].sendall(piece)
                    most -= len(piece)
                    if not most:
                        self._cut(client, server)
                        return
            self._cut(client, server)

    def _cut(self, *sides: socket.socket) -> None:
        """Cut, in turn like a lost network and like a server that ends."""
        self.cuts += 1
        if self.cuts % 2:
            for side in sides:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def cutting(port: int, seed: int = 1) -> Generator[CuttingProxy]:
    """A proxy to this port while the block runs; the server behind it may restart."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        proxy = CuttingProxy(listener, port, seed)
        thread = threading.Thread(target=proxy.accept_connections, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


T = TypeVar("T")


def until(attempt: Callable[[], T | None]) -> T:
    """Repeat until there is a result."""
    deadline = time.monotonic() + PATIENCE
    while (result := attempt()) is None:
        assert time.monotonic() < deadline, "no result in time"
    return result
