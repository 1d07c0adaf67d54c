"""Tests of the HTTP models against a provider on loopback whose responses are scripted byte by byte."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Model
from outrider.core.prompt import AssistantMessage, Prompt, UserMessage
from outrider.core.retry import RetryPolicy
from outrider.core.store_port import Blobs
from outrider.core.types import Reasoning
from outrider.models import anthropic, openai_chat, openai_responses
from outrider.models.http_model import open_wire_model

pytestmark = pytest.mark.anyio
RECORDED = Path(__file__).parent / "recorded"
KEY = "topsecretkey"
PROMPT = Prompt("be kind", [UserMessage("hi")], (), 7)
WIRES = ["openai-chat", "openai-responses", "anthropic"]


class NoBlobs:
    def put(self, content: bytes) -> str:
        return ""

    def get(self, name: str) -> bytes:
        raise Refused(f"no blob {name}")


class Action(NamedTuple):
    """How the provider handles one request: it sends these bytes, then keeps, closes or stalls the connection."""

    content: bytes
    then: str = "keep"


class Provider:
    """A server with a list of actions, one for each request."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.connections = 0
        self.disconnected = anyio.Event()
        """The client disconnected before the end of a response."""
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with stream:
            buffered = BufferedByteReceiveStream(stream)
            try:
                while await self._answer(buffered, stream):
                    pass
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.disconnected.set()

    async def _answer(self, buffered: BufferedByteReceiveStream, stream: anyio.abc.SocketStream) -> bool:
        head = (await buffered.receive_until(b"\r\n\r\n", 65536)).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await buffered.receive_exactly(int(headers["content-length"]))
        self.requests.append((headers | {"request": head[0]}, json.loads(body)))
        action = self.actions.pop(0)
        if action.content:
            await stream.send(action.content)
        if action.then == "stall":
            await buffered.receive_exactly(1)
        return action.then == "keep"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    provider.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, provider.serve)
        yield provider
        group.cancel_scope.cancel()


def answer(content: bytes, kind: str = "text/event-stream") -> bytes:
    """A chunked response, as providers stream."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    pieces = [content[i : i + 100] for i in range(0, len(content), 100)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def status(code: int, body: str = "", headers: str = "") -> Action:
    head = f"HTTP/1.1 {code} X\r\ncontent-length: {len(body.encode())}\r\n{headers}\r\n"
    return Action((head + body).encode())


def recorded(wire: str, case: str = "text") -> bytes:
    return (RECORDED / wire / f"{case}.sse").read_bytes()


def choice_for(wire: str, provider: Provider, **rest: Any) -> ModelChoice:
    settings: dict[str, Any] = {
        "url": f"http://{provider.host}/v1",
        "key": Secret(KEY),
        "idle_timeout": 20.0,
        "attempts": 1,
    }
    return ModelChoice(f"{wire}:m", wire, "m", **(settings | rest))


def open_model(choice: ModelChoice) -> AbstractAsyncContextManager[Model]:
    """The model of this choice, with short waits between retries."""
    blobs: Blobs = NoBlobs()
    wires = {
        "openai-chat": openai_chat.ChatWire,
        "openai-responses": openai_responses.ResponsesWire,
        "anthropic": anthropic.MessagesWire,
    }
    policy = RetryPolicy(attempts=choice.attempts, first=0.001, longest=0.001)
    return open_wire_model(choice, wires[choice.wire](choice, blobs), policy)


@asynccontextmanager
async def raises_safely(kind: type[Exception]) -> AsyncGenerator[list[str], None]:
    """Expects this exception, and checks that the key is not in its traceback. Yields a list for its text."""
    errors: list[str] = []
    with pytest.raises(kind) as caught:
        yield errors
    errors.append(str(caught.value))
    assert type(caught.value) is kind or kind is Refused
    assert KEY not in "".join(format_exception(caught.value))


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_is_streamed_and_the_connection_is_reused(provider: Provider, wire: str) -> None:
    provider.actions = [Action(answer(recorded(wire)))] * 2
    deltas: list[Delta] = []
    async with open_model(choice_for(wire, provider)) as model:
        replies = [await model.reply(PROMPT, deltas.append) for _ in range(2)]
    assert [(reply.text, reply.saw, reply.model) for reply in replies] == [("Grüße, wörld 🌍.", 7, f"{wire}:m")] * 2
    assert deltas == [Delta("Grüße, "), Delta("wörld 🌍.")] * 2
    assert provider.connections == 1
    headers, body = provider.requests[0]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert body["stream"] is True


async def test_a_response_as_one_json_body_is_parsed(provider: Provider) -> None:
    body = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    provider.actions = [Action(answer(json.dumps(body).encode(), "application/json; charset=utf-8"))]
    async with open_model(choice_for("openai-chat", provider)) as model:
        assert await model.reply(PROMPT, lambda _: None) == Reply("hi", 7, model="openai-chat:m")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_busy_provider_is_retried_after_the_time_it_names(provider: Provider, wire: str) -> None:
    busy = status(429, '{"error":{"message":"slow down"}}', "retry-after-ms: 1\r\n")
    provider.actions = [busy, status(529), Action(answer(recorded(wire)))]
    deltas: list[Delta] = []
    async with open_model(choice_for(wire, provider, attempts=3)) as model:
        reply = await model.reply(PROMPT, deltas.append)
    assert reply.text == "Grüße, wörld 🌍."
    assert [delta.kind for delta in deltas] == ["note", "note", "text", "text"]
    assert deltas[0].text == f"{provider.host} is busy (429): slow down, retrying in 0.001 s"


async def test_the_retry_after_of_a_provider_reaches_the_caller(provider: Provider) -> None:
    provider.actions = [status(503, "", "retry-after: 9\r\n")]
    async with open_model(choice_for("openai-chat", provider)) as model:
        with pytest.raises(Unavailable) as caught:
            await model.reply(PROMPT, lambda _: None)
    assert (str(caught.value), caught.value.retry_after) == (f"{provider.host} is busy (503) (1 attempt)", 9.0)


@pytest.mark.parametrize(
    ("action", "kind", "text"),
    [
        (status(401, '{"error":"bad key topsecretkey"}'), Refused, "did not accept the key (401)"),
        (status(400, '{"error":{"message":"nope topsecretkey"}}'), Refused, "refused the request (400): nope …"),
        (status(400, '{"error":{"code":"context_length_exceeded"}}'), ContextTooLong, "too long for m"),
        (Action(answer(b"<html>hi</html>", "text/html")), Unavailable, "a web page instead of a reply"),
        (Action(answer(b'{"error":{"code":401}}')), Refused, "did not accept the key"),
        (
            Action(answer(b"lorem ipsum topsecretkey")),
            Unavailable,
            "something other than an event stream: lorem ipsum …",
        ),
        (Action(answer(b"data: {]\n\n")), Unavailable, "an invalid chat completion"),
        (Action(answer(b"{]", "application/json")), Unavailable, "an invalid chat completion"),
        (Action(answer(b"")), Unavailable, "stopped in the middle of a reply"),
        (Action(answer(recorded("openai-chat")[:400])), Unavailable, "stopped in the middle of a reply"),
        (Action(answer(recorded("openai-chat"))[:700], "close"), Unavailable, "the connection to"),
        (Action(b"", "close"), Unavailable, "the connection to"),
        (Action(b"220 smtp.test ESMTP\r\n", "close"), Unavailable, "the connection to"),
    ],
)
async def test_a_bad_response_is_an_error_and_never_half_a_reply(
    provider: Provider, action: Action, kind: type[Exception], text: str
) -> None:
    provider.actions = [action]
    async with open_model(choice_for("openai-chat", provider)) as model, raises_safely(kind) as errors:
        await model.reply(PROMPT, lambda _: None)
    assert text in errors[0]


@pytest.mark.parametrize("sent", [b"", answer(recorded("openai-chat"))[:500]])
async def test_a_silent_provider_is_unavailable_after_the_timeout(provider: Provider, sent: bytes) -> None:
    provider.actions = [Action(sent, "stall")]
    async with (
        open_model(choice_for("openai-chat", provider, idle_timeout=0.2)) as model,
        raises_safely(Unavailable) as errors,
    ):
        await model.reply(PROMPT, lambda _: None)
    assert errors == [f"{provider.host} sent nothing for 0.2 s (1 attempt)"]


async def test_a_closed_port_is_unavailable(provider: Provider) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    provider.port = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    async with open_model(choice_for("openai-chat", provider)) as model, raises_safely(Unavailable) as errors:
        await model.reply(PROMPT, lambda _: None)
    assert f"cannot connect to {provider.host}" in errors[0]


async def test_a_server_without_tls_at_an_https_address_is_refused_without_a_retry(provider: Provider) -> None:
    async def answer_plain_http(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with anyio.move_on_after(60):
                await stream.receive()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        address = f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        choice = choice_for("openai-chat", provider, url=address, attempts=3)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, answer_plain_http)
            async with open_model(choice) as model, raises_safely(Refused) as errors:
                await model.reply(PROMPT, lambda _: None)
            assert "failed; check model.url" in errors[0]
            group.cancel_scope.cancel()


async def test_a_cancelled_reply_closes_the_connection(provider: Provider) -> None:
    provider.actions = [Action(answer(recorded("anthropic"))[:-400], "stall")]
    async with open_model(choice_for("anthropic", provider)) as model:
        with anyio.CancelScope() as scope:
            await model.reply(PROMPT, lambda _: scope.cancel())
        with anyio.fail_after(60):
            await provider.disconnected.wait()


async def test_the_end_of_a_body_is_not_awaited_after_the_last_event(provider: Provider) -> None:
    provider.actions = [Action(answer(recorded("anthropic"))[:-5], "stall")]
    async with open_model(choice_for("anthropic", provider)) as model:
        assert (await model.reply(PROMPT, lambda _: None)).text == "Grüße, wörld 🌍."


THOUGHT = Reasoning("hm", "anthropic", '{"type":"thinking","thinking":"hm","signature":"s"}')
LATER = Prompt("", [UserMessage("hi"), AssistantMessage("ho", (), (THOUGHT,)), UserMessage("more")], (), 7)


async def test_after_a_refusal_of_bound_thinking_the_provider_may_drop_it_from_then_on(provider: Provider) -> None:
    bound = (
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    )
    refusal = status(400, json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": bound}}))
    provider.actions = [refusal, Action(answer(recorded("anthropic"))), Action(answer(recorded("anthropic")))]
    async with open_model(choice_for("anthropic", provider)) as model:
        for _ in range(2):
            assert (await model.reply(LATER, lambda _: None)).text == "Grüße, wörld 🌍."
    lenient = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert [body.get("thinking") for _, body in provider.requests] == [None, lenient, lenient]
    assert ["anthropic-beta" in headers for headers, _ in provider.requests] == [False, True, True]


async def test_encrypted_reasoning_that_the_provider_cannot_read_is_left_out(provider: Provider) -> None:
    item = '{"type":"reasoning","id":"rs","encrypted_content":"x","summary":[]}'
    reply = AssistantMessage("ho", (), (Reasoning("hm", "openai-responses", item),))
    refusal = '{"error":{"message":"The encrypted content could not be verified.","code":"invalid_encrypted_content"}}'
    provider.actions = [status(400, refusal), Action(answer(recorded("openai-responses")))]
    async with open_model(choice_for("openai-responses", provider)) as model:
        prompt = Prompt("", [UserMessage("hi"), reply, UserMessage("more")], (), 7)
        assert (await model.reply(prompt, lambda _: None)).text == "Grüße, wörld 🌍."
    kinds = [[item.get("type") for item in body["input"]] for _, body in provider.requests]
    assert kinds == [[None, "reasoning", None, None], [None, None, None]]


async def test_concurrent_replies_do_not_mix(provider: Provider) -> None:
    provider.actions = [Action(answer(recorded("openai-chat"))), Action(answer(recorded("openai-chat", "parallel")))]
    async with open_model(choice_for("openai-chat", provider)) as model:
        replies = await asyncio.gather(*(model.reply(PROMPT, lambda _: None) for _ in range(2)))
    assert sorted(reply.text for reply in replies) == ["Grüße, wörld 🌍.", "On it."]
