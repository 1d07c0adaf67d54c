"""Discovery of models: provider keys in the environment, and model servers on this machine.

What is found is suggested to the user; nothing is used without being chosen.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
from msgspec import Struct

from outrider.config.models import PROVIDERS, ProviderPreset

_MAX_RESPONSE_BYTES = 256_000
_MAX_MODELS = 50


class DiscoveredKey(Struct, frozen=True):
    """A provider whose key is in the environment."""

    provider: str
    variable: str
    command: str
    """The command that selects it."""


class LocalModelServer(Struct, frozen=True):
    """A model server that responds on this machine."""

    provider: str
    url: str
    models: tuple[str, ...]
    command: str
    """The command that selects it."""


def find_keys(environ: Mapping[str, str] | None = None) -> tuple[DiscoveredKey, ...]:
    """The providers whose usual key variable is set. The values are not part of the result."""
    environ = os.environ if environ is None else environ
    return tuple(
        DiscoveredKey(
            provider.name, key, f"outrider config set model {provider.name}:{provider.default_model or '<model>'}"
        )
        for provider in PROVIDERS
        for key in provider.key_variables
        if environ.get(key, "").strip()
    )


async def find_local_servers(
    servers: Sequence[ProviderPreset] = tuple(provider for provider in PROVIDERS if provider.is_local),
    seconds: float = 0.45,
) -> tuple[LocalModelServer, ...]:
    """The model servers that respond at these URLs within this many seconds; all are queried at once."""
    # Plain sockets: httpx2 takes longer to import than the servers take to respond.
    models: dict[str, tuple[str, ...]] = {}

    async def query(server: ProviderPreset) -> None:
        with anyio.move_on_after(seconds):
            names = await _list_models(server)
            if names is not None:
                models[server.url] = names

    async with anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(query, server)
    return tuple(_local_server(server, models[server.url]) for server in servers if server.url in models)


def _local_server(server: ProviderPreset, models: tuple[str, ...]) -> LocalModelServer:
    name = f"{server.name}:{models[0] if models else '<model>'}"
    return LocalModelServer(server.name, server.url, models, f"outrider config set model {name}")


async def _list_models(server: ProviderPreset) -> tuple[str, ...] | None:
    """The models of one server; None when it is not a model server or does not run."""
    url = urlsplit(server.url)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    request = f"GET {url.path}/models HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n"
    received = bytearray()
    try:
        async with await anyio.connect_tcp(host, port) as stream:
            await stream.send(request.encode())
            async for chunk in stream:
                received += chunk
                if len(received) > _MAX_RESPONSE_BYTES or _is_complete(received):
                    break
    except (OSError, anyio.BrokenResourceError):
        return None
    return _parse_models(bytes(received))


def _is_complete(received: bytearray) -> bool:
    """Whether the body has its full Content-Length; a server may keep the connection open after that."""
    head, separator, body = bytes(received).partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return bool(separator) and len(body) >= int(value[:12])
    return False


def _parse_models(received: bytes) -> tuple[str, ...] | None:
    """The models in a response to `GET /models`; None when it is not the response of a model server."""
    head, _, body = received.partition(b"\r\n\r\n")
    if len(received) > _MAX_RESPONSE_BYTES or head.split(b" ", 2)[1:2] != [b"200"]:
        return None
    try:
        response: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(response, dict) or "data" not in response:
        return None
    items = cast("list[Any]", response["data"] or [])
    if not isinstance(items, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None
    names = [cast("dict[str, Any]", item).get("id") for item in items if isinstance(item, dict)]
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())[:_MAX_MODELS]
