"""A response as a stream of events that can be taken up after any of them. Pure.

An event's number follows from the words up to it, never from how they came: their count, a check of them, and a seal.
So a client that was told words which were then not recorded is noticed when it comes back, and a number that nobody was
told is refused.
"""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from outrider.channels.http.responses_render import Frame, text_part
from outrider.channels.http.sse import event
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
LAST = (1 << 53) - 1
"""The largest number that every JSON parser reads exactly."""
LONGEST = 64
"""Characters of a piece at most."""


def pieces(words: str) -> Iterator[str]:
    """The pieces in which these words are told, the same however they came. What is left over may yet grow."""
    start = 0
    for at in range(1, len(words)):
        is_next_word = words[at - 1].isspace() and not words[at].isspace()
        if is_next_word or at - start == LONGEST:
            yield words[start:at]
            start = at


def is_ours(number: int) -> bool:
    """Whether an event may have had this number: its seal fits. What comes before any words needs none."""
    return number < ITEM << CHECK or _sealed(number >> SEAL) == number


def _sealed(number: int) -> int:
    return number << SEAL | number * 0x9E3779B97F4A7C15 >> 58 & ((1 << SEAL) - 1)


class _Torn(Exception):
    """The last event that the client has is none of this stream."""


class Telling:
    """A response as events, without those up to the number `after`.

    Words are told as the model writes them. When a client turns out to have heard others than were recorded, that
    message is closed, empty and incomplete, and the next one tells the recorded words from the beginning.
    """

    def __init__(self, frame: Frame, *, is_live: bool, after: int = -1) -> None:
        self.number = after
        """The last event the client has."""
        self._frame = frame
        self._live = frame.progress(is_live=is_live)
        self._record = frame.progress()
        """Entries alone: what a stream that is taken up later is told from."""
        self._replies: list[str] = []
        """The recorded words, reply by reply."""
        self._waiting = ""
        """Words that are no whole piece yet."""
        self._told, self._check = 0, 0
        """How many characters of the text are told, here or before, and the check of them."""
        self._nth = max(0, after) >> NTH
        """How many messages were taken back from this client."""
        self._is_cautious = self._nth > 0
        """Whether only recorded words are told."""
        self._is_in_step = after < 0
        """Whether the client's last event has come by."""

    @property
    def is_over(self) -> bool:
        return self._record.is_over

    def begin(self) -> Iterator[bytes]:
        response = self._frame.render("in_progress")
        yield from self._tell(CREATED, "response.created", response=response)
        yield from self._tell(BEGUN, "response.in_progress", response=response)
        yield from self._take_back()

    def take(self, happened: Event) -> Iterator[bytes]:
        recorded = self._record.take(happened).text if isinstance(happened, Entry) else ""
        if recorded:
            self._replies.append(recorded)
        words = recorded if self._is_cautious else self._live.take(happened).text
        is_settled = isinstance(happened, Entry) and isinstance(happened.body, Reply | Ended)
        try:
            if is_settled and not self._is_cautious and self._live.text != self._record.text:
                raise _Torn
            yield from self._words(words, is_whole=is_settled)
            yield from self._close()
        except _Torn:
            yield from self._begin_anew()
            yield from self._close()

    def _begin_anew(self) -> Iterator[bytes]:
        self._is_in_step = self._is_cautious = True
        self._waiting, self._told, self._check = "", 0, 0
        if self._has_message:
            self._nth += 1
            yield from self._take_back()
        for words in self._replies:
            yield from self._words(words, is_whole=True)

    @property
    def _has_message(self) -> bool:
        """Whether the client was told of a message that is still its last."""
        return self.number & ((1 << NTH) - 1) >= ITEM << CHECK if self.number >= 0 else False

    def _take_back(self) -> Iterator[bytes]:
        if self._nth:
            item = self._frame.message("", "incomplete", self._nth - 1)
            yield from self._tell(CREATED, "response.output_item.done", output_index=self._nth - 1, item=item)

    def _words(self, words: str, *, is_whole: bool) -> Iterator[bytes]:
        words, start = self._waiting + words, self._told
        for piece in pieces(words):
            yield from self._piece(piece)
        self._waiting = words[self._told - start :]
        if is_whole and self._waiting:
            yield from self._piece(self._waiting)
            self._waiting = ""

    def _piece(self, text: str) -> Iterator[bytes]:
        if not self._told:
            item = self._frame.message("", "in_progress", self._nth)
            yield from self._tell(ITEM, "response.output_item.added", output_index=self._nth, item=item)
            yield from self._tell(PART, "response.content_part.added", **self._place, part=text_part(""))
        self._told += len(text)
        self._check = crc32(text.encode(errors="surrogatepass"), self._check)
        place = PART + self._told
        yield from self._tell(place, "response.output_text.delta", **self._place, delta=text, logprobs=[])

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._frame.item(self._nth), "output_index": self._nth, "content_index": 0}

    def _close(self) -> Iterator[bytes]:
        if not self.is_over:
            return
        response, text = self._frame.so_far(self._record, void=self._nth), self._record.text
        number = PART + len(text) + 1
        output: list[dict[str, Any]] = response["output"]
        if text:
            item = output[self._nth]
            yield from self._tell(number, "response.output_text.done", **self._place, text=text, logprobs=[])
            yield from self._tell(number + 1, "response.content_part.done", **self._place, part=text_part(text))
            yield from self._tell(number + 2, "response.output_item.done", output_index=self._nth, item=item)
        number += 3
        for index, item in enumerate(output):
            if item["type"] == "function_call":
                yield from self._call(number, index, item)
                number += PER_CALL
        kind = {"completed": "completed", "failed": "failed"}.get(response["status"], "incomplete")
        yield from self._tell(number, f"response.{kind}", response=response)
        if not self._is_in_step:  # the client heard more than there ever was
            raise _Torn

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

    def _tell(self, place: int, kind: str, **fields: Any) -> Iterator[bytes]:
        nth = 0 if kind in ("response.created", "response.in_progress") else self._nth
        number = _sealed(nth << NTH - SEAL | place << WORDS | self._check & ((1 << WORDS) - 1))
        if number <= self.number:
            self._is_in_step = self._is_in_step or number == self.number
            return
        if not self._is_in_step and self._has_message:
            raise _Torn
        self._is_in_step, self.number = True, number
        yield event(msgspec.json.encode({"type": kind, "sequence_number": number, **fields}), name=kind)
