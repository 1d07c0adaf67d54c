"""HTTP client for one origin. Every network failure is a `ConnectionFailed` with a readable reason.

Redirects are never followed, so that a key goes to the configured host only.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Literal

import anyio
import httpx2
from msgspec import Struct

_CONNECT_SECONDS = 10.0
_ERROR_BODY = 64 * 1024
_DRAIN_SECONDS = 0.05
_TLS_FAILURES = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")
FailureKind = Literal["refused", "timeout", "silent", "tls", "lost", "invalid"]
"""No connection; none in time; connected but silent; TLS failed; broken while in use; the request cannot be sent."""


class ConnectionFailed(Exception):
    """A request got no complete response. The text says why, without the host."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: FailureKind = kind


def is_loopback(host: str) -> bool:
    """Whether this host is this machine, by its name."""
    return host.startswith(_LOOPBACK)


@cache
def _tls() -> ssl.SSLContext:
    """Loaded once per process: reading the trusted certificates takes longer than a request."""
    return httpx2.create_ssl_context()


class StreamedResponse(Struct, frozen=True):
    """A response whose body is still arriving."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]

    async def read(self, limit: int = _ERROR_BODY) -> bytes:
        """The first `limit` bytes of the body."""
        content = b""
        async for chunk in self.chunks:
            content += chunk
            if len(content) >= limit:
                break
        return content[:limit]

    async def drain(self) -> None:
        """Wait a moment for the end of the body, so that the connection can be reused."""
        with anyio.move_on_after(_DRAIN_SECONDS):
            async for _ in self.chunks:
                pass


class OriginClient:
    """A connection pool for one origin."""

    def __init__(self, url: str, host: str, timeout: float) -> None:
        """`url` decides about TLS; `timeout` limits each silence of the server."""
        self._timeout = timeout
        self._connect_timeout = min(_CONNECT_SECONDS, timeout)
        # Plain HTTP needs no certificates: redirects, which could lead to HTTPS, are not followed.
        verify = _tls() if url.lower().startswith("https:") else False
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=60)
        self._client = httpx2.AsyncClient(
            verify=verify,
            timeout=httpx2.Timeout(timeout, connect=self._connect_timeout),
            limits=limits,
            # A proxy of the environment cannot reach a server on this machine.
            trust_env=not is_loopback(host),
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncGenerator[StreamedResponse, None]:
        """Send a request; the response is open inside the block. Raises ConnectionFailed, also while it is read."""
        if self._client.is_closed:
            raise ConnectionFailed("lost", "the client is closed")
        try:
            content = body or None
            async with self._client.stream(method, url, content=content, headers=dict(headers)) as response:
                yield StreamedResponse(response.status_code, response.headers, response.aiter_bytes())
        except httpx2.ConnectTimeout:
            raise ConnectionFailed("timeout", f"no connection within {self._connect_timeout:g} s") from None
        except httpx2.TimeoutException:
            raise ConnectionFailed("silent", f"nothing was sent for {self._timeout:g} s") from None
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            raise ConnectionFailed("invalid", _reason(error)) from None
        except httpx2.ConnectError as error:
            is_tls = any(sign in str(error) for sign in _TLS_FAILURES)
            raise ConnectionFailed("tls" if is_tls else "refused", _reason(error)) from None
        except (httpx2.TransportError, httpx2.DecodingError, httpx2.StreamError) as error:
            raise ConnectionFailed("lost", _reason(error)) from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
