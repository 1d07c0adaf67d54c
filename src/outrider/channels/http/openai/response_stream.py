"""A response as a stream of events that can be taken up after any of them. Pure.

An event's number follows from the words up to it, never from how they came: their count, a check of them, and a seal.
So a client that was told words which were then not recorded is noticed when it comes back, and a number that nobody was
told is refused.
"""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from outrider.channels.http.openai.response_object import ResponseBuilder, text_part
from outrider.channels.http.sse import format_event
from outrider.core.events import Ended, Entry, Event, Reply

CREATED, BEGUN, ITEM, PART = range(4)
"""Where the first events stand. The text follows, then what closes it, then the calls, then the end."""
PER_CALL = 4
SEAL = 6
"""The lowest bits of a number follow from the others."""
WORDS = 12
"""Bits above them that check the words."""
CHECK = WORDS + SEAL
"""Bits below those that say where it stands."""
NTH = 44
"""Bits of a number below the count of messages that were taken back."""
MAX_NUMBER = (1 << 53) - 1
"""The largest number that every JSON parser reads exactly."""
MAX_PIECE_CHARS = 64
"""Characters of a piece at most."""


def split_text(words: str) -> Iterator[str]:
    """The pieces in which these words are told, the same however they came. What is left over may yet grow."""
    start = 0
    for at in range(1, len(words)):
        is_next_word = words[at - 1].isspace() and not words[at].isspace()
        if is_next_word or at - start == MAX_PIECE_CHARS:
            yield words[start:at]
            start = at


def is_valid_number(number: int) -> bool:
    """Whether an event may have had this number: its seal fits. What comes before any words needs none."""
    return number < ITEM << CHECK or _sealed(number >> SEAL) == number


def _sealed(number: int) -> int:
    return number << SEAL | number * 0x9E3779B97F4A7C15 >> 58 & ((1 << SEAL) - 1)


class DivergedStream(Exception):
    """The last event that the client has is none of this stream."""


class ResponseStream:
    """A response as events, without those up to the number `after`.

    Words are told as the model writes them. When a client turns out to have heard others than were recorded, that
    message is closed, empty and incomplete, and the next one tells the recorded words from the beginning.
    """

    def __init__(self, frame: ResponseBuilder, *, is_live: bool, after: int = -1) -> None:
        self.number = after
        """The last event the client has."""
        self._builder = frame
        self._live = frame.turn_output(is_live=is_live)
        self._record = frame.turn_output()
        """Entries alone: what a stream that is taken up later is told from."""
        self._replies: list[str] = []
        """The recorded words, reply by reply."""
        self._pending_text = ""
        """Words that are no whole piece yet."""
        self._sent_chars, self._checksum = 0, 0
        """How many characters of the text are told, here or before, and the check of them."""
        self._retracted = max(0, after) >> NTH
        """How many messages were taken back from this client."""
        self._sends_recorded_only = self._retracted > 0
        """Whether only recorded words are told."""
        self._is_in_sync = after < 0
        """Whether the client's last event has come by."""

    @property
    def is_over(self) -> bool:
        return self._record.is_over

    def begin(self) -> Iterator[bytes]:
        response = self._builder.render("in_progress")
        yield from self._emit(CREATED, "response.created", response=response)
        yield from self._emit(BEGUN, "response.in_progress", response=response)
        yield from self._retract()

    def add(self, happened: Event) -> Iterator[bytes]:
        recorded = self._record.add(happened).text if isinstance(happened, Entry) else ""
        if recorded:
            self._replies.append(recorded)
        words = recorded if self._sends_recorded_only else self._live.add(happened).text
        is_settled = isinstance(happened, Entry) and isinstance(happened.body, Reply | Ended)
        try:
            if is_settled and not self._sends_recorded_only and self._live.text != self._record.text:
                raise DivergedStream
            yield from self._add_text(words, is_whole=is_settled)
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
        for words in self._replies:
            yield from self._add_text(words, is_whole=True)

    @property
    def _has_message(self) -> bool:
        """Whether the client was told of a message that is still its last."""
        return self.number & ((1 << NTH) - 1) >= ITEM << CHECK if self.number >= 0 else False

    def _retract(self) -> Iterator[bytes]:
        if self._retracted:
            item = self._builder.render_message("", "incomplete", self._retracted - 1)
            yield from self._emit(CREATED, "response.output_item.done", output_index=self._retracted - 1, item=item)

    def _add_text(self, words: str, *, is_whole: bool) -> Iterator[bytes]:
        words, start = self._pending_text + words, self._sent_chars
        for piece in split_text(words):
            yield from self._emit_piece(piece)
        self._pending_text = words[self._sent_chars - start :]
        if is_whole and self._pending_text:
            yield from self._emit_piece(self._pending_text)
            self._pending_text = ""

    def _emit_piece(self, text: str) -> Iterator[bytes]:
        if not self._sent_chars:
            item = self._builder.render_message("", "in_progress", self._retracted)
            yield from self._emit(ITEM, "response.output_item.added", output_index=self._retracted, item=item)
            yield from self._emit(PART, "response.content_part.added", **self._content_location, part=text_part(""))
        self._sent_chars += len(text)
        self._checksum = crc32(text.encode(errors="surrogatepass"), self._checksum)
        place = PART + self._sent_chars
        yield from self._emit(place, "response.output_text.delta", **self._content_location, delta=text, logprobs=[])

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
        response, text = self._builder.render_current(self._record, void=self._retracted), self._record.text
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
        if not self._is_in_sync:  # the client heard more than there ever was
            raise DivergedStream

    def _call(self, number: int, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        written = item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield from self._emit(number, "response.output_item.added", output_index=index, item=begun)
        yield from self._emit(number + 1, "response.function_call_arguments.delta", **place, delta=written)
        yield from self._emit(
            number + 2, "response.function_call_arguments.done", **place, name=item["name"], arguments=written
        )
        yield from self._emit(number + 3, "response.output_item.done", output_index=index, item=item)

    def _emit(self, place: int, kind: str, **fields: Any) -> Iterator[bytes]:
        nth = 0 if kind in ("response.created", "response.in_progress") else self._retracted
        number = _sealed(nth << NTH - SEAL | place << WORDS | self._checksum & ((1 << WORDS) - 1))
        if number <= self.number:
            self._is_in_sync = self._is_in_sync or number == self.number
            return
        if not self._is_in_sync and self._has_message:
            raise DivergedStream
        self._is_in_sync, self.number = True, number
        yield format_event(msgspec.json.encode({"type": kind, "sequence_number": number, **fields}), name=kind)
