"""What the scripted server was asked, kept for tests to look at.

What the real providers refuse, so that a client that breaks these rules is told here already.

The scripted server as an ASGI application: three wire formats in, one script out.
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
from outrider.models.practice.answer import practise
from outrider.models.scripted_reply import ScriptedReply
from outrider.testing.scripted_server import chat, messages, responses
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

_SECRET = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class RecordedRequest(Struct, frozen=True):
    """One request, without what proves who sent it."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class RequestLog:
    """The last requests; written by the server's thread, read from any other."""

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
        """All requests, once so many have come. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout):
                raise TimeoutError(f"{self._count} of {count} requests came in {timeout} s")
            return list(self._requests)


def public_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _SECRET}


def is_local(headers: Mapping[str, str]) -> bool:
    """Whether the request names this machine: a page on the web, or a name that was bent to point here, does not."""
    names = [f"//{headers.get('host', '')}", *([headers["origin"]] if "origin" in headers else [])]
    return all(_host(name) in _LOCAL for name in names)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def find_prompt_error(prompt: Prompt, *, in_order: bool) -> str | None:
    """What is wrong with the calls of this prompt: one without a result, or a result without its call.

    `in_order`: the results must stand right after the reply that made the calls.
    """
    if not prompt.messages:
        return "at least one message is required"
    waiting: list[str] = []
    for message in prompt.messages:
        if isinstance(message, ToolMessage):
            found = [result.call for result in message.results]
            if stray := [call for call in found if call not in waiting]:
                return f"no call was made with the id {stray[0]}"
            waiting = [call for call in waiting if call not in found]
        elif in_order and waiting:
            return f"no result follows the call with the id {waiting[0]}"
        if isinstance(message, AssistantMessage):
            waiting += [call.id for call in message.calls]
    return f"no result was given for the call with the id {waiting[0]}" if waiting else None


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


class _HttpFailure(Exception):
    """The request is answered with this HTTP error."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ScriptedApp:
    """Answers by the script, or as the practice model when the script is empty."""

    def __init__(self, script: Script, log: RequestLog, latency: float = 0.0) -> None:
        self._progress = ScriptProgress(script)
        self._log = log
        self._latency = latency
        self._released = anyio.Event()
        self._responses: OrderedDict[str, list[Json]] = OrderedDict()

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
                raise _HttpFailure(403, "this server answers to programs on its own machine only")
            if scope["method"] == "GET":
                await _send(send, 200, self._get(path, headers))
                return
            if path not in _WIRES or scope["method"] != "POST":
                raise _HttpFailure(404, f"there is no {scope['method']} {path}")
            content = await _read(receive, headers)
            body = _decode(content)
            self._log.add(RecordedRequest("POST", path, body, public_headers(headers)))
            if self._latency:
                await anyio.sleep(self._latency)
            await self._answer(wire, self._parse_request(wire, body, len(content)), receive, send)
        except _HttpFailure as failure:
            await _send_failure(send, wire, failure)

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
        if wrong := find_prompt_error(prompt, in_order=wire is not responses.WIRE):
            raise _HttpFailure(400, wrong)
        model = str(body.get("model") or "practice")
        return ParsedRequest(model, prompt, body.get("stream") is True, body, size, new_id(), int(time.time()))

    async def _answer(self, wire: WireFormat, asked: ParsedRequest, receive: Receive, send: Send) -> None:
        chosen = self._choose(asked)
        match chosen.line:
            case ErrorStatus(status=status, message=message, retry_after=retry_after):
                raise _HttpFailure(status, message or f"the script says {status}", retry_after)
            case Overflow():
                await _send_overflow(send, wire.overflow(asked))
            case Garbage():
                content = b'data: {"type": garbage\n\n' if asked.stream else b"<html>garbage"
                await _send_bytes(send, 200, content, _EVENTS if asked.stream else _JSON)
            case Cut(bytes=bytes_):
                await _send_headers(send, asked)
                frames = self._frames(wire, asked, chosen.reply)
                content = split_frames(frames)[0] if bytes_ is None else b"".join(frames)[:bytes_]
                await send({"type": "http.response.body", "body": content, "more_body": True})
            case Stall(where="headers"):
                if await self._hold(receive):
                    await self._send_reply(wire, asked, chosen.reply, send)
            case Stall():
                await self._stall(wire, asked, chosen.reply, receive, send)
            case Empty():
                await self._send_reply(wire, asked, ScriptedReply(), send)
            case ScriptedReply():
                await self._send_reply(wire, asked, chosen.line, send)

    def _choose(self, asked: ParsedRequest) -> ChosenLine:
        script = self._progress.script
        if script.is_empty and not script.faults:
            says = practise(asked.prompt)
            return ChosenLine(says, says)
        return self._progress.choose(asked.prompt)

    def _frames(self, wire: WireFormat, asked: ParsedRequest, says: ScriptedReply) -> list[bytes]:
        if asked.stream:
            return list(wire.render_stream(asked, says))
        return [msgspec.json.encode(wire.render(asked, says))]

    def _store_response(self, wire: WireFormat, asked: ParsedRequest, says: ScriptedReply) -> None:
        if wire is responses.WIRE:
            self._responses[f"resp_{asked.id}"] = responses.items_of(asked.body) + wire.render(asked, says)["output"]
            if len(self._responses) > _MAX_RESPONSES:
                self._responses.popitem(last=False)

    async def _send_reply(self, wire: WireFormat, asked: ParsedRequest, says: ScriptedReply, send: Send) -> None:
        frames = self._frames(wire, asked, says)
        self._store_response(wire, asked, says)
        if not asked.stream or not says.delay:
            await anyio.sleep(says.delay)
            await _send_bytes(send, 200, b"".join(frames), _EVENTS if asked.stream else _JSON)
            return
        await _send_headers(send, asked)
        for frame in frames:
            await anyio.sleep(says.delay)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _stall(
        self, wire: WireFormat, asked: ParsedRequest, says: ScriptedReply, receive: Receive, send: Send
    ) -> None:
        begun, rest = split_frames(self._frames(wire, asked, says))
        await _send_headers(send, asked)
        await send({"type": "http.response.body", "body": begun, "more_body": True})
        if await self._hold(receive):
            self._store_response(wire, asked, says)
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
        raise _HttpFailure(400, f"the body is no JSON object: {error}") from error


def _models(*, is_anthropic: bool) -> Json:
    if is_anthropic:
        created = "2025-01-01T00:00:00Z"
        model = {"type": "model", "id": "practice", "display_name": "Practice", "created_at": created}
        return {"data": [model], "has_more": False, "first_id": "practice", "last_id": "practice"}
    return {
        "object": "list",
        "data": [{"id": "practice", "object": "model", "created": 1735689600, "owned_by": "outrider"}],
    }


async def _send_headers(send: Send, asked: ParsedRequest) -> None:
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
