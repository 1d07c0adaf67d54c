"""ASGI application of the scripted server: four wire formats in, one script out.

It records the requests for tests to inspect, and refuses what the real providers refuse. It answers programs on this
machine only: a web page, or a host name that was made to point here, is rejected.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from threading import Condition
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage
from outrider.models import practice
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply
from outrider.testing.scripted_server import chat, generate_content, messages, responses
from outrider.testing.scripted_server.script import (
    ChosenLine,
    Cut,
    Empty,
    ErrorStatus,
    Garbage,
    Overflow,
    Script,
    ScriptProgress,
    Stall,
)
from outrider.testing.scripted_server.wire_format import Json, ParsedRequest, WireFormat, new_id, split_frames

_SECRET = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "proxy-authorization"})
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class RecordedRequest(Struct, frozen=True):
    """One request, without its credentials."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class RequestLog:
    """The last requests. Written by the server's thread; safe to read from any other."""

    def __init__(self, limit: int = 1_000) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=limit)
        self._count = 0
        self._changed = Condition()

    def add(self, request: RecordedRequest) -> None:
        with self._changed:
            self._requests.append(request)
            self._count += 1
            self._changed.notify_all()

    def all(self) -> Sequence[RecordedRequest]:
        with self._changed:
            return list(self._requests)

    def wait(self, count: int, timeout: float) -> Sequence[RecordedRequest]:
        """Block until this many requests have arrived, and return them. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout):
                raise TimeoutError(f"{self._count} of {count} requests arrived in {timeout} s")
            return list(self._requests)


def is_local(headers: Mapping[str, str]) -> bool:
    """Whether host and origin of the request are this machine."""
    names = [f"//{headers.get('host', '')}", *([headers["origin"]] if "origin" in headers else [])]
    return all(_host(name) in _LOCAL for name in names)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def find_prompt_error(prompt: Prompt, *, in_order: bool) -> str | None:
    """What is wrong with the calls of this prompt: a call without a result, or a result without a call.

    `in_order`: the results must directly follow the reply that made the calls.
    """
    if not prompt.messages:
        return "at least one message is required"
    waiting: list[str] = []
    for message in prompt.messages:
        if isinstance(message, ToolMessage):
            answered = [result.call for result in message.results]
            if stray := [call for call in answered if call not in waiting]:
                return f"there is no call with the id {stray[0]}"
            waiting = [call for call in waiting if call not in answered]
        elif in_order and waiting:
            return f"the call with the id {waiting[0]} is not followed by its result"
        if isinstance(message, AssistantMessage):
            waiting += [call.id for call in message.calls]
    return f"the call with the id {waiting[0]} has no result" if waiting else None


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
MAX_BODY = 10 * 1024 * 1024
"""Bytes of a request's body."""
_MAX_RESPONSES = 1_000
_JSON = "application/json"
_EVENTS = "text/event-stream; charset=utf-8"
_WIRES = {
    "/v1/chat/completions": chat.WIRE,
    "/v1/responses": responses.WIRE,
    "/v1/messages": messages.WIRE,
}
_UNORDERED = (responses.WIRE, generate_content.WIRE)
"""The wires whose results need not directly follow their calls."""


class _HttpFailure(Exception):
    """An HTTP error response."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ScriptedApp:
    """Answers as the script says, or as the practice model if the script is empty."""

    def __init__(self, script: Script, log: RequestLog, latency: float = 0.0) -> None:
        self._progress = ScriptProgress(script)
        self._log = log
        self._latency = latency
        self._released = anyio.Event()
        self._responses: OrderedDict[str, list[Json]] = OrderedDict()

    def release(self) -> None:
        """Continue the requests that are stalled now."""
        self._released.set()
        self._released = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, headers = scope["path"], {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        wire = _wire_of(path)
        try:
            if not is_local(headers):
                raise _HttpFailure(403, "this server answers programs on its own machine only")
            if scope["method"] == "GET":
                await _send(send, 200, self._get(path, headers))
                return
            if wire is None or scope["method"] != "POST":
                raise _HttpFailure(404, f"there is no {scope['method']} {path}")
            content = await _read(receive, headers)
            body = _decode(content)
            public = {name: value for name, value in headers.items() if name not in _SECRET}
            self._log.add(RecordedRequest("POST", path, body, public))
            if self._latency:
                await anyio.sleep(self._latency)
            if wire is generate_content.WIRE:
                body = generate_content.with_path_fields(body, path)
            await self._answer(wire, self._parse_request(wire, body, len(content)), receive, send)
        except _HttpFailure as failure:
            await _send_failure(send, wire or chat.WIRE, failure)

    def _get(self, path: str, headers: dict[str, str]) -> object:
        match path:
            case "/health":
                return {"status": "ok"}
            case "/requests":
                return self._log.all()
            case "/v1/models":
                return _models(is_anthropic="anthropic-version" in headers)
            case _:
                raise _HttpFailure(404, f"there is no GET {path}")

    def _parse_request(self, wire: WireFormat, body: Json, size: int) -> ParsedRequest:
        if wire is responses.WIRE and (previous := body.get("previous_response_id")):
            if not isinstance(previous, str) or previous not in self._responses:
                raise _HttpFailure(400, f"Previous response with id '{previous}' not found.")
            body = {**body, "input": self._responses[previous] + responses.items_of(body)}
        try:
            prompt = wire.parse(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _HttpFailure(400, f"the request is malformed: {error!r}") from error
        if wire is messages.WIRE and not body.get("max_tokens"):
            raise _HttpFailure(400, "max_tokens: Field required")
        if error := find_prompt_error(prompt, in_order=wire not in _UNORDERED):
            raise _HttpFailure(400, error)
        model = str(body.get("model") or "practice")
        return ParsedRequest(model, prompt, body.get("stream") is True, body, size, new_id(), int(time.time()))

    async def _answer(self, wire: WireFormat, request: ParsedRequest, receive: Receive, send: Send) -> None:
        chosen = self._choose(request)
        match chosen.line:
            case ErrorStatus(status=status, message=message, retry_after=retry_after):
                raise _HttpFailure(status, message or f"the script says {status}", retry_after)
            case Overflow():
                await _send_overflow(send, wire.overflow(request))
            case Garbage():
                content = b'data: {"type": garbage\n\n' if request.stream else b"<html>garbage"
                await _send_bytes(send, 200, content, _EVENTS if request.stream else _JSON)
            case Cut(bytes=bytes_):
                await _send_headers(send, request)
                frames = self._frames(wire, request, chosen.reply)
                content = split_frames(frames)[0] if bytes_ is None else b"".join(frames)[:bytes_]
                await send({"type": "http.response.body", "body": content, "more_body": True})
            case Stall(where="headers"):
                if await self._hold(receive):
                    await self._send_reply(wire, request, chosen.reply, send)
            case Stall():
                await self._stall(wire, request, chosen.reply, receive, send)
            case Empty():
                await self._send_reply(wire, request, ScriptedReply(), send)
            case ScriptedReply():
                await self._send_reply(wire, request, chosen.line, send)

    def _choose(self, request: ParsedRequest) -> ChosenLine:
        script = self._progress.script
        if not script.is_empty or script.faults:
            return self._progress.choose(request.prompt)
        answer = practice.answer(request.prompt)
        reply = ScriptedReply(answer.text, tuple(ScriptedCall(call.tool, call.args) for call in answer.calls))
        return ChosenLine(reply, reply)

    def _frames(self, wire: WireFormat, request: ParsedRequest, reply: ScriptedReply) -> list[bytes]:
        if request.stream:
            return list(wire.render_stream(request, reply))
        return [msgspec.json.encode(wire.render(request, reply))]

    def _store_response(self, wire: WireFormat, request: ParsedRequest, reply: ScriptedReply) -> None:
        if wire is responses.WIRE:
            self._responses[f"resp_{request.id}"] = (
                responses.items_of(request.body) + wire.render(request, reply)["output"]
            )
            if len(self._responses) > _MAX_RESPONSES:
                self._responses.popitem(last=False)

    async def _send_reply(self, wire: WireFormat, request: ParsedRequest, reply: ScriptedReply, send: Send) -> None:
        frames = self._frames(wire, request, reply)
        self._store_response(wire, request, reply)
        if not request.stream or not reply.delay:
            await anyio.sleep(reply.delay)
            await _send_bytes(send, 200, b"".join(frames), _EVENTS if request.stream else _JSON)
            return
        await _send_headers(send, request)
        for frame in frames:
            await anyio.sleep(reply.delay)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _stall(
        self, wire: WireFormat, request: ParsedRequest, reply: ScriptedReply, receive: Receive, send: Send
    ) -> None:
        first_half, rest = split_frames(self._frames(wire, request, reply))
        await _send_headers(send, request)
        await send({"type": "http.response.body", "body": first_half, "more_body": True})
        if await self._hold(receive):
            self._store_response(wire, request, reply)
            await send({"type": "http.response.body", "body": rest})

    async def _hold(self, receive: Receive) -> bool:
        """Wait until released (True) or until the client disconnects (False)."""
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


def _wire_of(path: str) -> WireFormat | None:
    return generate_content.WIRE if generate_content.is_path(path) else _WIRES.get(path)


async def _read(receive: Receive, headers: dict[str, str]) -> bytes:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise _HttpFailure(413, f"the request is larger than {MAX_BODY} bytes")
    content = bytearray()
    while True:
        message = await receive()
        content += message.get("body", b"")
        if len(content) > MAX_BODY:
            raise _HttpFailure(413, f"the request is larger than {MAX_BODY} bytes")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return bytes(content)


def _decode(content: bytes) -> Json:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _HttpFailure(400, f"the body is not a JSON object: {error}") from error


def _models(*, is_anthropic: bool) -> Json:
    if is_anthropic:
        created = "2025-01-01T00:00:00Z"
        model = {"type": "model", "id": "practice", "display_name": "Practice", "created_at": created}
        return {"data": [model], "has_more": False, "first_id": "practice", "last_id": "practice"}
    return {
        "object": "list",
        "data": [{"id": "practice", "object": "model", "created": 1735689600, "owned_by": "outrider"}],
    }


async def _send_headers(send: Send, request: ParsedRequest) -> None:
    kind = _EVENTS if request.stream else _JSON
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, status: int, body: object) -> None:
    await _send_bytes(send, status, msgspec.json.encode(body), _JSON)


async def _send_overflow(send: Send, body: Json | bytes) -> None:
    if isinstance(body, bytes):
        await _send_bytes(send, 200, body, _EVENTS)
    else:
        await _send(send, 400, body)


async def _send_failure(send: Send, wire: WireFormat, failure: _HttpFailure) -> None:
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
