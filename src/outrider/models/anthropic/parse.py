"""A Messages stream (or its one JSON body) as a draft of a reply. Pure."""

import msgspec
from msgspec import Struct

from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.anthropic.render import WIRE
from outrider.models.draft import LENGTH, WINDOW, CallDraft, Draft
from outrider.models.errors import GARBAGE, Peer, failure_inside, garbled

_FINE = {"end_turn", "stop_sequence", "tool_use"}
_CUTS = {"max_tokens": LENGTH, "model_context_window_exceeded": WINDOW, "pause_turn": "paused"}


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


_event = msgspec.json.Decoder(_Event).decode
_message = msgspec.json.Decoder(_Message).decode


class _Thought:
    """A thinking block while it arrives."""

    def __init__(self, block: _Block) -> None:
        self.words = [block.thinking or ""]
        self.signature = block.signature or ""

    def reasoning(self) -> Reasoning:
        text = "".join(self.words)
        whole = {"type": "thinking", "thinking": text, "signature": self.signature}
        return Reasoning(text, WIRE, msgspec.json.encode(whole).decode())


class MessagesParser:
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: Peer) -> None:
        self.draft = Draft(emit)
        self.done = False
        self.complete = False
        self._peer = peer
        self._calls: dict[int, CallDraft] = {}
        self._thoughts: dict[int, _Thought] = {}
        self._kept: dict[int, Reasoning] = {}
        self._usage = _Usage()

    def event(self, name: str, data: bytes) -> None:
        try:
            event = _event(data)
        except GARBAGE as error:
            raise garbled(self._peer, f"what is no message event ({error})") from None
        match event.type or name:
            case "content_block_delta":
                self._add(event.index or 0, event.delta or _Delta())
            case "content_block_start":
                self._begin(event.index or 0, event.content_block or _Block())
            case "message_start":
                self._count(event.message.usage if event.message else None)
            case "message_delta":
                self._count(event.usage)
                self._stop(event.delta.stop_reason if event.delta else None)
            case "message_stop":
                self.done = self.complete = True
            case _:
                if event.error:
                    raise failure_inside(self._peer, event.error)

    def body(self, content: bytes) -> None:
        try:
            message = _message(content)
        except GARBAGE as error:
            raise garbled(self._peer, f"what is no message ({error})") from None
        if message.error:
            raise failure_inside(self._peer, message.error)
        if message.content is None:
            raise garbled(self._peer, "JSON that is no message")
        for index, block in enumerate(message.content):
            self._begin(index, block)
        self._count(message.usage)
        self._stop(message.stop_reason)
        self.done = self.complete = True

    def finish(self) -> Draft:
        kept = self._kept | {index: thought.reasoning() for index, thought in self._thoughts.items()}
        self.draft.reasoning = [kept[index] for index in sorted(kept)]
        self.draft.usage = _total(self._usage)
        return self.draft

    def _begin(self, index: int, block: _Block) -> None:
        match block.type:
            case "text":
                self.draft.pause()
                self.draft.say(block.text or "")
            case "thinking":
                self._thoughts[index] = _Thought(block)
                self.draft.think(block.thinking or "")
            case "redacted_thinking":
                whole = {"type": "redacted_thinking", "data": block.data or ""}
                self._kept[index] = Reasoning("", WIRE, msgspec.json.encode(whole).decode())
            case "tool_use":
                call = self._calls[index] = self.draft.begin_call(block.name or "")
                if block.input:
                    call.add(msgspec.json.encode(block.input).decode())
            case _:
                pass

    def _add(self, index: int, delta: _Delta) -> None:
        match delta.type:
            case "text_delta":
                self.draft.say(delta.text or "")
            case "input_json_delta":
                if index in self._calls:
                    self._calls[index].add(delta.partial_json or "")
            case "thinking_delta":
                self._thought(index).words.append(delta.thinking or "")
                self.draft.think(delta.thinking or "")
            case "signature_delta":
                self._thought(index).signature += delta.signature or ""
            case _:
                pass

    def _thought(self, index: int) -> _Thought:
        return self._thoughts.setdefault(index, _Thought(_Block()))

    def _stop(self, reason: str | None) -> None:
        if reason and reason not in _FINE:
            self.draft.cut = _CUTS.get(reason, reason)

    def _count(self, usage: _Usage | None) -> None:
        """Counts are cumulative: what comes later replaces, what is missing or zero stays as it was."""
        if usage is None:
            return
        for field in _Usage.__struct_fields__:
            value = getattr(usage, field)
            if value:
                setattr(self._usage, field, value)


def _total(usage: _Usage) -> Usage:
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
