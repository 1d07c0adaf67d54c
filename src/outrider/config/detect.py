"""Looks around for models: keys in the environment, model servers on this machine. Offers them, uses nothing."""

import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from outrider.config.providers import PROVIDERS, Provider

_LONGEST_ANSWER = 256_000
_MOST_MODELS = 50


class KeyFound(Struct, frozen=True):
    """A provider whose key is in the environment."""

    provider: str
    variable: str
    how: str
    """What to type to use it."""


class Offer(Struct, frozen=True):
    """A model server that answers on this machine."""

    provider: str
    url: str
    models: tuple[str, ...]
    how: str
    """What to type to use it."""


def keys_found(environ: Mapping[str, str] | None = None) -> tuple[KeyFound, ...]:
    """Which providers' usual variables are set. Never their values."""
    environ = os.environ if environ is None else environ
    return tuple(
        KeyFound(provider.name, key, f"outrider config set model {provider.name}:{provider.default or '<model>'}")
        for provider in PROVIDERS
        for key in provider.keys
        if environ.get(key, "").strip()
    )


def servers_found(
    servers: Sequence[Provider] = tuple(provider for provider in PROVIDERS if provider.is_local),
    connect: float = 0.15,
    answer: float = 0.3,
) -> tuple[Offer, ...]:
    """Model servers that answer at these addresses, asked all at once; over within `connect` + `answer` seconds.

    Blocks that long at most: call it from a thread.
    """
    probes = [_Probe(server) for server in servers]
    try:
        _until(connect, probes, _Probe.connect)
        _until(answer, probes, _Probe.talk)
        return tuple(probe.offer() for probe in probes if probe.models is not None)
    finally:
        for probe in probes:
            probe.socket.close()


class _Probe:
    """One server being asked for its models, without blocking."""

    def __init__(self, server: Provider) -> None:
        self.server = server
        self.models: tuple[str, ...] | None = None
        parts = urlsplit(server.url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        self._asks = (
            f"GET {parts.path}/models HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n".encode()
        )
        self._heard = bytearray()
        self.is_connected = False
        self.waits_for = selectors.EVENT_WRITE
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex((host, port))

    def connect(self) -> bool:
        """Called when the socket is ready; True when this stage is over."""
        self.is_connected = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        return True

    def talk(self) -> bool:
        """Called when the socket is ready; True when this stage is over."""
        try:
            if self._asks:
                self._asks = self._asks[self.socket.send(self._asks) :]
                self.waits_for = selectors.EVENT_WRITE if self._asks else selectors.EVENT_READ
                return False
            heard = self.socket.recv(65_536)
        except BlockingIOError:
            return False
        except OSError:
            self.is_connected = False
            return True
        self._heard += heard
        if heard and len(self._heard) <= _LONGEST_ANSWER and not _is_whole(self._heard):
            return False
        self.models = _models(bytes(self._heard))
        return True

    def offer(self) -> Offer:
        models = self.models or ()
        name = f"{self.server.name}:{models[0] if models else '<model>'}"
        return Offer(self.server.name, self.server.url, models, f"outrider config set model {name}")


def _until(seconds: float, probes: Sequence[_Probe], stage: Callable[[_Probe], bool]) -> None:
    """Take every probe through this stage, or as far as it comes in time."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for probe in probes:
            if stage is _Probe.connect or probe.is_connected:
                selector.register(probe.socket, probe.waits_for, probe)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                probe = cast("_Probe", key.data)
                if stage(probe):
                    selector.unregister(probe.socket)
                elif probe.waits_for != key.events:
                    selector.modify(probe.socket, probe.waits_for, probe)


def _is_whole(heard: bytearray) -> bool:
    """Whether the announced length has come; a server may keep the connection open."""
    head, mark, body = bytes(heard).partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return bool(mark) and len(body) >= int(value[:12])
    return False


def _models(heard: bytes) -> tuple[str, ...] | None:
    """The models in an answer to `GET /models`; None when this is no model server's answer."""
    head, _, body = heard.partition(b"\r\n\r\n")
    if len(heard) > _LONGEST_ANSWER or head.split(b" ", 2)[1:2] != [b"200"]:
        return None
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or "data" not in answer:
        return None
    items = cast("list[Any]", answer["data"] or [])
    if not isinstance(items, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None
    names = [cast("dict[str, Any]", item).get("id") for item in items if isinstance(item, dict)]
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())[:_MOST_MODELS]
