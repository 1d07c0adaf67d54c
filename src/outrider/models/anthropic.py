"""Anthropic's Messages API, which several other providers offer too.

Renders a prompt as a request in which roles alternate, no text is empty and the cache is marked, and parses the
response, streamed or as one JSON body.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec
from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import Emit, Model
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.store_port import Blobs
from outrider.core.types import Image, Reasoning, ToolSpec, Usage
from outrider.models.encoding import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
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
from outrider.models.http_model import JSON_HEADERS, ReasoningReplay, endpoint_url, open_wire_model
from outrider.models.reply_builder import LENGTH_LIMIT, WINDOW_FULL, CallBuilder, ReplyBuilder

WIRE = "anthropic"
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BEFORE_4_6 = re.compile(r"claude-(3|(opus|sonnet)-4([-.][015]\b|-20|@|$)|haiku-4)")
"""Claude models before 4.6 think by a budget of tokens."""
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_000, "max": 32_000}
_LONG_OUTPUT = re.compile(r"claude-((opus|sonnet|haiku)-(4[-.][5-9]|[5-9])|fable|mythos)")
_MAX_TOKENS = 32_000
_MAX_TOKENS_ELSEWHERE = 8192


class MessageBlocks(NamedTuple):
    """One message as content blocks, joined by commas."""

    role: bytes
    thinking: bytes
    blocks: bytes

    @property
    def size(self) -> int:
        return len(self.thinking) + len(self.blocks)


class MessagesRenderer:
    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self._choice = choice
        self._blobs = blobs
        self._cache = RenderCache(self._piece, lambda piece: piece.size)
        self._tools = ToolListCache(lambda tools: b",".join(encode(_tool_definition(tool)) for tool in tools))

    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes:
        thinking, max_tokens = self._thinking(prompt.messages, replay)
        fields = [
            b'"model":' + encode(self._choice.model),
            b'"max_tokens":%d' % max_tokens,
            b'"stream":true',
        ]
        if prompt.tools:
            tools = self._tools.get(prompt.tools)
            fields.append(b'"tools":[' + (_with_cache_mark(tools) if is_blank(prompt.system) else tools) + b"]")
        if not is_blank(prompt.system):
            fields.append(b'"system":[' + _with_cache_mark(encode({"type": "text", "text": prompt.system})) + b"]")
        fields.append(b'"messages":[' + b",".join(self._messages(prompt, replay)) + b"]")
        fields += (b'"%s":' % name.encode() + encode(value) for name, value in thinking.items())
        return b"{" + b",".join(fields) + b"}"

    def _messages(self, prompt: Prompt, replay: ReasoningReplay) -> list[bytes]:
        groups = self._groups(prompt.messages, bare=replay is ReasoningReplay.NONE)
        if not groups or groups[0][0] != b"user":
            groups.insert(0, (b"user", [_text_block(SESSION_START)]))
        if groups[-1][0] != b"user":
            groups.append((b"user", [_text_block(prompt.tail or CONTINUE)]))
            tail = b""
        else:
            tail = _text_block(prompt.tail) if prompt.tail else b""
        # The provider looks for cached prefixes at the marks: one is where this prompt ends, one where the previous
        # prompt ended.
        marked = [index for index, (role, _) in enumerate(groups) if role == b"user"][-2:]
        out: list[bytes] = []
        for index, (role, pieces) in enumerate(groups):
            blocks = b",".join(pieces)
            if index in marked:
                blocks = _with_cache_mark(blocks)
            if tail and index == len(groups) - 1:
                blocks += b"," + tail
            out.append(b'{"role":"' + role + b'","content":[' + blocks + b"]}")
        return out

    def _groups(self, messages: Sequence[Message], *, bare: bool) -> list[tuple[bytes, list[bytes]]]:
        groups: list[tuple[bytes, list[bytes]]] = []
        get = self._cache.get
        before = b""
        for message in messages:
            role, thoughts, blocks = get(message)
            if not blocks:
                continue
            if role != before:
                groups.append((role, []))
                before = role
            if thoughts and not bare:
                groups[-1][1].append(thoughts)
            groups[-1][1].append(blocks)
        return groups

    def _piece(self, message: Message) -> MessageBlocks:
        match message:
            case UserMessage(text=text, images=images):
                return MessageBlocks(b"user", b"", b",".join(encode(block) for block in self._blocks(text, images)))
            case AssistantMessage():
                return MessageBlocks(
                    b"assistant", b",".join(_replayable(message.reasoning)), b",".join(_assistant_blocks(message))
                )
            case ToolMessage(results=results):
                return MessageBlocks(b"user", b"", b",".join(encode(self._result(result)) for result in results))

    def _blocks(self, text: str, images: tuple[Image, ...]) -> list[dict[str, object]]:
        blocks: list[dict[str, object]] = [] if is_blank(text) else [{"type": "text", "text": text}]
        for image in images:
            encoded = encode_image(image, self._blobs)
            if encoded:
                source = {"type": "base64", "media_type": encoded.media_type, "data": encoded.base64}
                blocks.append({"type": "image", "source": source})
            else:
                blocks.append({"type": "text", "text": IMAGE_UNAVAILABLE})
        return blocks

    def _result(self, result: Result) -> dict[str, object]:
        text = NO_OUTPUT if is_blank(result.text) else result.text
        content = self._blocks(text, result.images) if result.images else text
        block: dict[str, object] = {"type": "tool_result", "tool_use_id": wire_id(result.call), "content": content}
        return block | {"is_error": True} if result.failed else block

    def _thinking(self, messages: Sequence[Message], replay: ReasoningReplay) -> tuple[dict[str, object], int]:
        """The fields that control thinking, and the maximum length of the reply including its thinking."""
        effort, model = self._choice.effort, self._choice.model
        default = _MAX_TOKENS if _LONG_OUTPUT.search(model) else _MAX_TOKENS_ELSEWHERE
        max_tokens = self._choice.max_output_tokens or default
        is_lenient = replay is ReasoningReplay.LENIENT
        lenient = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}} if is_lenient else {}
        if effort == "none":
            return {"thinking": {"type": "disabled"}}, max_tokens
        if not effort:
            return ({"thinking": {"type": "adaptive"} | lenient} if lenient else {}), max_tokens
        if "claude" in model and not _BEFORE_4_6.search(model):
            level = "low" if effort == "minimal" else effort
            adaptive = {"type": "adaptive", "display": "summarized"} | lenient
            return {"thinking": adaptive, "output_config": {"effort": level}}, max_tokens
        # Early Claude models and the models of other providers think by a budget of tokens.
        if _calls_lack_thinking(messages) or replay is ReasoningReplay.NONE:
            return {}, max_tokens
        budget = _BUDGETS.get(effort, _BUDGETS["medium"])
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}, max(max_tokens, budget + 4096)


def _calls_lack_thinking(messages: Sequence[Message]) -> bool:
    """Whether the last reply made calls without thinking of this wire: thinking by budget is refused after that."""
    last = next((message for message in reversed(messages) if isinstance(message, AssistantMessage)), None)
    return last is not None and bool(last.calls) and not _replayable(last.reasoning)


def _assistant_blocks(message: AssistantMessage) -> list[bytes]:
    blocks = [] if is_blank(message.text) else [_text_block(message.text)]
    for call in message.calls:
        use = {"type": "tool_use", "id": wire_id(call.id), "name": tool_name(call.tool), "input": call_arguments(call)}
        blocks.append(encode(use))
    return blocks


def _replayable(reasoning: tuple[Reasoning, ...]) -> list[bytes]:
    blocks = (decode_opaque(part, WIRE, _decode_block) for part in reasoning)
    return [encode(block) for block in blocks if block is not None]


def _text_block(text: str) -> bytes:
    return encode({"type": "text", "text": text})


def _with_cache_mark(blocks: bytes) -> bytes:
    """The blocks with a cache mark on the last one."""
    return blocks[:-1] + _CACHE_MARK


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


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


_decode_block = msgspec.json.Decoder(dict[str, object]).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class _ThinkingBlock:
    """A thinking block that is still arriving."""

    def __init__(self, block: _Block) -> None:
        self._parts = [block.thinking or ""]
        self._signature = block.signature or ""

    def add(self, text: str, signature: str = "") -> None:
        self._parts.append(text)
        self._signature += signature

    def build(self) -> Reasoning:
        text = "".join(self._parts)
        block = {"type": "thinking", "thinking": text, "signature": self._signature}
        return Reasoning(text, WIRE, msgspec.json.encode(block).decode())


class MessagesParser:
    """Parses the events of one reply, in order."""

    def __init__(self, emit: Emit, endpoint: ProviderEndpoint) -> None:
        self.builder = ReplyBuilder(emit)
        self.done = False
        self.complete = False
        self._endpoint = endpoint
        self._calls: dict[int, CallBuilder] = {}
        self._thinking: dict[int, _ThinkingBlock] = {}
        self._redacted: dict[int, Reasoning] = {}
        self._usage = _Usage()

    def event(self, name: str, data: bytes) -> None:
        event = decode_response(_decode_event, data, self._endpoint, "message event")
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
        message = decode_response(_decode_message, content, self._endpoint, "message")
        if message.error:
            raise failure_in_stream(self._endpoint, message.error)
        if message.content is None:
            raise malformed_response(self._endpoint, "JSON that is not a message")
        for index, block in enumerate(message.content):
            self._start_block(index, block)
        self._add_usage(message.usage)
        self._set_stop_reason(message.stop_reason)
        self.done = self.complete = True

    def finish(self) -> ReplyBuilder:
        blocks = self._redacted | {index: block.build() for index, block in self._thinking.items()}
        for index in sorted(blocks):
            self.builder.add_reasoning(blocks[index])
        self.builder.set_usage(_usage_of(self._usage))
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
                redacted = {"type": "redacted_thinking", "data": block.data or ""}
                self._redacted[index] = Reasoning("", WIRE, msgspec.json.encode(redacted).decode())
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
                self._thinking_block(index).add(delta.thinking or "")
                self.builder.emit_reasoning(delta.thinking or "")
            case "signature_delta":
                self._thinking_block(index).add("", delta.signature or "")
            case _:
                pass

    def _thinking_block(self, index: int) -> _ThinkingBlock:
        return self._thinking.setdefault(index, _ThinkingBlock(_Block()))

    def _set_stop_reason(self, reason: str | None) -> None:
        if reason and reason not in _NORMAL_STOPS:
            self.builder.set_cut(_CUT_REASONS.get(reason, reason))

    def _add_usage(self, usage: _Usage | None) -> None:
        """Counts are cumulative: a later count replaces an earlier one unless it is missing or zero."""
        if usage is None:
            return
        for field in _Usage.__struct_fields__:
            value = getattr(usage, field)
            if value:
                setattr(self._usage, field, value)


def _usage_of(usage: _Usage) -> Usage:
    """Our `input` includes the tokens read from and written to the cache, which `input_tokens` does not."""
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details or _OutputDetails()
    return Usage(
        input=(usage.input_tokens or 0) + cached + written,
        output=usage.output_tokens or 0,
        cached=cached,
        written=written,
        reasoning=details.thinking_tokens or details.reasoning_tokens or 0,
    )


_DEFAULT_URL = "https://api.anthropic.com/v1"
_VERSION = "2023-06-01"
_LENIENT_BETA = "thinking-binding-controls-2026-08-01"
"""Makes the provider drop stale thinking instead of refusing it."""


class MessagesWire:
    """Messages, configured for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        base = (choice.url or _DEFAULT_URL).rstrip("/").removesuffix("/messages")
        # The address is accepted with and without its version.
        self.url, host = endpoint_url(base if base.endswith("/v1") else f"{base}/v1", "/messages")
        self.endpoint = ProviderEndpoint(host, choice.model, choice.key)
        self._renderer = MessagesRenderer(choice, blobs)

    def headers(self, replay: ReasoningReplay) -> dict[str, str]:
        headers = JSON_HEADERS | {"anthropic-version": _VERSION}
        if key := self.endpoint.key.reveal():
            headers["x-api-key"] = key
            if not self.endpoint.host.endswith("anthropic.com"):
                # Other providers expect the key where their other APIs have it.
                headers["authorization"] = f"Bearer {key}"
        return headers | ({"anthropic-beta": _LENIENT_BETA} if replay is ReasoningReplay.LENIENT else {})

    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt, replay)

    def parser(self, emit: Emit) -> MessagesParser:
        return MessagesParser(emit, self.endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """Newer models bind thinking to the exact text before it, which a compaction or a tail changes."""
        message = str(refusal).lower()
        if "bound to a different conversation" in message:
            return ReasoningReplay.LENIENT
        return ReasoningReplay.NONE if "signature" in message or "`thinking`" in message else None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, MessagesWire(choice, blobs))
