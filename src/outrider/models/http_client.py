"""HTTP client for model providers. Network failures become Unavailable with a readable message."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache

import anyio
import httpx2
from msgspec import Struct

from outrider.core.errors import Refused, Unavailable
from outrider.models.errors import ProviderEndpoint, safe_line

_CONNECT_SECONDS = 10.0
_ERROR_BODY = 64 * 1024
_DRAIN_SECONDS = 0.05
_TLS_FAILURES = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


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


class HttpClient:
    """A connection pool for the host of one model."""

    def __init__(self, url: str, endpoint: ProviderEndpoint, timeout: float) -> None:
        self._url = url
        self._endpoint = endpoint
        self._timeout = timeout
        self._connect_timeout = min(_CONNECT_SECONDS, timeout)
        # Plain HTTP needs no certificates: redirects, which could lead to HTTPS, are not followed.
        verify = _tls() if url.startswith("https:") else False
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=60)
        self._client = httpx2.AsyncClient(
            verify=verify,
            timeout=httpx2.Timeout(timeout, connect=self._connect_timeout),
            limits=limits,
            # A proxy of the environment cannot reach a model on this machine.
            trust_env=not endpoint.host.startswith(_LOOPBACK),
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def post(self, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[StreamedResponse, None]:
        """Send the body; the response is open inside the block. Raises Unavailable, also while it is read."""
        host = self._endpoint.host
        try:
            async with self._client.stream("POST", self._url, content=body, headers=dict(headers)) as response:
                yield StreamedResponse(response.status_code, response.headers, response.aiter_bytes())
        except httpx2.ConnectTimeout:
            raise Unavailable(
                f"{self._endpoint.host} did not accept a connection within {self._connect_timeout:g} s"
            ) from None
        except httpx2.TimeoutException:
            raise Unavailable(f"{host} sent nothing for {self._timeout:g} s") from None
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            raise Refused(f"cannot send a request to {host}: {self._why(error)}") from None
        except httpx2.ConnectError as error:
            if any(sign in str(error) for sign in _TLS_FAILURES):
                raise Refused(f"TLS with {host} failed; check model.url: {self._why(error)}") from None
            raise Unavailable(f"cannot connect to {host}: {self._why(error)}") from None
        except (httpx2.TransportError, httpx2.DecodingError, httpx2.StreamError) as error:
            raise Unavailable(f"the connection to {host} was lost: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        return safe_line(self._endpoint, str(error)) or type(error).__name__
