"""The wire most providers and local servers speak: OpenAI's chat completions.

A prompt as a chat completions request. Pure.

Person messages that follow each other become one, since many servers insist that roles alternate.

A chat completions stream (or its one JSON body) as a draft of a reply. Pure, and patient with servers' dialects.
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

WIRE = "openai-chat"
_PARAGRAPH_BREAK = rb"\n\n"
_NEED_REASONING_CONTENT = ("deepseek", "moonshot", "kimi")
_NEED_BRIDGE = ("mistral", "ministral", "devstral", "codestral", "magistral", "pixtral")
_BRIDGE_MESSAGE = b'{"role":"assistant","content":"[I have seen the results.]"}'
_NO_SIGNATURE = "skip_thought_signature_validator"


class ReasoningRecord(Struct, omit_defaults=True):
    """What is kept of a reply's reasoning: who sent it, under which field, and what else came with it."""

    host: str
    field: str
    """`reasoning_content`, `reasoning_details` or `extra_content`."""
    details: list[dict[str, object]] = []
    extras: dict[int, object] = {}
    """By the place of the call it came with."""


class ChatPiece(NamedTuple):
    """One message, rendered: whole messages, or words and pictures still to be joined with their neighbours'."""

    whole: bytes = b""
    text: bytes = b""
    """The inside of a JSON string."""
    images: bytes = b""
    """Content parts, joined by commas."""

    @property
    def size(self) -> int:
        return len(self.whole) + len(self.text) + len(self.images)


class ChatRenderer:
    """Renders prompts for one model of one host."""

    def __init__(self, choice: ModelChoice, host: str, blobs: Blobs) -> None:
        self._choice = choice
        self._host = host
        self._blobs = blobs
        known_as = f"{host} {choice.model}".lower()
        self._needs_reasoning_content = any(name in known_as for name in _NEED_REASONING_CONTENT)
        self._needs_bridge = any(name in known_as for name in _NEED_BRIDGE)
        self._cache = RenderCache(self._piece, lambda piece: piece.size)
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def render(self, prompt: Prompt) -> bytes:
        fields = [
            b'"model":' + encode(self._choice.model),
            b'"messages":[' + b",".join(_system_message(prompt) + self._messages(prompt)) + b"]",
            b'"stream":true',
        ]
        if not self._host.endswith("mistral.ai"):
            # Mistral tells the usage unasked, and refuses to be asked.
            fields.append(b'"stream_options":{"include_usage":true}')
        if prompt.tools:
            fields.append(b'"tools":' + self._tool_list(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning_effort":' + encode(self._choice.effort))
        if self._choice.max_output_tokens:
            # OpenAI's own reasoning models refuse the older name, most other servers know nothing else.
            own = self._host.endswith(("api.openai.com", ".azure.com"))
            fields.append(
                b'"%s":%d' % (b"max_completion_tokens" if own else b"max_tokens", self._choice.max_output_tokens)
            )
        return b"{" + b",".join(fields) + b"}"

    def _messages(self, prompt: Prompt) -> list[bytes]:
        out: list[bytes] = []
        asked: list[tuple[bytes, bytes]] = []
        get = self._cache.get
        for message in prompt.messages:
            whole, text, seen = get(message)
            if whole:
                if asked or not out:
                    out.append(_user_message(asked or [(encode(SESSION_START)[1:-1], b"")]))
                    asked = []
                out.append(whole)
            if text or seen:
                asked.append((text, seen))
        last = prompt.tail or ("" if asked or _ends_with_results(prompt) else CONTINUE)
        if last:
            asked.append((encode(last)[1:-1], b""))
        if asked:
            out.append(_user_message(asked))
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
                # A tool message holds words only, so its pictures follow as the person's.
                seen = self._image_parts(tuple(image for result in results for image in result.images))
                return ChatPiece(outputs, encode(TOOL_IMAGE)[1:-1] if seen else b"", seen)

    def _image_parts(self, images: tuple[Image, ...]) -> bytes:
        parts: list[bytes] = []
        for image in images:
            found = encode_image(image, self._blobs)
            part = (
                {"type": "image_url", "image_url": {"url": found.url}}
                if found
                else {"type": "text", "text": IMAGE_UNAVAILABLE}
            )
            parts.append(encode(part))
        return b",".join(parts)

    def _assistant_message(self, message: AssistantMessage) -> bytes:
        said = None if is_blank(message.text) else message.text
        if said is None and not message.calls:
            return b""
        fields: dict[str, object] = {"role": "assistant", "content": said}
        if message.calls:
            thoughts = [
                (part.text, thought) for part in message.reasoning if (thought := self._reasoning_of_host(part))
            ]
            extras = self._call_extras([thought for _, thought in thoughts])
            fields["tool_calls"] = [_tool_call(call) | extras.get(n, {}) for n, call in enumerate(message.calls)]
            fields.update(self._reasoning_fields(thoughts))
        return encode(fields)

    def _reasoning_of_host(self, part: Reasoning) -> ReasoningRecord | None:
        """What this host sent; reasoning of another is of no use to it."""
        if part.wire != WIRE or not part.opaque:
            return None
        try:
            thought = msgspec.json.decode(part.opaque, type=ReasoningRecord)
        except msgspec.DecodeError:
            return None
        return thought if thought.host == self._host else None

    def _call_extras(self, thoughts: list[ReasoningRecord]) -> dict[int, dict[str, object]]:
        """Signatures that came with single calls. Gemini refuses calls without one, save for this stand-in."""
        found = {at: {"extra_content": extra} for thought in thoughts for at, extra in thought.extras.items()}
        if not found and self._host.endswith("googleapis.com"):
            return {0: {"extra_content": {"google": {"thought_signature": _NO_SIGNATURE}}}}
        return found

    def _reasoning_fields(self, thoughts: list[tuple[str, ReasoningRecord]]) -> dict[str, object]:
        """The reasoning to send back beside calls.

        DeepSeek and Kimi refuse a call of a thinking model without its `reasoning_content`, even an empty one;
        OpenRouter hands `reasoning_details` on to providers with signatures. Nobody needs it beside plain text, and
        servers that never sent it may refuse it: so it goes back beside calls, to the host it came from, only.
        """
        fields: dict[str, object] = {}
        for text, thought in thoughts:
            if thought.field == "reasoning_content":
                fields["reasoning_content"] = text
            elif thought.details:
                fields["reasoning_details"] = thought.details
        return fields or ({"reasoning_content": ""} if self._needs_reasoning_content else {})

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, encode([_tool_definition(tool) for tool in tools]))
        return self._tools[1]


def _system_message(prompt: Prompt) -> list[bytes]:
    return [] if is_blank(prompt.system) else [encode({"role": "system", "content": prompt.system})]


def _ends_with_results(prompt: Prompt) -> bool:
    return bool(prompt.messages) and isinstance(prompt.messages[-1], ToolMessage)


def _with_bridges(messages: list[bytes]) -> list[bytes]:
    """Mistral's models want a word of their own between results and the person's words."""
    out: list[bytes] = []
    for message in messages:
        if message.startswith(b'{"role":"user"') and out and out[-1].startswith(b'{"role":"tool"'):
            out.append(_BRIDGE_MESSAGE)
        out.append(message)
    return out


def _user_message(asked: list[tuple[bytes, bytes]]) -> bytes:
    """One message of all these words and pictures, in their order."""
    words: list[bytes] = []
    parts: list[bytes] = []
    for text, pictures in asked:
        if text:
            words.append(text)
        if pictures:
            parts += [_text_part(words), pictures] if words else [pictures]
            words = []
    if not parts:
        return b'{"role":"user","content":"' + _PARAGRAPH_BREAK.join(words) + b'"}'
    parts += [_text_part(words)] if words else []
    return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def _text_part(words: list[bytes]) -> bytes:
    return b'{"type":"text","text":"' + _PARAGRAPH_BREAK.join(words) + b'"}'


def _tool_call(call: Call) -> dict[str, object]:
    written = {"name": tool_name(call.tool), "arguments": encode(call_arguments(call)).decode()}
    return {"id": wire_id(call.id), "type": "function", "function": written}


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": described}


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


class _InputDetails(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatParser:
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: ProviderEndpoint) -> None:
        self.builder = ReplyBuilder(emit)
        self.done = False
        """Nothing more will come."""
        self.complete = False
        """The reply may end here."""
        self._endpoint = peer
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
        """The whole draft, the reasoning put where it can be replayed from."""
        for field, pieces in self._reasoning.items():
            keeps = field == "reasoning_content"
            opaque = msgspec.json.encode(ReasoningRecord(self._endpoint.host, field)).decode() if keeps else ""
            self.builder.reasoning.append(Reasoning("".join(pieces), WIRE, opaque))
        if self._details:
            self._add_record(ReasoningRecord(self._endpoint.host, "reasoning_details", join_details(self._details)))
        if self._extras:
            self._add_record(ReasoningRecord(self._endpoint.host, "extra_content", extras=self._extras))
        return self.builder

    def _add_record(self, thought: ReasoningRecord) -> None:
        self.builder.reasoning.append(Reasoning("", WIRE, msgspec.json.encode(thought).decode()))

    def _add_chunk(self, data: bytes) -> None:
        try:
            chunk = _decode_chunk(data)
        except DECODE_ERRORS as error:
            raise malformed_response(self._endpoint, f"what is no chat completion ({error})") from None
        if chunk.error:
            raise failure_in_stream(self._endpoint, chunk.error)
        if chunk.usage:
            self.builder.usage = _usage_of(chunk.usage)
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
            self.builder.cut = _CUT_REASONS.get(reason, reason)

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
            self.builder.cut = self.builder.cut or "refusal"
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
            call.tool = name
        if delta.extra_content:
            self._extras[self.builder.calls.index(call)] = delta.extra_content
        written = function.arguments
        call.add_arguments(
            written if isinstance(written, str) else msgspec.json.encode(written).decode() if written else ""
        )


def _starts_next_call(call: CallBuilder, key: str, name: str) -> bool:
    """Whether a delta at the place of this call begins the next one.

    Some servers send whole calls one after the other, all at index 0 or at none, and some give all the same id.
    Others repeat id and name with every piece, so a repeated name alone says nothing until the arguments are whole.
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
    """Streamed pieces of `reasoning_details` as whole blocks: text of the same type and index is one text."""
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
    read, wrote = usage.prompt_tokens_details or _InputDetails(), usage.completion_tokens_details or _OutputDetails()
    return Usage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cached=read.cached_tokens or usage.prompt_cache_hit_tokens or 0,
        written=read.cache_write_tokens or 0,
        reasoning=wrote.reasoning_tokens or 0,
    )


_DEFAULT_URL = "https://api.openai.com/v1"


class ChatWire:
    """Chat completions, set up for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, self.host = endpoint_url(choice.url or _DEFAULT_URL, "/chat/completions")
        self._key = choice.key
        self._endpoint = ProviderEndpoint(self.host, choice.model, choice.key)
        self._renderer = ChatRenderer(choice, self.host, blobs)

    def headers(self, past: ReasoningReplay) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        return {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"} | key

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt)

    def parser(self, emit: Emit) -> ChatParser:
        return ChatParser(emit, self._endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        return None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, ChatWire(choice, blobs))
