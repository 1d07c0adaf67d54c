"""The scripted server as an ASGI application: three wire formats in, one script out."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import msgspec

from outrider.models.practice.answer import practise
from outrider.models.script_server import chat, messages, responses
from outrider.models.script_server.heard import Heard, Log, is_local, shown_headers
from outrider.models.script_server.script import (
    Chosen,
    Cut,
    Empty,
    Garbage,
    Overflow,
    Progress,
    Script,
    Stall,
    Status,
)
from outrider.models.script_server.validity import complaint
from outrider.models.script_server.wire import Asked, Json, Wire, halves, new_id
from outrider.models.scripted import Says

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST = 10 * 1024 * 1024
"""Bytes of a request's body."""
_KEPT = 1_000
_JSON = "application/json"
_EVENTS = "text/event-stream; charset=utf-8"
_WIRES = {
    "/v1/chat/completions": chat.WIRE,
    "/v1/responses": responses.WIRE,
    "/v1/messages": messages.WIRE,
}


class _Failed(Exception):
    """The request is answered with this HTTP error."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ScriptApp:
    """Answers by the script, or as the practice model when the script is empty."""

    def __init__(self, script: Script, log: Log, latency: float = 0.0) -> None:
        self._progress = Progress(script)
        self._log = log
        self._latency = latency
        self._released = anyio.Event()
        self._past: OrderedDict[str, list[Json]] = OrderedDict()

    def release(self) -> None:
        """Let stalled requests go on with their replies."""
        self._released.set()
        self._released = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, headers = scope["path"], {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        wire = _WIRES.get(path, chat.WIRE)
        try:
            if not is_local(headers):
                raise _Failed(403, "this server answers to programs on its own machine only")
            if scope["method"] == "GET":
                await _send(send, 200, self._look_up(path, headers))
                return
            if path not in _WIRES or scope["method"] != "POST":
                raise _Failed(404, f"there is no {scope['method']} {path}")
            content = await _read(receive, headers)
            body = _decode(content)
            self._log.add(Heard("POST", path, body, shown_headers(headers)))
            if self._latency:
                await anyio.sleep(self._latency)
            await self._answer(wire, self._understand(wire, body, len(content)), receive, send)
        except _Failed as failure:
            await _send_failure(send, wire, failure)

    def _look_up(self, path: str, headers: dict[str, str]) -> object:
        match path:
            case "/health":
                return {"status": "ok"}
            case "/requests":
                return self._log.all()
            case "/v1/models":
                return _models(is_anthropic="anthropic-version" in headers)
            case _:
                raise _Failed(404, f"there is no GET {path}")

    def _understand(self, wire: Wire, body: Json, size: int) -> Asked:
        if wire is responses.WIRE and (previous := body.get("previous_response_id")):
            if not isinstance(previous, str) or previous not in self._past:
                raise _Failed(400, f"Previous response with id '{previous}' not found.")
            body = {**body, "input": self._past[previous] + responses.items_of(body)}
        try:
            prompt = wire.parse(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _Failed(400, f"the request is malformed: {error!r}") from error
        if wire is messages.WIRE and not body.get("max_tokens"):
            raise _Failed(400, "max_tokens: Field required")
        if wrong := complaint(prompt, in_order=wire is not responses.WIRE):
            raise _Failed(400, wrong)
        model = str(body.get("model") or "practice")
        return Asked(model, prompt, body.get("stream") is True, body, size, new_id(), int(time.time()))

    async def _answer(self, wire: Wire, asked: Asked, receive: Receive, send: Send) -> None:
        chosen = self._choose(asked)
        match chosen.line:
            case Status(status=status, message=message, retry_after=retry_after):
                raise _Failed(status, message or f"the script says {status}", retry_after)
            case Overflow():
                await _send_overflow(send, wire.overflow(asked))
            case Garbage():
                content = b'data: {"type": garbage\n\n' if asked.stream else b"<html>garbage"
                await _send_bytes(send, 200, content, _EVENTS if asked.stream else _JSON)
            case Cut(bytes=bytes_):
                await _begin(send, asked)
                frames = self._frames(wire, asked, chosen.says)
                content = halves(frames)[0] if bytes_ is None else b"".join(frames)[:bytes_]
                await send({"type": "http.response.body", "body": content, "more_body": True})
            case Stall(where="headers"):
                if await self._hold(receive):
                    await self._say(wire, asked, chosen.says, send)
            case Stall():
                await self._stall(wire, asked, chosen.says, receive, send)
            case Empty():
                await self._say(wire, asked, Says(), send)
            case Says():
                await self._say(wire, asked, chosen.line, send)

    def _choose(self, asked: Asked) -> Chosen:
        script = self._progress.script
        if script.is_empty and not script.faults:
            says = practise(asked.prompt)
            return Chosen(says, says)
        return self._progress.choose(asked.prompt)

    def _frames(self, wire: Wire, asked: Asked, says: Says) -> list[bytes]:
        if asked.stream:
            return list(wire.render_stream(asked, says))
        return [msgspec.json.encode(wire.render(asked, says))]

    def _remember(self, wire: Wire, asked: Asked, says: Says) -> None:
        if wire is responses.WIRE:
            self._past[f"resp_{asked.id}"] = responses.items_of(asked.body) + wire.render(asked, says)["output"]
            if len(self._past) > _KEPT:
                self._past.popitem(last=False)

    async def _say(self, wire: Wire, asked: Asked, says: Says, send: Send) -> None:
        frames = self._frames(wire, asked, says)
        self._remember(wire, asked, says)
        if not asked.stream or not says.delay:
            await anyio.sleep(says.delay)
            await _send_bytes(send, 200, b"".join(frames), _EVENTS if asked.stream else _JSON)
            return
        await _begin(send, asked)
        for frame in frames:
            await anyio.sleep(says.delay)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _stall(self, wire: Wire, asked: Asked, says: Says, receive: Receive, send: Send) -> None:
        begun, rest = halves(self._frames(wire, asked, says))
        await _begin(send, asked)
        await send({"type": "http.response.body", "body": begun, "more_body": True})
        if await self._hold(receive):
            self._remember(wire, asked, says)
            await send({"type": "http.response.body", "body": rest})

    async def _hold(self, receive: Receive) -> bool:
        """Wait until released (True), or until the client goes away (False)."""
        released = self._released

        async def watch(scope: anyio.CancelScope) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            await released.wait()
            group.cancel_scope.cancel()
        return released.is_set()


async def _read(receive: Receive, headers: dict[str, str]) -> bytes:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > LARGEST:
        raise _Failed(413, f"the request is larger than {LARGEST} bytes")
    content = bytearray()
    while True:
        message = await receive()
        content += message.get("body", b"")
        if len(content) > LARGEST:
            raise _Failed(413, f"the request is larger than {LARGEST} bytes")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return bytes(content)


def _decode(content: bytes) -> Json:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _Failed(400, f"the body is no JSON object: {error}") from error


def _models(*, is_anthropic: bool) -> Json:
    if is_anthropic:
        created = "2025-01-01T00:00:00Z"
        model = {"type": "model", "id": "practice", "display_name": "Practice", "created_at": created}
        return {"data": [model], "has_more": False, "first_id": "practice", "last_id": "practice"}
    return {
        "object": "list",
        "data": [{"id": "practice", "object": "model", "created": 1735689600, "owned_by": "outrider"}],
    }


async def _begin(send: Send, asked: Asked) -> None:
    kind = _EVENTS if asked.stream else _JSON
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, status: int, body: object) -> None:
    await _send_bytes(send, status, msgspec.json.encode(body), _JSON)


async def _send_overflow(send: Send, body: Json | bytes) -> None:
    if isinstance(body, bytes):
        await _send_bytes(send, 200, body, _EVENTS)
    else:
        await _send(send, 400, body)


async def _send_failure(send: Send, wire: Wire, failure: _Failed) -> None:
    content = msgspec.json.encode(wire.render_error(failure.status, str(failure)))
    after = [] if failure.retry_after is None else [(b"retry-after", f"{failure.retry_after:g}".encode())]
    await _send_bytes(send, failure.status, content, _JSON, after)


async def _send_bytes(
    send: Send, status: int, content: bytes, kind: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(content)).encode()),
        (b"x-request-id", new_id().encode()),
        *(more or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
