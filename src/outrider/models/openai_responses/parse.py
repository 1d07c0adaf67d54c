"""A Responses stream (or its one JSON body) as a draft of a reply: finished items are the truth, deltas hints. Pure."""

import msgspec
from msgspec import Struct

from outrider.core.events import Delta
from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.draft import LENGTH_LIMIT, CallBuilder, ReplyBuilder
from outrider.models.errors import DECODE_ERRORS, ProviderEndpoint, failure_in_stream, malformed_response
from outrider.models.openai_responses.render import WIRE, MessagePhase, ReasoningItem

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
