"""OpenAI's Chat Completions API, which most providers and local servers offer.

Adjacent user messages are rendered as one, since many servers require alternating roles. The parser accepts the
dialects of many servers, streamed or as one JSON body.
"""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec
from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Emit, Model
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.store_port import Blobs
from outrider.core.types import Call, Image, Reasoning, ToolSpec, Usage
from outrider.models.encoding import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
    TOOL_IMAGE,
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

WIRE = "openai-chat"
_PARAGRAPH_BREAK = rb"\n\n"
_NEED_REASONING_CONTENT = ("deepseek", "moonshot", "kimi")
_NEED_BRIDGE = ("mistral", "ministral", "devstral", "codestral", "magistral", "pixtral")
_BRIDGE_MESSAGE = b'{"role":"assistant","content":"[Results received.]"}'
_NO_SIGNATURE = "skip_thought_signature_validator"


class ReasoningRecord(Struct, omit_defaults=True):
    """Stored reasoning of a reply: the host that sent it, its field, and the data attached to it."""

    host: str
    field: str
    """`reasoning_content`, `reasoning_details` or `extra_content`."""
    details: list[dict[str, object]] = []
    extras: dict[int, object] = {}
    """`extra_content` by the index of its call."""


_decode_record = msgspec.json.Decoder(ReasoningRecord).decode


class ChatPiece(NamedTuple):
    """One rendered message: complete, or as text and images to be joined with those of adjacent messages."""

    whole: bytes = b""
    text: bytes = b""
    """The inside of a JSON string."""
    images: bytes = b""
    """Content parts, joined by commas."""

    @property
    def size(self) -> int:
        return len(self.whole) + len(self.text) + len(self.images)


class ChatRenderer:
    """Renders prompts for one model on one host."""

    def __init__(self, choice: ModelChoice, host: str, blobs: Blobs) -> None:
        self._choice = choice
        self._host = host
        self._blobs = blobs
        name = f"{host} {choice.model}".lower()
        self._needs_reasoning_content = any(family in name for family in _NEED_REASONING_CONTENT)
        self._needs_bridge = any(family in name for family in _NEED_BRIDGE)
        self._cache = RenderCache(self._piece, lambda piece: piece.size)
        self._tools = ToolListCache(lambda tools: encode([_tool_definition(tool) for tool in tools]))

    def render(self, prompt: Prompt) -> bytes:
        system = [] if is_blank(prompt.system) else [encode({"role": "system", "content": prompt.system})]
        fields = [
            b'"model":' + encode(self._choice.model),
            b'"messages":[' + b",".join(system + self._messages(prompt)) + b"]",
            b'"stream":true',
        ]
        if not self._host.endswith("mistral.ai"):
            # Mistral always reports usage, and refuses this field.
            fields.append(b'"stream_options":{"include_usage":true}')
        if prompt.tools:
            fields.append(b'"tools":' + self._tools.get(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning_effort":' + encode(self._choice.effort))
        if self._choice.max_output_tokens:
            # OpenAI's reasoning models refuse the older name; most other servers know only that one.
            is_openai = self._host.endswith(("api.openai.com", ".azure.com"))
            field = b"max_completion_tokens" if is_openai else b"max_tokens"
            fields.append(b'"%s":%d' % (field, self._choice.max_output_tokens))
        return b"{" + b",".join(fields) + b"}"

    def _messages(self, prompt: Prompt) -> list[bytes]:
        out: list[bytes] = []
        user_parts: list[tuple[bytes, bytes]] = []
        get = self._cache.get
        for message in prompt.messages:
            whole, text, images = get(message)
            if whole:
                if user_parts or not out:
                    out.append(_user_message(user_parts or [(encode(SESSION_START)[1:-1], b"")]))
                    user_parts = []
                out.append(whole)
            if text or images:
                user_parts.append((text, images))
        ends_with_results = bool(prompt.messages) and isinstance(prompt.messages[-1], ToolMessage)
        last = prompt.tail or ("" if user_parts or ends_with_results else CONTINUE)
        if last:
            user_parts.append((encode(last)[1:-1], b""))
        if user_parts:
            out.append(_user_message(user_parts))
        return _with_bridges(out) if self._needs_bridge else out

    def _piece(self, message: Message) -> ChatPiece:
        match message:
            case UserMessage(text=text, images=images):
                return ChatPiece(text=b"" if is_blank(text) else encode(text)[1:-1], images=self._image_parts(images))
            case AssistantMessage():
                return ChatPiece(self._assistant_message(message))
            case ToolMessage(results=results):
                outputs = b",".join(
                    encode({"role": "tool", "tool_call_id": wire_id(r.call), "content": r.text or NO_OUTPUT})
                    for r in results
                )
                # A tool message contains only text, so its images follow in a user message.
                images = self._image_parts(tuple(image for result in results for image in result.images))
                return ChatPiece(outputs, encode(TOOL_IMAGE)[1:-1] if images else b"", images)

    def _image_parts(self, images: tuple[Image, ...]) -> bytes:
        parts: list[bytes] = []
        for image in images:
            encoded = encode_image(image, self._blobs)
            parts.append(
                encode({"type": "image_url", "image_url": {"url": encoded.url}})
                if encoded
                else encode({"type": "text", "text": IMAGE_UNAVAILABLE})
            )
        return b",".join(parts)

    def _assistant_message(self, message: AssistantMessage) -> bytes:
        text = None if is_blank(message.text) else message.text
        if text is None and not message.calls:
            return b""
        fields: dict[str, object] = {"role": "assistant", "content": text}
        if message.calls:
            records = [(part.text, record) for part in message.reasoning if (record := self._reasoning_of_host(part))]
            extras = self._call_extras([record for _, record in records])
            fields["tool_calls"] = [_tool_call(call) | extras.get(n, {}) for n, call in enumerate(message.calls)]
            fields.update(self._reasoning_fields(records))
        return encode(fields)

    def _reasoning_of_host(self, part: Reasoning) -> ReasoningRecord | None:
        """The record of this part if this host sent it; another host cannot use it."""
        record = decode_opaque(part, WIRE, _decode_record)
        return record if record and record.host == self._host else None

    def _call_extras(self, records: list[ReasoningRecord]) -> dict[int, dict[str, object]]:
        """Signatures of single calls. Gemini refuses calls without a signature, but accepts this placeholder."""
        extras = {index: {"extra_content": extra} for record in records for index, extra in record.extras.items()}
        if not extras and self._host.endswith("googleapis.com"):
            return {0: {"extra_content": {"google": {"thought_signature": _NO_SIGNATURE}}}}
        return extras

    def _reasoning_fields(self, records: list[tuple[str, ReasoningRecord]]) -> dict[str, object]:
        """The reasoning to send back with calls, to the host it came from.

        DeepSeek and Kimi refuse a call of a thinking model without `reasoning_content`, which may be empty. OpenRouter
        passes `reasoning_details` to providers with signatures. No provider needs reasoning with plain text, and a
        server that never sent any may refuse it.
        """
        fields: dict[str, object] = {}
        for text, record in records:
            if record.field == "reasoning_content":
                fields["reasoning_content"] = text
            elif record.details:
                fields["reasoning_details"] = record.details
        return fields or ({"reasoning_content": ""} if self._needs_reasoning_content else {})


def _with_bridges(messages: list[bytes]) -> list[bytes]:
    """Mistral's models require an assistant message between results and a user message."""
    out: list[bytes] = []
    for message in messages:
        if message.startswith(b'{"role":"user"') and out and out[-1].startswith(b'{"role":"tool"'):
            out.append(_BRIDGE_MESSAGE)
        out.append(message)
    return out


def _user_message(user_parts: list[tuple[bytes, bytes]]) -> bytes:
    """One message of these texts and images, in order."""
    words: list[bytes] = []
    parts: list[bytes] = []
    for text, images in user_parts:
        if text:
            words.append(text)
        if images:
            parts += [_text_part(words), images] if words else [images]
            words = []
    if not parts:
        return b'{"role":"user","content":"' + _PARAGRAPH_BREAK.join(words) + b'"}'
    parts += [_text_part(words)] if words else []
    return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def _text_part(words: list[bytes]) -> bytes:
    return b'{"type":"text","text":"' + _PARAGRAPH_BREAK.join(words) + b'"}'


def _tool_call(call: Call) -> dict[str, object]:
    function = {"name": tool_name(call.tool), "arguments": encode(call_arguments(call)).decode()}
    return {"id": wire_id(call.id), "type": "function", "function": function}


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


_NORMAL_STOPS = {"stop", "tool_calls", "function_call", "tool_use", "end_turn", "eos"}
_CUT_REASONS = {"length": LENGTH_LIMIT, "max_tokens": LENGTH_LIMIT, "content_filter": "content filter"}


class _Function(Struct):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: object = None


class _Part(Struct):
    type: str = ""
    text: str | None = None
    thinking: object = None


class _Delta(Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: object = None
    reasoning_details: list[dict[str, object]] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatParser:
    """Parses the events of one reply, in order."""

    def __init__(self, emit: Emit, endpoint: ProviderEndpoint) -> None:
        self.builder = ReplyBuilder(emit)
        self.done = False
        self.complete = False
        self._endpoint = endpoint
        self._calls_by_index: dict[int, CallBuilder] = {}
        self._reasoning: dict[str, list[str]] = {}
        self._details: list[dict[str, object]] = []
        self._extras: dict[int, object] = {}

    def event(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = self.complete = True
            return
        self._add_chunk(data)

    def body(self, content: bytes) -> None:
        self._add_chunk(content)

    def finish(self) -> ReplyBuilder:
        for field, pieces in self._reasoning.items():
            is_replayed = field == "reasoning_content"
            opaque = msgspec.json.encode(ReasoningRecord(self._endpoint.host, field)).decode() if is_replayed else ""
            self.builder.add_reasoning(Reasoning("".join(pieces), WIRE, opaque))
        if self._details:
            self._add_record(ReasoningRecord(self._endpoint.host, "reasoning_details", join_details(self._details)))
        if self._extras:
            self._add_record(ReasoningRecord(self._endpoint.host, "extra_content", extras=self._extras))
        return self.builder

    def _add_record(self, record: ReasoningRecord) -> None:
        self.builder.add_reasoning(Reasoning("", WIRE, msgspec.json.encode(record).decode()))

    def _add_chunk(self, data: bytes) -> None:
        chunk = decode_response(_decode_chunk, data, self._endpoint, "chat completion")
        if chunk.error:
            raise failure_in_stream(self._endpoint, chunk.error)
        if chunk.usage:
            self.builder.set_usage(_usage_of(chunk.usage))
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        delta = choice.delta or choice.message
        if delta:
            self._add_delta(delta)
        if choice.finish_reason:
            self._set_finish_reason(choice.finish_reason)

    def _set_finish_reason(self, reason: str) -> None:
        if reason == "error":
            raise malformed_response(self._endpoint, "an error in the middle of its reply")
        self.complete = True
        if reason not in _NORMAL_STOPS:
            self.builder.set_cut(_CUT_REASONS.get(reason, reason))

    def _add_delta(self, delta: _Delta) -> None:
        if delta.reasoning_content:
            self._add_reasoning("reasoning_content", delta.reasoning_content)
        elif isinstance(delta.reasoning, str) and delta.reasoning:
            self._add_reasoning("reasoning", delta.reasoning)
        if delta.reasoning_details:
            self._details += delta.reasoning_details
        if isinstance(delta.content, str):
            self.builder.add_text(delta.content)
        elif delta.content:
            self._add_parts(delta.content)
        if delta.refusal:
            self.builder.add_text(delta.refusal)
            self.builder.set_cut(self.builder.cut or "refusal")
        for call in delta.tool_calls or ():
            self._add_call(call)

    def _add_parts(self, parts: list[_Part]) -> None:
        for part in parts:
            if part.type == "thinking":
                self._add_reasoning("reasoning", _thinking_text(part.thinking))
            elif part.text:
                self.builder.add_text(part.text)

    def _add_reasoning(self, field: str, text: str) -> None:
        self._reasoning.setdefault(field, []).append(text)
        self.builder.emit_reasoning(text)

    def _add_call(self, delta: _Call) -> None:
        function = delta.function or _Function()
        key, name = delta.id or "", function.name or ""
        slot = delta.index if delta.index is not None else max(self._calls_by_index, default=0)
        call = self._calls_by_index.get(slot)
        if call is None or _starts_next_call(call, key, name):
            call = self._calls_by_index[slot] = self.builder.start_call(name, key)
        elif name and not call.tool:
            call.set_tool(name)
        if delta.extra_content:
            self._extras[self.builder.calls.index(call)] = delta.extra_content
        arguments = function.arguments or ""
        call.add_arguments(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def _starts_next_call(call: CallBuilder, key: str, name: str) -> bool:
    """Whether a delta with the index of this call starts the next call.

    Some servers send complete calls one after the other, all with index 0 or none, and some with the same id. Others
    repeat id and name in every piece, so a repeated name starts a new call only once the arguments are complete.
    """
    if key and call.key and key != call.key:
        return True
    return bool(name and call.tool) and call.is_complete()


def _thinking_text(thinking: object) -> str:
    if isinstance(thinking, str):
        return thinking
    try:
        parts = msgspec.convert(thinking, list[_Part])
    except msgspec.ValidationError:
        return ""
    return "".join(part.text or "" for part in parts)


def join_details(details: list[dict[str, object]]) -> list[dict[str, object]]:
    """Streamed pieces of `reasoning_details` as complete blocks: texts of the same type and index are joined."""
    joined: list[dict[str, object]] = []
    for piece in details:
        last = joined[-1] if joined else None
        if last is None or (last.get("type"), last.get("index")) != (piece.get("type"), piece.get("index")):
            joined.append(dict(piece))
            continue
        for field, value in piece.items():
            before = last.get(field)
            if field in ("text", "summary", "data") and isinstance(before, str) and isinstance(value, str):
                last[field] = before + value
            elif value is not None:
                last[field] = value
    return joined


def _usage_of(usage: _Usage) -> Usage:
    input_details = usage.prompt_tokens_details or TokenDetails()
    output_details = usage.completion_tokens_details or TokenDetails()
    return Usage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cached=input_details.cached_tokens or usage.prompt_cache_hit_tokens or 0,
        written=input_details.cache_write_tokens or 0,
        reasoning=output_details.reasoning_tokens or 0,
    )


class ChatWire:
    """Chat Completions, configured for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, host = endpoint_url(choice.url or OPENAI_URL, "/chat/completions")
        self.endpoint = ProviderEndpoint(host, choice.model, choice.key)
        self._renderer = ChatRenderer(choice, host, blobs)

    def headers(self, replay: ReasoningReplay) -> dict[str, str]:
        return bearer_headers(self.endpoint.key)

    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt)

    def parser(self, emit: Emit) -> ChatParser:
        return ChatParser(emit, self.endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        return None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, ChatWire(choice, blobs))
