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

from outrider.config.models import PROVIDERS, ProviderPreset

_MAX_RESPONSE_BYTES = 256_000
_MAX_MODELS = 50


class DiscoveredKey(Struct, frozen=True):
    """A provider whose key is in the environment."""

    provider: str
    variable: str
    command: str
    """What to type to use it."""


class LocalModelServer(Struct, frozen=True):
    """A model server that answers on this machine."""

    provider: str
    url: str
    models: tuple[str, ...]
    command: str
    """What to type to use it."""


def find_keys(environ: Mapping[str, str] | None = None) -> tuple[DiscoveredKey, ...]:
    """Which providers' usual variables are set. Never their values."""
    environ = os.environ if environ is None else environ
    return tuple(
        DiscoveredKey(
            provider.name, key, f"outrider config set model {provider.name}:{provider.default_model or '<model>'}"
        )
        for provider in PROVIDERS
        for key in provider.key_variables
        if environ.get(key, "").strip()
    )


def find_local_servers(
    servers: Sequence[ProviderPreset] = tuple(provider for provider in PROVIDERS if provider.is_local),
    connect: float = 0.15,
    answer: float = 0.3,
) -> tuple[LocalModelServer, ...]:
    """Model servers that answer at these addresses, asked all at once; over within `connect` + `answer` seconds.

    Blocks that long at most: call it from a thread.
    """
    probes = [_Probe(server) for server in servers]
    try:
        _run_stage(connect, probes, _Probe.connect)
        _run_stage(answer, probes, _Probe.exchange)
        return tuple(probe.result() for probe in probes if probe.models is not None)
    finally:
        for probe in probes:
            probe.socket.close()


class _Probe:
    """One server being asked for its models, without blocking."""

    def __init__(self, server: ProviderPreset) -> None:
        self.server = server
        self.models: tuple[str, ...] | None = None
        parts = urlsplit(server.url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        self._request = (
            f"GET {parts.path}/models HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n".encode()
        )
        self._received = bytearray()
        self.is_connected = False
        self.wait_event = selectors.EVENT_WRITE
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex((host, port))

    def connect(self) -> bool:
        """Called when the socket is ready; True when this stage is over."""
        self.is_connected = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        return True

    def exchange(self) -> bool:
        """Called when the socket is ready; True when this stage is over."""
        try:
            if self._request:
                self._request = self._request[self.socket.send(self._request) :]
                self.wait_event = selectors.EVENT_WRITE if self._request else selectors.EVENT_READ
                return False
            heard = self.socket.recv(65_536)
        except BlockingIOError:
            return False
        except OSError:
            self.is_connected = False
            return True
        self._received += heard
        if heard and len(self._received) <= _MAX_RESPONSE_BYTES and not _is_complete(self._received):
            return False
        self.models = _parse_models(bytes(self._received))
        return True

    def result(self) -> LocalModelServer:
        models = self.models or ()
        name = f"{self.server.name}:{models[0] if models else '<model>'}"
        return LocalModelServer(self.server.name, self.server.url, models, f"outrider config set model {name}")


def _run_stage(seconds: float, probes: Sequence[_Probe], stage: Callable[[_Probe], bool]) -> None:
    """Take every probe through this stage, or as far as it comes in time."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for probe in probes:
            if stage is _Probe.connect or probe.is_connected:
                selector.register(probe.socket, probe.wait_event, probe)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                probe = cast("_Probe", key.data)
                if stage(probe):
                    selector.unregister(probe.socket)
                elif probe.wait_event != key.events:
                    selector.modify(probe.socket, probe.wait_event, probe)


def _is_complete(received: bytearray) -> bool:
    """Whether the announced length has come; a server may keep the connection open."""
    head, mark, body = bytes(received).partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return bool(mark) and len(body) >= int(value[:12])
    return False


def _parse_models(received: bytes) -> tuple[str, ...] | None:
    """The models in an answer to `GET /models`; None when this is no model server's answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    if len(received) > _MAX_RESPONSE_BYTES or head.split(b" ", 2)[1:2] != [b"200"]:
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
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())[:_MAX_MODELS]
