"""A Messages stream (or its one JSON body) as a draft of a reply. Pure."""

import msgspec
from msgspec import Struct

from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.anthropic.render import WIRE
from outrider.models.draft import LENGTH_LIMIT, WINDOW_FULL, CallBuilder, ReplyBuilder
from outrider.models.errors import DECODE_ERRORS, ProviderEndpoint, failure_in_stream, malformed_response

_NORMAL_STOPS = {"end_turn", "stop_sequence", "tool_use"}
_CUT_REASONS = {"max_tokens": LENGTH_LIMIT, "model_context_window_exceeded": WINDOW_FULL, "pause_turn": "paused"}


class _OutputDetails(Struct):
    thinking_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Block(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None


class _Delta(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    error: object = None


class _Event(Struct):
    type: str = ""
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: object = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class _ThinkingBlock:
    """A thinking block while it arrives."""

    def __init__(self, block: _Block) -> None:
        self.parts = [block.thinking or ""]
        self.signature = block.signature or ""

    def reasoning(self) -> Reasoning:
        text = "".join(self.parts)
        whole = {"type": "thinking", "thinking": text, "signature": self.signature}
        return Reasoning(text, WIRE, msgspec.json.encode(whole).decode())


class MessagesParser:
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: ProviderEndpoint) -> None:
        self.builder = ReplyBuilder(emit)
        self.done = False
        self.complete = False
        self._endpoint = peer
        self._calls: dict[int, CallBuilder] = {}
        self._thinking: dict[int, _ThinkingBlock] = {}
        self._redacted: dict[int, Reasoning] = {}
        self._usage = _Usage()

    def event(self, name: str, data: bytes) -> None:
        try:
            event = _decode_event(data)
        except DECODE_ERRORS as error:
            raise malformed_response(self._endpoint, f"what is no message event ({error})") from None
        match event.type or name:
            case "content_block_delta":
                self._add_delta(event.index or 0, event.delta or _Delta())
            case "content_block_start":
                self._start_block(event.index or 0, event.content_block or _Block())
            case "message_start":
                self._add_usage(event.message.usage if event.message else None)
            case "message_delta":
                self._add_usage(event.usage)
                self._set_stop_reason(event.delta.stop_reason if event.delta else None)
            case "message_stop":
                self.done = self.complete = True
            case _:
                if event.error:
                    raise failure_in_stream(self._endpoint, event.error)

    def body(self, content: bytes) -> None:
        try:
            message = _decode_message(content)
        except DECODE_ERRORS as error:
            raise malformed_response(self._endpoint, f"what is no message ({error})") from None
        if message.error:
            raise failure_in_stream(self._endpoint, message.error)
        if message.content is None:
            raise malformed_response(self._endpoint, "JSON that is no message")
        for index, block in enumerate(message.content):
            self._start_block(index, block)
        self._add_usage(message.usage)
        self._set_stop_reason(message.stop_reason)
        self.done = self.complete = True

    def finish(self) -> ReplyBuilder:
        kept = self._redacted | {index: thought.reasoning() for index, thought in self._thinking.items()}
        self.builder.reasoning = [kept[index] for index in sorted(kept)]
        self.builder.usage = _usage_of(self._usage)
        return self.builder

    def _start_block(self, index: int, block: _Block) -> None:
        match block.type:
            case "text":
                self.builder.start_paragraph()
                self.builder.add_text(block.text or "")
            case "thinking":
                self._thinking[index] = _ThinkingBlock(block)
                self.builder.emit_reasoning(block.thinking or "")
            case "redacted_thinking":
                whole = {"type": "redacted_thinking", "data": block.data or ""}
                self._redacted[index] = Reasoning("", WIRE, msgspec.json.encode(whole).decode())
            case "tool_use":
                call = self._calls[index] = self.builder.start_call(block.name or "")
                if block.input:
                    call.add_arguments(msgspec.json.encode(block.input).decode())
            case _:
                pass

    def _add_delta(self, index: int, delta: _Delta) -> None:
        match delta.type:
            case "text_delta":
                self.builder.add_text(delta.text or "")
            case "input_json_delta":
                if index in self._calls:
                    self._calls[index].add_arguments(delta.partial_json or "")
            case "thinking_delta":
                self._thinking_block(index).parts.append(delta.thinking or "")
                self.builder.emit_reasoning(delta.thinking or "")
            case "signature_delta":
                self._thinking_block(index).signature += delta.signature or ""
            case _:
                pass

    def _thinking_block(self, index: int) -> _ThinkingBlock:
        return self._thinking.setdefault(index, _ThinkingBlock(_Block()))

    def _set_stop_reason(self, reason: str | None) -> None:
        if reason and reason not in _NORMAL_STOPS:
            self.builder.cut = _CUT_REASONS.get(reason, reason)

    def _add_usage(self, usage: _Usage | None) -> None:
        """Counts are cumulative: what comes later replaces, what is missing or zero stays as it was."""
        if usage is None:
            return
        for field in _Usage.__struct_fields__:
            value = getattr(usage, field)
            if value:
                setattr(self._usage, field, value)


def _usage_of(usage: _Usage) -> Usage:
    """Tokens read from and written to the cache are counted beside `input_tokens` there; we count all as input."""
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details or _OutputDetails()
    return Usage(
        input=(usage.input_tokens or 0) + cached + written,
        output=usage.output_tokens or 0,
        cached=cached,
        written=written,
        reasoning=details.thinking_tokens or details.reasoning_tokens or 0,
    )
