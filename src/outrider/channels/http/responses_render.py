"""A turn as a response: its place in a journal, the object it is on the wire, and the events that tell of it. Pure.

An event's number follows from what is recorded, never from how it was streamed, so that a stream can be taken up
anywhere: a delta's number is where its text ends.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.channels.http.chat_models import OUTRIDER
from outrider.channels.http.chat_render import AGAIN, Progress, failure, wire_call
from outrider.channels.http.sse import event
from outrider.core.events import Entry, Event, Input, Reply, Result
from outrider.core.parts import Call, Usage
from outrider.core.plan import Bounds, State, fold

CREATED, BEGUN, ITEM, PART = range(4)
"""The numbers of a response's first events. The text follows, then what closes it, then the calls, then the end."""
_PER_CALL = 4
_ID = re.compile(r"resp_([0-9a-f]{32})_([0-9]{1,15})", re.ASCII)
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Point(Struct, frozen=True):
    """Where a response is asked for in a journal: its input, or the last result it goes on from."""

    seq: int
    address: str


def response_id(session: str, seq: int) -> str:
    """It leads back to the session. No secret: whoever asks must be the session's person."""
    return f"resp_{session}_{seq}"


def parse_response_id(id: str) -> tuple[str, int] | None:
    """`(session, seq)`, or None when it is not of ours."""
    found = _ID.fullmatch(id)
    return (found[1], int(found[2])) if found else None


def points(journal: Sequence[Entry]) -> list[Point]:
    """Where something was asked for, in order. A past that came along belongs to the input it came with."""
    found: dict[str, Point] = {}
    state = State()
    for entry in journal:
        body = entry.body
        key = ""
        if isinstance(body, Input) and body.source == "person":
            key = f"input {body.address or entry.seq}"
        elif isinstance(body, Result) and not body.failed and _is_lent(state, body.call):
            key = f"results {state.saw}"
        state = fold((entry,), state)
        if key:
            found.pop(key, None)
            found[key] = Point(entry.seq, state.address)
    return list(found.values())


def _is_lent(state: State, call: str) -> bool:
    return any(one.id == call and one.tool in state.lent for one in state.calls)


class Frame(Struct, frozen=True):
    """One response: what of it never changes."""

    session: str
    entry: Entry
    state: State
    """As of that entry."""
    bounds: Bounds

    @property
    def id(self) -> str:
        return response_id(self.session, self.entry.seq)

    def progress(self, *, is_live: bool = False) -> Progress:
        return Progress(self.entry.seq, self.state, self.bounds, is_live=is_live)

    def render(self, status: str, **more: Any) -> dict[str, Any]:
        settings = self.state.settings
        tools = [
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.schema,
                "strict": False,
            }
            for spec in self.state.lent.values()
        ]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.entry.at // 1000,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": settings.get("instructions") or None,
            "metadata": {},
            "model": settings.get("model") or OUTRIDER,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
            "usage": None,
            **more,
        }

    def so_far(self, progress: Progress, *, is_begun: bool = True) -> dict[str, Any]:
        """The response as it is after these entries."""
        if not progress.is_over:
            more = {"output": [self.message(progress.text, "in_progress")]} if progress.text else {}
            return self.render("in_progress" if is_begun else "queued", **more)
        status, more = _outcome(progress)
        output = [self.message(progress.text, _item_status(status))] if progress.text else []
        output += [self.call(call) for call in progress.calls]
        return self.render(status, output=output, usage=_usage(progress.usage), **more)

    def message(self, text: str, status: str) -> dict[str, Any]:
        content = [_text(text)] if text else []
        return {"id": self.item, "type": "message", "role": "assistant", "status": status, "content": content}

    @property
    def item(self) -> str:
        return f"msg_{self.session}_{self.entry.seq}"

    def input_items(self, journal: Sequence[Entry]) -> list[dict[str, Any]]:
        """What was handed in: its words, after the results that came with them. Pictures are not told again."""
        seq, items = self.entry.seq, list[dict[str, Any]]()
        tools = {call.id: call.tool for one in journal if isinstance(one.body, Reply) for call in one.body.calls}
        if isinstance(body := self.entry.body, Input):
            content = [{"type": "input_text", "text": body.text}]
            items.append({"id": f"msg_{self.session}_{seq}_in", "type": "message", "role": "user", "content": content})
            seq -= 1
        while seq and isinstance(body := journal[seq - 1].body, Result):
            if not body.failed and tools.get(body.call) in self.state.lent:
                id, call = f"fco_{self.session}_{body.call}", wire_call(self.session, body.call)
                items.insert(0, {"id": id, "type": "function_call_output", "call_id": call, "output": body.text})
            seq -= 1
        return items

    def call(self, call: Call) -> dict[str, Any]:
        return {
            "id": f"fc_{self.session}_{call.id}",
            "type": "function_call",
            "status": "completed",
            "call_id": wire_call(self.session, call.id),
            "name": call.tool,
            "arguments": call.broken or msgspec.json.encode(call.args).decode(),
        }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_status(status: str) -> str:
    return "completed" if status == "completed" else "incomplete"


def _outcome(progress: Progress) -> tuple[str, dict[str, Any]]:
    ended = progress.ended
    if ended and ended.outcome == "interrupted":
        return "cancelled", {}
    if ended and ended.outcome != "done":
        return "failed", {"error": {"code": "server_error", "message": str(failure(ended))}}
    if reason := _REASONS.get(progress.finish):
        return "incomplete", {"incomplete_details": {"reason": reason}}
    return "completed", {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


class Telling:
    """A response as events, without those up to the number `after`."""

    def __init__(self, frame: Frame, *, is_live: bool, after: int = -1) -> None:
        self.number = after
        """The last event the client has."""
        self._frame = frame
        self._live = frame.progress(is_live=is_live)
        self._record = frame.progress()
        """Entries alone: what a stream that is taken up later is told from."""
        self._told = 0
        """Characters of the text that are told, here or before."""
        self._is_torn = False
        """Whether words were told that are not in the record: then only what closes the text tells the rest."""

    @property
    def is_over(self) -> bool:
        return self._record.is_over

    def begin(self) -> Iterator[bytes]:
        response = self._frame.render("in_progress")
        yield from self._tell(CREATED, "response.created", response=response)
        yield from self._tell(BEGUN, "response.in_progress", response=response)

    def take(self, happened: Event) -> Iterator[bytes]:
        if isinstance(happened, Entry):
            self._record.take(happened)
        if not self._is_torn:
            piece = self._live.take(happened)
            self._is_torn = piece.is_new_start
            if self._is_torn:
                yield AGAIN.encode()
            else:
                yield from self._words(piece.text)
        if self.is_over:
            yield from self._close()

    def _words(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        if not self._told:
            yield from self._open()
        start = max(0, self.number - PART - self._told)  # what an earlier stream has told of this piece
        self._told += len(text)
        yield from self._tell(
            PART + self._told, "response.output_text.delta", **self._place, delta=text[start:], logprobs=[]
        )

    def _open(self) -> Iterator[bytes]:
        item = self._frame.message("", "in_progress")
        yield from self._tell(ITEM, "response.output_item.added", output_index=0, item=item)
        yield from self._tell(PART, "response.content_part.added", **self._place, part=_text(""))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._frame.item, "output_index": 0, "content_index": 0}

    def _close(self) -> Iterator[bytes]:
        response, text = self._frame.so_far(self._record), self._record.text
        number = PART + len(text) + 1
        output: list[dict[str, Any]] = response["output"]
        if text:
            yield from self._tell(number, "response.output_text.done", **self._place, text=text, logprobs=[])
            yield from self._tell(number + 1, "response.content_part.done", **self._place, part=_text(text))
            yield from self._tell(number + 2, "response.output_item.done", output_index=0, item=output[0])
        number += 3
        for index, item in enumerate(output):
            if item["type"] == "function_call":
                yield from self._call(number, index, item)
                number += _PER_CALL
        kind = {"completed": "completed", "failed": "failed"}.get(response["status"], "incomplete")
        yield from self._tell(number, f"response.{kind}", response=response)

    def _call(self, number: int, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        written = item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield from self._tell(number, "response.output_item.added", output_index=index, item=begun)
        yield from self._tell(number + 1, "response.function_call_arguments.delta", **place, delta=written)
        yield from self._tell(
            number + 2, "response.function_call_arguments.done", **place, name=item["name"], arguments=written
        )
        yield from self._tell(number + 3, "response.output_item.done", output_index=index, item=item)

    def _tell(self, number: int, kind: str, **fields: Any) -> Iterator[bytes]:
        if self._is_torn:
            number = max(number, self.number + 1)
        if number > self.number:
            self.number = number
            yield event(msgspec.json.encode({"type": kind, "sequence_number": number, **fields}), name=kind)
