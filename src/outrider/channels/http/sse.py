"""Server-sent events that a proxy keeps open and a slow reader cannot make us hoard."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_SECONDS = 10.0
"""Seconds of silence after which a comment is sent, and between two looks at whether the caller's key still holds."""
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
    """Returns when the caller's key has been taken back."""
    holds = scope.get("state", {}).get("holds")
    while holds is None or await holds():  # noqa: ASYNC110 (a key tells nobody)
        await anyio.sleep(KEEP_ALIVE_SECONDS)


class EventStreamResponse(Response):
    """Sends events as they come: the first byte at once, a comment after every silence, until they or the client end.

    When the client reads slowly, the events are not asked for; whoever makes them must bound what waits.
    When its key is taken back, the stream is cut.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._events = events
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = anyio.Lock()
        spoke = anyio.Event()

        async def say(content: bytes) -> None:
            async with turn:
                for start in range(
                    0, len(content), _CHUNK_BYTES
                ):  # so that a reader who stops has us hold little twice
                    piece = content[start : start + _CHUNK_BYTES]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})

        async def keep_alive() -> None:
            nonlocal spoke
            while True:
                spoke = anyio.Event()
                with anyio.move_on_after(KEEP_ALIVE_SECONDS) as silence:
                    await spoke.wait()
                if silence.cancelled_caught:
                    await say(_KEEP_ALIVE_COMMENT)

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def until_revoked() -> None:
            await _wait_until_revoked(scope)
            group.cancel_scope.cancel()

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await say(_OPENING_COMMENT)
        async with anyio.create_task_group() as group:
            group.start_soon(keep_alive)
            group.start_soon(until_gone)
            group.start_soon(until_revoked)
            async with aclosing(self._events) as events:
                async for one in events:
                    await say(one)
                    spoke.set()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()
