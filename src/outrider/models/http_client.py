"""HTTP client for model providers. Network failures become Unavailable with a readable message."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from outrider.core.errors import Refused, Unavailable
from outrider.models.errors import ProviderEndpoint, safe_line
from outrider.system.http_client import ConnectionFailed, OriginClient, StreamedResponse


class HttpClient:
    """A connection pool for the host of one model."""

    def __init__(self, url: str, endpoint: ProviderEndpoint, timeout: float) -> None:
        self._url = url
        self._endpoint = endpoint
        self._origin = OriginClient(url, endpoint.host, timeout)

    async def close(self) -> None:
        await self._origin.close()

    @asynccontextmanager
    async def post(self, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[StreamedResponse, None]:
        """Send the body; the response is open inside the block. Raises Unavailable, also while it is read."""
        try:
            async with self._origin.stream("POST", self._url, headers, body) as response:
                yield response
        except ConnectionFailed as failed:
            raise self._explain(failed) from None

    def _explain(self, failed: ConnectionFailed) -> Refused | Unavailable:
        host, reason = self._endpoint.host, safe_line(self._endpoint, str(failed))
        match failed.kind:
            case "timeout":
                return Unavailable(f"{host} did not accept a connection{reason.removeprefix('no connection')}")
            case "silent":
                return Unavailable(f"{host} sent nothing{reason.removeprefix('nothing was sent')}")
            case "invalid":
                return Refused(f"cannot send a request to {host}: {reason}")
            case "tls":
                return Refused(f"TLS with {host} failed; check model.url: {reason}")
            case "refused":
                return Unavailable(f"cannot connect to {host}: {reason}")
            case "lost":
                return Unavailable(f"the connection to {host} was lost: {reason}")
