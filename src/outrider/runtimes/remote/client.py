"""HTTP client for a remote agent: its address, its key, and bounded responses."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from outrider import __version__
from outrider.config.schema import Config
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.runtimes.remote.errors import (
    DECODE_ERRORS,
    NO_URL,
    connection_failure,
    content_failure,
    status_failure,
)
from outrider.system.http_client import ConnectionFailed, OriginClient, StreamedResponse

MAX_BODY = 16 * 1024 * 1024
"""Bytes of one response that is not a stream."""
_MIN_KEY = 8
"""Characters of a key that is removed from messages; a shorter one may be part of any word."""
T = TypeVar("T")


class RemoteEndpoint(Struct, frozen=True):
    """Where the remote agent is."""

    base: str
    """Its URL without `/v1`."""
    host: str
    key: Secret

    @property
    def is_loopback(self) -> bool:
        return self.host.startswith(("127.", "localhost", "::1"))


def parse_endpoint(config: Config) -> RemoteEndpoint:
    """The agent of `remote.url`. Raises Refused when there is none."""
    url = config.remote.url
    if not url:
        raise Refused(NO_URL)
    base = url.removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(base)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts_have_more(url):
        raise Refused("remote.url must be a URL such as https://agent.example, without a query or a fragment")
    return RemoteEndpoint(base, host, config.remote.key)


def parts_have_more(url: str) -> bool:
    return "?" in url or "#" in url


class RemoteClient:
    """Requests to one remote agent. A failure is a `RemoteFailed`."""

    def __init__(self, endpoint: RemoteEndpoint, patience: float, redact: Callable[[str], str]) -> None:
        """`patience` limits each silence of the agent; `redact` removes secrets from its messages."""
        self.endpoint = endpoint
        self.patience = patience
        self._redact_secrets = redact
        self._origin = OriginClient(endpoint.base, endpoint.host, patience)

    async def close(self) -> None:
        await self._origin.close()

    def redact(self, text: str) -> str:
        """The text without secrets, the key among them."""
        key = self.endpoint.key.reveal()
        return self._redact_secrets(text.replace(key, "…") if len(key) >= _MIN_KEY else text)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncGenerator[StreamedResponse, None]:
        """Send a request; its response, of status 200 to 299, is open inside the block."""
        common = {"user-agent": f"outrider/{__version__}", "accept-encoding": "identity"}
        if self.endpoint.key:
            common["authorization"] = f"Bearer {self.endpoint.key.reveal()}"
        if body:
            common["content-type"] = "application/json"
        try:
            async with self._origin.stream(method, self.endpoint.base + path, {**common, **headers}, body) as response:
                if not 200 <= response.status < 300:
                    raise status_failure(response.status, await response.read(), self.redact)
                yield response
        except ConnectionFailed as failed:
            raise connection_failure(_explain(failed, self.endpoint.host), self.redact) from None

    async def request(
        self, method: str, path: str, kind: type[T], body: object = None, headers: Mapping[str, str] | None = None
    ) -> T:
        """Send a request with this JSON body, and decode the response."""
        content = b"" if body is None else msgspec.json.encode(body)
        async with self.stream(method, path, {"accept": "application/json", **(headers or {})}, content) as response:
            answer = await response.read(MAX_BODY)
            status = response.status
        try:
            return msgspec.json.decode(answer, type=kind)
        except DECODE_ERRORS as error:
            start = answer[:200].decode("utf-8", "replace")
            message = f"its answer to {path.partition('?')[0]} cannot be read ({error}): {start}"
            raise content_failure(status, message, self.redact) from None


def _explain(failed: ConnectionFailed, host: str) -> str:
    match failed.kind:
        case "refused" | "timeout":
            return f"cannot connect to {host}: {failed}"
        case "tls":
            return f"TLS with {host} failed: {failed}"
        case "silent":
            return f"{host}: {failed}"
        case "lost" | "invalid":
            return str(failed)
