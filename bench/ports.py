"""A port of this machine for a server that is started more than once."""

import random
import socket


def free_port() -> int:
    """An unused one, outside the range from which the system takes ports for clients: it stays free while the server
    restarts."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
