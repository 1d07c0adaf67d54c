"""A Responses stream (or its one JSON body) as a draft of a reply: finished items are the truth, deltas hints. Pure."""

import msgspec
from msgspec import Struct

from outrider.core.events import Delta
from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Emit
from outrider.models.draft import LENGTH, CallDraft, Draft
from outrider.models.errors import GARBAGE, Peer, failure_inside, garbled
from outrider.models.openai_responses.render import WIRE, Phase, ReasoningItem

_CUTS = {"max_output_tokens": LENGTH, "content_filter": "content filter"}
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


_event = msgspec.json.Decoder(_Event).decode
_response = msgspec.json.Decoder(_Response).decode


class ResponsesParser:
    """Takes the events of one reply in order."""

    def __init__(self, emit: Emit, peer: Peer) -> None:
        self._emit = emit
        # Deltas go straight to the reader; the draft is filled from finished items, silently.
        self.draft = Draft(lambda _: None)
        self.done = False
        self.complete = False
        self._peer = peer
        self._items: dict[int, _Item] = {}
        self._spoke_at: int | None = None

    def event(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            return
        try:
            event = _event(data)
        except GARBAGE as error:
            raise garbled(self._peer, f"what is no response event ({error})") from None
        kind = event.type or name
        if kind == "error" or event.error:
            raise failure_inside(self._peer, event.error or {"message": event.message, "code": event.code})
        self._take(kind, event)

    def body(self, content: bytes) -> None:
        try:
            response = _response(content)
        except GARBAGE as error:
            raise garbled(self._peer, f"what is no response ({error})") from None
        if response.output is None and not response.error:
            raise garbled(self._peer, "JSON that is no response")
        self._end(response)

    def finish(self) -> Draft:
        return self.draft

    def _take(self, kind: str, event: _Event) -> None:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._show(event)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._emit(Delta(str(event.delta or ""), "reasoning"))
            case "response.output_item.added":
                if event.item and event.item.type == "function_call":
                    self._emit(Delta(event.item.name or "", "call"))
            case "response.output_item.done":
                if event.item:
                    self._items[self._place(event)] = event.item
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._end(event.response or _Response())
            case _:
                pass

    def _place(self, event: _Event) -> int:
        return event.output_index if event.output_index is not None else len(self._items)

    def _show(self, event: _Event) -> None:
        if not isinstance(event.delta, str) or not event.delta:
            return
        at = event.output_index or 0
        gap = "\n\n" if self._spoke_at not in (None, at) else ""
        self._spoke_at = at
        self._emit(Delta(gap + event.delta))

    def _end(self, response: _Response) -> None:
        if response.error or response.status in ("failed", "cancelled"):
            raise failure_inside(self._peer, response.error or f"the response {response.status}")
        if response.status in _UNFINISHED:
            raise garbled(self._peer, "a response that is not finished")
        items = [self._items[index] for index in sorted(self._items)] or response.output or []
        for item in items:
            self._add(item)
        if response.usage:
            self.draft.usage = _usage(response.usage)
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            self.draft.cut = _CUTS.get(reason or "", reason or "incomplete")
        self.done = self.complete = True

    def _add(self, item: _Item) -> None:
        match item.type:
            case "message":
                self._add_message(item)
            case "function_call":
                call: CallDraft = self.draft.begin_call(item.name or "")
                written = item.arguments
                call.add(written if isinstance(written, str) else msgspec.json.encode(written or {}).decode())
            case "reasoning":
                self._add_reasoning(item)
            case _:
                pass

    def _add_message(self, item: _Item) -> None:
        self.draft.pause()
        for part in item.content or ():
            self.draft.say(part.text or part.refusal or "")
            if part.refusal:
                self.draft.cut = "refusal"
        if item.phase:
            self.draft.reasoning.append(Reasoning("", WIRE, msgspec.json.encode(Phase(item.phase)).decode()))

    def _add_reasoning(self, item: _Item) -> None:
        summary = item.summary or []
        told = [part["text"] for part in summary if isinstance(part.get("text"), str)]
        text = "\n\n".join(str(part) for part in told) or "".join(part.text or "" for part in item.content or ())
        # Without its encrypted content an item is known to nobody, since nothing is stored.
        keeps = item.id and item.encrypted_content
        whole = ReasoningItem(item.id or "", item.encrypted_content or "", summary)
        if keeps or text:
            self.draft.reasoning.append(Reasoning(text, WIRE, msgspec.json.encode(whole).decode() if keeps else ""))


def _usage(usage: _Usage) -> Usage:
    read, wrote = usage.input_tokens_details or _InputDetails(), usage.output_tokens_details or _OutputDetails()
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cached=read.cached_tokens or 0,
        written=read.cache_write_tokens or 0,
        reasoning=wrote.reasoning_tokens or 0,
    )
