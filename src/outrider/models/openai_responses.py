"""OpenAI's Responses API, without storage at the provider.

The journal is the only copy of a session, so reasoning is sent back encrypted. In a response, streamed or as one JSON
body, completed items are authoritative; deltas are only shown.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.core.errors import Refused
from outrider.core.events import Delta, Result
from outrider.core.ports import Emit, Model
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.store_port import Blobs
from outrider.core.types import Image, Reasoning, ToolSpec, Usage
from outrider.models.encoding import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    RenderCache,
    ToolListCache,
    call_arguments,
    decode_opaque,
    encode,
    encode_image,
    is_blank,
    tool_name,
    wire_id,
)
from outrider.models.errors import ProviderEndpoint, decode_response, failure_in_stream, malformed_response
from outrider.models.http_model import (
    OPENAI_URL,
    ReasoningReplay,
    TokenDetails,
    bearer_headers,
    endpoint_url,
    open_wire_model,
)
from outrider.models.reply_builder import LENGTH_LIMIT, CallBuilder, ReplyBuilder

WIRE = "openai-responses"
_NO_REASONING = ("gpt-3.5", "gpt-4", "chatgpt-4o")
"""Models that refuse the request for encrypted reasoning."""


class ReasoningItem(Struct, tag="reasoning", omit_defaults=True):
    """A reasoning item that can be sent back."""

    id: str
    encrypted_content: str
    summary: list[dict[str, object]]


class MessagePhase(Struct, tag="phase"):
    """The label of a message, which newer models expect back."""

    phase: str


_decode_opaque: Callable[[str], ReasoningItem | MessagePhase] = msgspec.json.Decoder(
    ReasoningItem | MessagePhase
).decode


class ResponsesRenderer:
    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self._choice = choice
        self._blobs = blobs
        self._cache = RenderCache(self._items, lambda pair: len(pair[0]) + len(pair[1]))
        self._tools = ToolListCache(lambda tools: encode([_tool_definition(tool) for tool in tools]))

    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes:
        fields = [b'"model":' + encode(self._choice.model)]
        if not is_blank(prompt.system):
            fields.append(b'"instructions":' + encode(prompt.system))
        fields.append(b'"input":[' + b",".join(self._input(prompt, replay)) + b"]")
        fields.append(b'"stream":true,"store":false')
        if replay is not ReasoningReplay.NONE and not self._choice.model.startswith(_NO_REASONING):
            fields.append(b'"include":["reasoning.encrypted_content"]')
        if prompt.tools:
            fields.append(b'"tools":' + self._tools.get(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning":' + encode({"effort": self._choice.effort}))
        if self._choice.max_output_tokens:
            fields.append(b'"max_output_tokens":%d' % self._choice.max_output_tokens)
        return b"{" + b",".join(fields) + b"}"

    def _input(self, prompt: Prompt, replay: ReasoningReplay) -> list[bytes]:
        get = self._cache.get
        bare = replay is ReasoningReplay.NONE
        items: list[bytes] = []
        newest: Message | None = None
        for message in prompt.messages:
            reasoning, content = get(message)
            if reasoning and not bare:
                items.append(reasoning)
            if content:
                items.append(content)
                newest = message
        last = prompt.tail or (CONTINUE if newest is None or isinstance(newest, AssistantMessage) else "")
        if last:
            items.append(encode({"role": "user", "content": last}))
        return items

    def _items(self, message: Message) -> tuple[bytes, bytes]:
        """`(reasoning, other items)` of a message, each joined by commas."""
        match message:
            case UserMessage(text=text, images=()):
                return b"", b"" if is_blank(text) else encode({"role": "user", "content": text})
            case UserMessage(text=text, images=images):
                return b"", encode({"role": "user", "content": self._parts(text, images)})
            case AssistantMessage():
                return self._assistant_items(message)
            case ToolMessage(results=results):
                return b"", b",".join(encode(self._tool_output(result)) for result in results)

    def _assistant_items(self, message: AssistantMessage) -> tuple[bytes, bytes]:
        reasoning, phase = _replayable(message.reasoning)
        items: list[bytes] = []
        if not is_blank(message.text):
            items.append(encode({"role": "assistant", "content": message.text} | phase))
        items += (
            encode(
                {
                    "type": "function_call",
                    "call_id": wire_id(call.id),
                    "name": tool_name(call.tool),
                    "arguments": encode(call_arguments(call)).decode(),
                }
            )
            for call in message.calls
        )
        # The provider refuses reasoning that is not followed by text or calls.
        return (b",".join(reasoning), b",".join(items)) if items else (b"", b"")

    def _tool_output(self, result: Result) -> dict[str, object]:
        output = self._parts(result.text or NO_OUTPUT, result.images) if result.images else result.text or NO_OUTPUT
        return {"type": "function_call_output", "call_id": wire_id(result.call), "output": output}

    def _parts(self, text: str, images: tuple[Image, ...]) -> list[dict[str, object]]:
        parts: list[dict[str, object]] = [] if is_blank(text) else [{"type": "input_text", "text": text}]
        for image in images:
            encoded = encode_image(image, self._blobs)
            parts.append(
                {"type": "input_image", "image_url": encoded.url, "detail": "auto"}
                if encoded
                else {"type": "input_text", "text": IMAGE_UNAVAILABLE}
            )
        return parts


def _replayable(reasoning: tuple[Reasoning, ...]) -> tuple[list[bytes], dict[str, object]]:
    items: list[bytes] = []
    phase: dict[str, object] = {}
    for part in reasoning:
        match decode_opaque(part, WIRE, _decode_opaque):
            case MessagePhase(phase=label):
                phase = {"phase": label}
            case ReasoningItem() as item:
                items.append(encode(item))
            case None:
                pass
    return items, phase


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": False,
    }


_CUT_REASONS = {"max_output_tokens": LENGTH_LIMIT, "content_filter": "content filter"}
_UNFINISHED = {"queued", "in_progress"}


class _Part(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    arguments: str | dict[str, object] | None = None
    content: list[_Part] | None = None
    summary: list[dict[str, object]] | None = None
    encrypted_content: str | None = None
    phase: str | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str | None = None
    output: list[_Item] | None = None
    usage: _Usage | None = None
    error: object = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct):
    type: str = ""
    delta: object = None
    item: _Item | None = None
    output_index: int | None = None
    response: _Response | None = None
    error: object = None
    message: object = None
    code: object = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class ResponsesParser:
    """Parses the events of one reply, in order."""

    def __init__(self, emit: Emit, endpoint: ProviderEndpoint) -> None:
        self._emit = emit
        # Deltas go directly to the reader. The builder is filled from completed items and emits nothing.
        self.builder = ReplyBuilder(lambda _: None)
        self.done = False
        self.complete = False
        self._endpoint = endpoint
        self._items: dict[int, _Item] = {}
        self._last_text_index: int | None = None

    def event(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = decode_response(_decode_event, data, self._endpoint, "response event")
        kind = event.type or name
        if kind == "error" or event.error:
            raise failure_in_stream(self._endpoint, event.error or {"message": event.message, "code": event.code})
        self._handle_event(kind, event)

    def body(self, content: bytes) -> None:
        response = decode_response(_decode_response, content, self._endpoint, "response")
        if response.output is None and not response.error:
            raise malformed_response(self._endpoint, "JSON that is not a response")
        self._finish_response(response)

    def finish(self) -> ReplyBuilder:
        return self.builder

    def _handle_event(self, kind: str, event: _Event) -> None:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._emit_text(event)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._emit(Delta(str(event.delta or ""), "reasoning"))
            case "response.output_item.added":
                if event.item and event.item.type == "function_call":
                    self._emit(Delta(event.item.name or "", "call"))
            case "response.output_item.done":
                if event.item:
                    index = event.output_index if event.output_index is not None else len(self._items)
                    self._items[index] = event.item
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._finish_response(event.response or _Response())
            case _:
                pass

    def _emit_text(self, event: _Event) -> None:
        if not isinstance(event.delta, str) or not event.delta:
            return
        index = event.output_index or 0
        gap = "\n\n" if self._last_text_index not in (None, index) else ""
        self._last_text_index = index
        self._emit(Delta(gap + event.delta))

    def _finish_response(self, response: _Response) -> None:
        if response.error or response.status in ("failed", "cancelled"):
            raise failure_in_stream(self._endpoint, response.error or f"the response {response.status}")
        if response.status in _UNFINISHED:
            raise malformed_response(self._endpoint, "a response that is not finished")
        items = [self._items[index] for index in sorted(self._items)] or response.output or []
        for item in items:
            self._add_item(item)
        if response.usage:
            self.builder.set_usage(_usage_of(response.usage))
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            self.builder.set_cut(_CUT_REASONS.get(reason or "", reason or "incomplete"))
        self.done = self.complete = True

    def _add_item(self, item: _Item) -> None:
        match item.type:
            case "message":
                self._add_message(item)
            case "function_call":
                call: CallBuilder = self.builder.start_call(item.name or "")
                arguments = item.arguments
                call.add_arguments(
                    arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
                )
            case "reasoning":
                self._add_reasoning(item)
            case _:
                pass

    def _add_message(self, item: _Item) -> None:
        self.builder.start_paragraph()
        for part in item.content or ():
            self.builder.add_text(part.text or part.refusal or "")
            if part.refusal:
                self.builder.set_cut("refusal")
        if item.phase:
            self.builder.add_reasoning(Reasoning("", WIRE, msgspec.json.encode(MessagePhase(item.phase)).decode()))

    def _add_reasoning(self, item: _Item) -> None:
        summary = item.summary or []
        texts = [part["text"] for part in summary if isinstance(part.get("text"), str)]
        text = "\n\n".join(str(part) for part in texts) or "".join(part.text or "" for part in item.content or ())
        opaque = ""
        # Since the provider stores nothing, it cannot use an item without its encrypted content.
        if item.id and item.encrypted_content:
            opaque = msgspec.json.encode(ReasoningItem(item.id, item.encrypted_content, summary)).decode()
        if opaque or text:
            self.builder.add_reasoning(Reasoning(text, WIRE, opaque))


def _usage_of(usage: _Usage) -> Usage:
    input_details = usage.input_tokens_details or TokenDetails()
    output_details = usage.output_tokens_details or TokenDetails()
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cached=input_details.cached_tokens or 0,
        written=input_details.cache_write_tokens or 0,
        reasoning=output_details.reasoning_tokens or 0,
    )


class ResponsesWire:
    """Responses, configured for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, host = endpoint_url(choice.url or OPENAI_URL, "/responses")
        self.endpoint = ProviderEndpoint(host, choice.model, choice.key)
        self._renderer = ResponsesRenderer(choice, blobs)

    def headers(self, replay: ReasoningReplay) -> dict[str, str]:
        return bearer_headers(self.endpoint.key)

    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt, replay)

    def parser(self, emit: Emit) -> ResponsesParser:
        return ResponsesParser(emit, self.endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """Only the account and the model family that wrote encrypted reasoning can read it."""
        return ReasoningReplay.NONE if "encrypted" in str(refusal).lower() else None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, ResponsesWire(choice, blobs))
