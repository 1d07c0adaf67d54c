"""A chat completions stream (or its one JSON body) as a draft of a reply. Pure, and patient with servers' dialects."""

import msgspec
from msgspec import Struct

from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.draft import LENGTH_LIMIT, CallBuilder, ReplyBuilder
from outrider.models.errors import DECODE_ERRORS, ProviderEndpoint, failure_in_stream, malformed_response
from outrider.models.openai_chat.render import WIRE, ReasoningRecord

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
