"""A lean HTTP client that asks many things at once and notes how long each took: the server is what is measured.

One connection for each who asks, kept open; answers are read whole or event by event, and not parsed further.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

PATIENCE = 300.0
"""Seconds after which a load counts as stuck."""


class Response(Struct, frozen=True):
    """One answer."""

    status: int
    seconds: float
    first: float
    """Seconds to the first byte of its body."""
    body: bytes
    pieces: tuple[tuple[float, bytes], ...] = ()
    """When each piece of a stream came (`time.time`), if that was asked for."""


class Request(Struct, frozen=True):
    """What to send."""

    path: str
    body: object = None
    headers: dict[str, str] = {}
    is_timed: bool = False
    """Whether to note when each piece of the answer came."""

    def render(self, host: str) -> bytes:
        content = b"" if self.body is None else msgspec.json.encode(self.body)
        lines = [f"{'GET' if self.body is None else 'POST'} {self.path} HTTP/1.1", f"host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
        return "\r\n".join(lines).encode() + content


class Client:
    """One connection."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> Response:
        """Send it and read the answer to its end."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._url.hostname, self._url.port)
        reader, writer = self._streams
        begun = time.perf_counter()
        writer.write(request.render(self._url.netloc))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        if (at := head.find(b"\r\ncontent-length:")) >= 0:
            body = await reader.readexactly(int(head[at + 17 : head.index(b"\r\n", at + 2)]))
            seconds = time.perf_counter() - begun
            return Response(status, seconds, seconds, body)
        return await self._read_chunks(reader, status, begun, is_timed=request.is_timed)

    async def _read_chunks(
        self, reader: asyncio.StreamReader, status: int, begun: float, *, is_timed: bool
    ) -> Response:
        first, pieces = 0.0, list[bytes]()
        times = list[tuple[float, bytes]]()
        while size := int(await reader.readline(), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
            first = first or time.perf_counter() - begun
            if is_timed:
                times.append((time.time(), pieces[-1]))
        await reader.readexactly(2)
        return Response(status, time.perf_counter() - begun, first, b"".join(pieces), tuple(times))

    async def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            await self._streams[1].wait_closed()


Next = Callable[[int, Response | None], Request]
"""The next request of the n-th client, given its last answer."""


class Load(Struct, frozen=True):
    """The outcome of many requests."""

    responses: Sequence[Response]
    seconds: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.responses) / self.seconds

    def milliseconds(self, share: float) -> float:
        taken = sorted(one.seconds for one in self.responses)
        return taken[min(len(taken) - 1, int(len(taken) * share))] * 1000

    def __str__(self) -> str:
        median = statistics.median(one.seconds for one in self.responses) * 1000
        p95, p99 = self.milliseconds(0.95), self.milliseconds(0.99)
        return f"{self.rate:,.0f} /s ({median:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f})"


async def load(url: str, clients: int, each: int, next_request: Next, is_good: Callable[[Response], bool]) -> Load:
    """Run this many clients at once, each with this many requests. Raises RuntimeError if an answer is wrong."""
    responses: list[Response] = []

    async def run_client(number: int) -> None:
        client, last = Client(url), None
        try:
            for _ in range(each):
                last = await client.send(next_request(number, last))
                if not is_good(last):
                    raise RuntimeError(f"answered with {last.status}: {last.body[-500:]!r}")
                responses.append(last)
        finally:
            await client.close()

    begun = time.perf_counter()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(run_client(number))
    return Load(responses, time.perf_counter() - begun)
