"""Server-sent events: kept open through proxies, with backpressure from slow clients."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.channels.http.endpoints import ANONYMOUS, EVENT_STREAM

KEEP_ALIVE_SECONDS = 10.0
"""Seconds of silence before a comment is sent, and between two checks of whether the caller's key is revoked."""
_CHUNK_BYTES = 65_536
_OPENING_COMMENT = b": hello\n\n"
_KEEP_ALIVE_COMMENT = b": still here\n\n"


def format_event(data: bytes | str, *, name: str = "", id: str = "") -> bytes:
    """One event. Data of several lines is sent as several data fields."""
    text = data.decode() if isinstance(data, bytes) else data
    lines = [f"data: {line}" for line in text.split("\n")]
    if name:
        lines.insert(0, f"event: {name}")
    if id:
        lines.insert(0, f"id: {id}")
    return ("\n".join(lines) + "\n\n").encode()


async def _wait_until_revoked(scope: Scope) -> None:
    """Return when the caller's key has been revoked."""
    is_valid = scope.get("state", {}).get("caller", ANONYMOUS).is_valid
    while is_valid is None or await is_valid():  # noqa: ASYNC110 (a revoked key raises no event)
        await anyio.sleep(KEEP_ALIVE_SECONDS)


class EventStreamResponse(Response):
    """Sends events as they come, with a comment after every silence, until they end or the client disconnects.

    The first byte is sent at once. While the client does not read, the next event is not requested from the source,
    which must limit what it buffers. When the client's key is revoked, the stream is cut.
    """

    media_type = EVENT_STREAM

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._events = events
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lock = anyio.Lock()
        sent = anyio.Event()

        async def send_body(content: bytes) -> None:
            async with lock:
                # In chunks, so that little is buffered twice for a client that stops reading.
                for start in range(0, len(content), _CHUNK_BYTES):
                    chunk = content[start : start + _CHUNK_BYTES]
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

        async def keep_alive() -> None:
            nonlocal sent
            while True:
                sent = anyio.Event()
                with anyio.move_on_after(KEEP_ALIVE_SECONDS) as silence:
                    await sent.wait()
                if silence.cancelled_caught:
                    await send_body(_KEEP_ALIVE_COMMENT)

        async def until_disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def until_revoked() -> None:
            await _wait_until_revoked(scope)
            group.cancel_scope.cancel()

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_body(_OPENING_COMMENT)
        async with anyio.create_task_group() as group:
            group.start_soon(keep_alive)
            group.start_soon(until_disconnected)
            group.start_soon(until_revoked)
            async with aclosing(self._events) as events:
                async for event in events:
                    await send_body(event)
                    sent.set()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()
