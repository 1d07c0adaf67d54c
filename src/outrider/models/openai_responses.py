"""OpenAI's Responses, used without storing anything at the provider: our journal is the session.

A prompt as a Responses request. Nothing is stored at the provider, so reasoning goes back encrypted. Pure.

A Responses stream (or its one JSON body) as a draft of a reply: finished items are the truth, deltas hints. Pure.
"""

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
    call_arguments,
    encode,
    encode_image,
    is_blank,
    tool_name,
    wire_id,
)
from outrider.models.errors import DECODE_ERRORS, ProviderEndpoint, failure_in_stream, malformed_response
from outrider.models.http_model import ReasoningReplay, endpoint_url, open_wire_model
from outrider.models.reply_builder import LENGTH_LIMIT, CallBuilder, ReplyBuilder

WIRE = "openai-responses"
_NO_REASONING = ("gpt-3.5", "gpt-4", "chatgpt-4o")
"""Models that refuse to be asked for encrypted reasoning."""


class ReasoningItem(Struct, tag="reasoning", omit_defaults=True):
    """A reasoning item that can be replayed."""

    id: str
    encrypted_content: str
    summary: list[dict[str, object]]


class MessagePhase(Struct, tag="phase"):
    """Which kind of message the words were; newer models want their label back."""

    phase: str


_opaque_decoder: msgspec.json.Decoder[ReasoningItem | MessagePhase] = msgspec.json.Decoder(ReasoningItem | MessagePhase)


class ResponsesRenderer:
    """Renders prompts for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self._choice = choice
        self._blobs = blobs
        self._cache = RenderCache(self._items, lambda pair: len(pair[0]) + len(pair[1]))
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        fields = [b'"model":' + encode(self._choice.model)]
        if not is_blank(prompt.system):
            fields.append(b'"instructions":' + encode(prompt.system))
        fields.append(b'"input":[' + b",".join(self._input(prompt, past)) + b"]")
        fields.append(b'"stream":true,"store":false')
        if past is not ReasoningReplay.NONE and not self._choice.model.startswith(_NO_REASONING):
            fields.append(b'"include":["reasoning.encrypted_content"]')
        if prompt.tools:
            fields.append(b'"tools":' + self._tool_list(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning":' + encode({"effort": self._choice.effort}))
        if self._choice.max_output_tokens:
            fields.append(b'"max_output_tokens":%d' % self._choice.max_output_tokens)
        return b"{" + b",".join(fields) + b"}"

    def _input(self, prompt: Prompt, past: ReasoningReplay) -> list[bytes]:
        get = self._cache.get
        bare = past is ReasoningReplay.NONE
        items: list[bytes] = []
        newest: Message | None = None
        for message in prompt.messages:
            thoughts, words = get(message)
            if thoughts and not bare:
                items.append(thoughts)
            if words:
                items.append(words)
                newest = message
        last = prompt.tail or (CONTINUE if newest is None or isinstance(newest, AssistantMessage) else "")
        if last:
            items.append(encode({"role": "user", "content": last}))
        return items

    def _items(self, message: Message) -> tuple[bytes, bytes]:
        """`(its reasoning, the rest)`, each some input items joined by commas."""
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
        thoughts, phase = _replayable(message.reasoning)
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
        # Reasoning without what it led to is refused.
        return (b",".join(thoughts), b",".join(items)) if items else (b"", b"")

    def _tool_output(self, result: Result) -> dict[str, object]:
        output = self._parts(result.text or NO_OUTPUT, result.images) if result.images else result.text or NO_OUTPUT
        return {"type": "function_call_output", "call_id": wire_id(result.call), "output": output}

    def _parts(self, text: str, images: tuple[Image, ...]) -> list[dict[str, object]]:
        parts: list[dict[str, object]] = [] if is_blank(text) else [{"type": "input_text", "text": text}]
        for image in images:
            found = encode_image(image, self._blobs)
            parts.append(
                {"type": "input_image", "image_url": found.url, "detail": "auto"}
                if found
                else {"type": "input_text", "text": IMAGE_UNAVAILABLE}
            )
        return parts

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, encode([_tool_definition(tool) for tool in tools]))
        return self._tools[1]


def _replayable(reasoning: tuple[Reasoning, ...]) -> tuple[list[bytes], dict[str, object]]:
    thoughts: list[bytes] = []
    phase: dict[str, object] = {}
    for part in reasoning:
        if part.wire != WIRE or not part.opaque:
            continue
        try:
            found = _opaque_decoder.decode(part.opaque)
        except msgspec.DecodeError:
            continue
        if isinstance(found, MessagePhase):
            phase = {"phase": found.phase}
        else:
            thoughts.append(encode(found))
    return thoughts, phase


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


class _InputDetails(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


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
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: ProviderEndpoint) -> None:
        self._emit = emit
        # Deltas go straight to the reader; the draft is filled from finished items, silently.
        self.builder = ReplyBuilder(lambda _: None)
        self.done = False
        self.complete = False
        self._endpoint = peer
        self._items: dict[int, _Item] = {}
        self._last_text_index: int | None = None

    def event(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            return
        try:
            event = _decode_event(data)
        except DECODE_ERRORS as error:
            raise malformed_response(self._endpoint, f"what is no response event ({error})") from None
        kind = event.type or name
        if kind == "error" or event.error:
            raise failure_in_stream(self._endpoint, event.error or {"message": event.message, "code": event.code})
        self._handle_event(kind, event)

    def body(self, content: bytes) -> None:
        try:
            response = _decode_response(content)
        except DECODE_ERRORS as error:
            raise malformed_response(self._endpoint, f"what is no response ({error})") from None
        if response.output is None and not response.error:
            raise malformed_response(self._endpoint, "JSON that is no response")
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
                    self._items[self._output_index(event)] = event.item
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._finish_response(event.response or _Response())
            case _:
                pass

    def _output_index(self, event: _Event) -> int:
        return event.output_index if event.output_index is not None else len(self._items)

    def _emit_text(self, event: _Event) -> None:
        if not isinstance(event.delta, str) or not event.delta:
            return
        at = event.output_index or 0
        gap = "\n\n" if self._last_text_index not in (None, at) else ""
        self._last_text_index = at
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
            self.builder.usage = _usage_of(response.usage)
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            self.builder.cut = _CUT_REASONS.get(reason or "", reason or "incomplete")
        self.done = self.complete = True

    def _add_item(self, item: _Item) -> None:
        match item.type:
            case "message":
                self._add_message(item)
            case "function_call":
                call: CallBuilder = self.builder.start_call(item.name or "")
                written = item.arguments
                call.add_arguments(written if isinstance(written, str) else msgspec.json.encode(written or {}).decode())
            case "reasoning":
                self._add_reasoning(item)
            case _:
                pass

    def _add_message(self, item: _Item) -> None:
        self.builder.start_paragraph()
        for part in item.content or ():
            self.builder.add_text(part.text or part.refusal or "")
            if part.refusal:
                self.builder.cut = "refusal"
        if item.phase:
            self.builder.reasoning.append(Reasoning("", WIRE, msgspec.json.encode(MessagePhase(item.phase)).decode()))

    def _add_reasoning(self, item: _Item) -> None:
        summary = item.summary or []
        told = [part["text"] for part in summary if isinstance(part.get("text"), str)]
        text = "\n\n".join(str(part) for part in told) or "".join(part.text or "" for part in item.content or ())
        # Without its encrypted content an item is known to nobody, since nothing is stored.
        keeps = item.id and item.encrypted_content
        whole = ReasoningItem(item.id or "", item.encrypted_content or "", summary)
        if keeps or text:
            self.builder.reasoning.append(Reasoning(text, WIRE, msgspec.json.encode(whole).decode() if keeps else ""))


def _usage_of(usage: _Usage) -> Usage:
    read, wrote = usage.input_tokens_details or _InputDetails(), usage.output_tokens_details or _OutputDetails()
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cached=read.cached_tokens or 0,
        written=read.cache_write_tokens or 0,
        reasoning=wrote.reasoning_tokens or 0,
    )


_DEFAULT_URL = "https://api.openai.com/v1"


class ResponsesWire:
    """Responses, set up for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, self.host = endpoint_url(choice.url or _DEFAULT_URL, "/responses")
        self._key = choice.key
        self._endpoint = ProviderEndpoint(self.host, choice.model, choice.key)
        self._renderer = ResponsesRenderer(choice, blobs)

    def headers(self, past: ReasoningReplay) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        return {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"} | key

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt, past)

    def parser(self, emit: Emit) -> ResponsesParser:
        return ResponsesParser(emit, self._endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """Encrypted reasoning is readable to the account and the family of models that wrote it only."""
        return ReasoningReplay.NONE if "encrypted" in str(refusal).lower() else None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, ResponsesWire(choice, blobs))
