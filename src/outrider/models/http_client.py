"""The one place where model traffic touches the network. Its failures are Unavailable, with words for people."""

import ssl
import time
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
    """Reading the trusted certificates takes longer than a request: once for the whole process."""
    return httpx2.create_ssl_context()


class StreamedResponse(Struct, frozen=True):
    """A provider's answer, its body still arriving."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]

    async def read(self, most: int = _ERROR_BODY) -> bytes:
        """The body, as far as it is not longer than this."""
        found = b""
        async for chunk in self.chunks:
            found += chunk
            if len(found) >= most:
                break
        return found[:most]

    async def drain(self) -> None:
        """Give the end of the body a moment to arrive, so that the connection can be used again."""
        with anyio.move_on_after(_DRAIN_SECONDS):
            async for _ in self.chunks:
                pass


class HttpClient:
    """A pool of connections to one model's host."""

    def __init__(self, url: str, peer: ProviderEndpoint, patience: float) -> None:
        self._url = url
        self._endpoint = peer
        self._timeout = patience
        self._connect_timeout = min(_CONNECT_SECONDS, patience)
        timeout = httpx2.Timeout(patience, connect=self._connect_timeout)
        # Plain HTTP (a model on this machine) needs no certificates, and redirects are not followed to where it might.
        verify = _tls() if url.startswith("https:") else False
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=60)
        # A model on this machine is not behind anybody's proxy.
        proxied = not peer.host.startswith(_LOOPBACK)
        self._client = httpx2.AsyncClient(
            verify=verify, timeout=timeout, limits=limits, trust_env=proxied, follow_redirects=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def post(self, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[StreamedResponse, None]:
        """Send the body; the answer is open inside the block. Raises Unavailable, then and while it is read."""
        try:
            async with self._client.stream("POST", self._url, content=body, headers=dict(headers)) as response:
                yield StreamedResponse(response.status_code, response.headers, response.aiter_bytes())
        except httpx2.ConnectTimeout:
            raise Unavailable(f"{self._endpoint.host} could not be reached in {self._connect_timeout:g} s") from None
        except httpx2.TimeoutException:
            raise Unavailable(f"{self._endpoint.host} sent nothing for {self._timeout:g} s") from None
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            raise Refused(f"cannot ask {self._endpoint.host}: {safe_line(self._endpoint, str(error))}") from None
        except httpx2.ConnectError as error:
            if any(sign in str(error) for sign in _TLS_FAILURES):
                raise Refused(f"{self._endpoint.host} cannot be trusted, check model.url: {self._why(error)}") from None
            raise Unavailable(f"cannot connect to {self._endpoint.host}: {self._why(error)}") from None
        except (httpx2.TransportError, httpx2.DecodingError, httpx2.StreamError) as error:
            raise Unavailable(f"the connection to {self._endpoint.host} broke: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        return safe_line(self._endpoint, str(error)) or type(error).__name__


def unix_time() -> float:
    """Seconds since 1970, for dates in headers."""
    return time.time()
