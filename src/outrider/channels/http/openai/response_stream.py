"""The event stream of a response, which can be resumed after any of its events. Pure.

The number of an event follows from the text up to it, not from how the text arrived: its position, a checksum of the
text, and check bits. So a client that received text which was then not recorded is noticed when it resumes, and a
number that was never sent is refused.
"""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from outrider.channels.http.openai.response_object import ResponseBuilder, text_part
from outrider.channels.http.sse import format_event
from outrider.core.events import Ended, Entry, Event, Reply

CREATED, BEGUN, ITEM, PART = range(4)
"""Positions of the first events. The text follows, then its end, then the calls, then the end of the response."""
PER_CALL = 4
CHECK_BITS = 6
"""The lowest bits of a number, which follow from the others."""
CHECKSUM_BITS = 12
"""The bits above them, a checksum of the text."""
POSITION_SHIFT = CHECKSUM_BITS + CHECK_BITS
"""The bits below the position."""
RETRACTED_SHIFT = 44
"""The bits below the count of retracted messages."""
MAX_NUMBER = (1 << 53) - 1
"""The largest number that every JSON parser reads exactly."""
MAX_PIECE_CHARS = 64
"""Of one text delta."""


def split_text(text: str) -> Iterator[str]:
    """The text in deltas, the same however it arrived. A last, unfinished one is left out."""
    start = 0
    for at in range(1, len(text)):
        is_next_word = text[at - 1].isspace() and not text[at].isspace()
        if is_next_word or at - start == MAX_PIECE_CHARS:
            yield text[start:at]
            start = at


def is_valid_number(number: int) -> bool:
    """Whether an event can have this number: its check bits fit. Numbers before any text need none."""
    return number < ITEM << POSITION_SHIFT or _with_check_bits(number >> CHECK_BITS) == number


def _with_check_bits(number: int) -> int:
    return number << CHECK_BITS | number * 0x9E3779B97F4A7C15 >> 58 & ((1 << CHECK_BITS) - 1)


class DivergedStream(Exception):
    """The last event that the client has is not one of this stream."""


class ResponseStream:
    """A response as events, without those up to the number `after`.

    Text is sent as the model writes it. When a client turns out to have received other text than was recorded, that
    message is retracted: ended as empty and incomplete. The next message has the recorded text from the beginning.
    """

    def __init__(self, builder: ResponseBuilder, *, is_live: bool, after: int = -1) -> None:
        self.number = after
        """The last event the client has."""
        self._builder = builder
        self._live = builder.turn_output(is_live=is_live)
        self._record = builder.turn_output()
        """The output from entries alone, as a resumed stream has it."""
        self._replies: list[str] = []
        """The recorded text, reply by reply."""
        self._pending_text = ""
        """Text that is not a whole delta yet."""
        self._sent_chars, self._checksum = 0, 0
        """How much of the text was sent, here or before, and its checksum."""
        self._retracted = max(0, after) >> RETRACTED_SHIFT
        """How many messages were retracted for this client."""
        self._sends_recorded_only = self._retracted > 0
        self._is_in_sync = after < 0
        """Whether the client's last event has been passed."""

    @property
    def is_over(self) -> bool:
        return self._record.is_over

    def begin(self) -> Iterator[bytes]:
        response = self._builder.render("in_progress")
        yield from self._emit(CREATED, "response.created", response=response)
        yield from self._emit(BEGUN, "response.in_progress", response=response)
        yield from self._retract()

    def add(self, event: Event) -> Iterator[bytes]:
        recorded = self._record.add(event).text if isinstance(event, Entry) else ""
        if recorded:
            self._replies.append(recorded)
        text = recorded if self._sends_recorded_only else self._live.add(event).text
        is_final = isinstance(event, Entry) and isinstance(event.body, Reply | Ended)
        try:
            if is_final and not self._sends_recorded_only and self._live.text != self._record.text:
                raise DivergedStream
            yield from self._add_text(text, is_whole=is_final)
            yield from self._close()
        except DivergedStream:
            yield from self._restart()
            yield from self._close()

    def _restart(self) -> Iterator[bytes]:
        self._is_in_sync = self._sends_recorded_only = True
        self._pending_text, self._sent_chars, self._checksum = "", 0, 0
        if self._has_message:
            self._retracted += 1
            yield from self._retract()
        for text in self._replies:
            yield from self._add_text(text, is_whole=True)

    @property
    def _has_message(self) -> bool:
        """Whether the client has a message that was not retracted."""
        return self.number & ((1 << RETRACTED_SHIFT) - 1) >= ITEM << POSITION_SHIFT if self.number >= 0 else False

    def _retract(self) -> Iterator[bytes]:
        if self._retracted:
            item = self._builder.render_message("", "incomplete", self._retracted - 1)
            yield from self._emit(CREATED, "response.output_item.done", output_index=self._retracted - 1, item=item)

    def _add_text(self, text: str, *, is_whole: bool) -> Iterator[bytes]:
        text, start = self._pending_text + text, self._sent_chars
        for piece in split_text(text):
            yield from self._emit_delta(piece)
        self._pending_text = text[self._sent_chars - start :]
        if is_whole and self._pending_text:
            yield from self._emit_delta(self._pending_text)
            self._pending_text = ""

    def _emit_delta(self, text: str) -> Iterator[bytes]:
        if not self._sent_chars:
            item = self._builder.render_message("", "in_progress", self._retracted)
            yield from self._emit(ITEM, "response.output_item.added", output_index=self._retracted, item=item)
            yield from self._emit(PART, "response.content_part.added", **self._content_location, part=text_part(""))
        self._sent_chars += len(text)
        self._checksum = crc32(text.encode(errors="surrogatepass"), self._checksum)
        position = PART + self._sent_chars
        yield from self._emit(position, "response.output_text.delta", **self._content_location, delta=text, logprobs=[])

    @property
    def _content_location(self) -> dict[str, Any]:
        return {
            "item_id": self._builder.message_id(self._retracted),
            "output_index": self._retracted,
            "content_index": 0,
        }

    def _close(self) -> Iterator[bytes]:
        if not self.is_over:
            return
        response, text = self._builder.render_current(self._record, retracted=self._retracted), self._record.text
        number = PART + len(text) + 1
        output: list[dict[str, Any]] = response["output"]
        if text:
            item = output[self._retracted]
            yield from self._emit(number, "response.output_text.done", **self._content_location, text=text, logprobs=[])
            yield from self._emit(
                number + 1, "response.content_part.done", **self._content_location, part=text_part(text)
            )
            yield from self._emit(number + 2, "response.output_item.done", output_index=self._retracted, item=item)
        number += 3
        for index, item in enumerate(output):
            if item["type"] == "function_call":
                yield from self._call(number, index, item)
                number += PER_CALL
        kind = {"completed": "completed", "failed": "failed"}.get(response["status"], "incomplete")
        yield from self._emit(number, f"response.{kind}", response=response)
        if not self._is_in_sync:  # the client has more than was ever recorded
            raise DivergedStream

    def _call(self, number: int, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        location = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        empty = {**item, "arguments": "", "status": "in_progress"}
        yield from self._emit(number, "response.output_item.added", output_index=index, item=empty)
        yield from self._emit(number + 1, "response.function_call_arguments.delta", **location, delta=arguments)
        yield from self._emit(
            number + 2, "response.function_call_arguments.done", **location, name=item["name"], arguments=arguments
        )
        yield from self._emit(number + 3, "response.output_item.done", output_index=index, item=item)

    def _emit(self, position: int, kind: str, **fields: Any) -> Iterator[bytes]:
        retracted = 0 if kind in ("response.created", "response.in_progress") else self._retracted
        number = _with_check_bits(
            retracted << RETRACTED_SHIFT - CHECK_BITS
            | position << CHECKSUM_BITS
            | self._checksum & ((1 << CHECKSUM_BITS) - 1)
        )
        if number <= self.number:
            self._is_in_sync = self._is_in_sync or number == self.number
            return
        if not self._is_in_sync and self._has_message:
            raise DivergedStream
        self._is_in_sync, self.number = True, number
        yield format_event(msgspec.json.encode({"type": kind, "sequence_number": number, **fields}), name=kind)
