"""A chat completions stream (or its one JSON body) as a draft of a reply. Pure, and patient with servers' dialects."""

import msgspec
from msgspec import Struct

from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.draft import LENGTH, CallDraft, Draft
from outrider.models.errors import GARBAGE, Peer, failure_inside, garbled
from outrider.models.openai_chat.render import WIRE, Thought

_FINE = {"stop", "tool_calls", "function_call", "tool_use", "end_turn", "eos"}
_CUTS = {"length": LENGTH, "max_tokens": LENGTH, "content_filter": "content filter"}


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


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatParser:
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: Peer) -> None:
        self.draft = Draft(emit)
        self.done = False
        """Nothing more will come."""
        self.complete = False
        """The reply may end here."""
        self._peer = peer
        self._slots: dict[int, CallDraft] = {}
        self._thoughts: dict[str, list[str]] = {}
        self._details: list[dict[str, object]] = []
        self._extras: dict[int, object] = {}

    def event(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = self.complete = True
            return
        self._take(data)

    def body(self, content: bytes) -> None:
        self._take(content)

    def finish(self) -> Draft:
        """The whole draft, the reasoning put where it can be replayed from."""
        for field, pieces in self._thoughts.items():
            keeps = field == "reasoning_content"
            opaque = msgspec.json.encode(Thought(self._peer.host, field)).decode() if keeps else ""
            self.draft.reasoning.append(Reasoning("".join(pieces), WIRE, opaque))
        if self._details:
            self._keep(Thought(self._peer.host, "reasoning_details", join_details(self._details)))
        if self._extras:
            self._keep(Thought(self._peer.host, "extra_content", extras=self._extras))
        return self.draft

    def _keep(self, thought: Thought) -> None:
        self.draft.reasoning.append(Reasoning("", WIRE, msgspec.json.encode(thought).decode()))

    def _take(self, data: bytes) -> None:
        try:
            chunk = _decode(data)
        except GARBAGE as error:
            raise garbled(self._peer, f"what is no chat completion ({error})") from None
        if chunk.error:
            raise failure_inside(self._peer, chunk.error)
        if chunk.usage:
            self.draft.usage = _usage(chunk.usage)
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        delta = choice.delta or choice.message
        if delta:
            self._add(delta)
        if choice.finish_reason:
            self._end(choice.finish_reason)

    def _end(self, reason: str) -> None:
        if reason == "error":
            raise garbled(self._peer, "an error in the middle of its reply")
        self.complete = True
        if reason not in _FINE:
            self.draft.cut = _CUTS.get(reason, reason)

    def _add(self, delta: _Delta) -> None:
        if delta.reasoning_content:
            self._think("reasoning_content", delta.reasoning_content)
        elif isinstance(delta.reasoning, str) and delta.reasoning:
            self._think("reasoning", delta.reasoning)
        if delta.reasoning_details:
            self._details += delta.reasoning_details
        if isinstance(delta.content, str):
            self.draft.say(delta.content)
        elif delta.content:
            self._add_parts(delta.content)
        if delta.refusal:
            self.draft.say(delta.refusal)
            self.draft.cut = self.draft.cut or "refusal"
        for call in delta.tool_calls or ():
            self._add_call(call)

    def _add_parts(self, parts: list[_Part]) -> None:
        for part in parts:
            if part.type == "thinking":
                self._think("reasoning", _words(part.thinking))
            elif part.text:
                self.draft.say(part.text)

    def _think(self, field: str, text: str) -> None:
        self._thoughts.setdefault(field, []).append(text)
        self.draft.think(text)

    def _add_call(self, delta: _Call) -> None:
        function = delta.function or _Function()
        key, name = delta.id or "", function.name or ""
        slot = delta.index if delta.index is not None else max(self._slots, default=0)
        call = self._slots.get(slot)
        if call is None or _is_another(call, key, name):
            call = self._slots[slot] = self.draft.begin_call(name, key)
        elif name and not call.tool:
            call.tool = name
        if delta.extra_content:
            self._extras[self.draft.calls.index(call)] = delta.extra_content
        written = function.arguments
        call.add(written if isinstance(written, str) else msgspec.json.encode(written).decode() if written else "")


def _is_another(call: CallDraft, key: str, name: str) -> bool:
    """Whether a delta at the place of this call begins the next one.

    Some servers send whole calls one after the other, all at index 0 or at none, and some give all the same id.
    Others repeat id and name with every piece, so a repeated name alone says nothing until the arguments are whole.
    """
    if key and call.key and key != call.key:
        return True
    return bool(name and call.tool) and call.is_whole()


def _words(thinking: object) -> str:
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


def _usage(usage: _Usage) -> Usage:
    read, wrote = usage.prompt_tokens_details or _InputDetails(), usage.completion_tokens_details or _OutputDetails()
    return Usage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cached=read.cached_tokens or usage.prompt_cache_hit_tokens or 0,
        written=read.cache_write_tokens or 0,
        reasoning=wrote.reasoning_tokens or 0,
    )
