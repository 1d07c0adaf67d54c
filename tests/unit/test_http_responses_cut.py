"""Any response stream, cut anywhere, with lost text: what the client receives is consistent as a whole."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from outrider.channels.http.openai.response_object import ResponseBuilder
from outrider.channels.http.openai.response_stream import ResponseStream
from outrider.core.events import Delta, Ended, Entry, Event, Input, Reply, Resumed, Started
from outrider.core.plan import Bounds, fold
from outrider.core.types import Call

PARSE: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SESSION = "ab" * 16
WORDS = st.lists(st.sampled_from(["so ", "it goes ", "on\n\n", "and-on-and-on-" * 6, "é"]), max_size=5).map("".join)
LOST = st.tuples(WORDS, st.booleans())
"""Text of an unfinished reply, and whether the process died; else the model was asked again."""
STEPS = st.lists(st.tuples(st.lists(LOST, max_size=2), WORDS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 12), max_size=8)
"""How many events a client receives before each cut."""


def turn_log(steps: list[tuple[list[tuple[str, bool]], str]]) -> list[Event | None]:
    """The events of a turn; None where the process died."""
    log: list[Event | None] = []

    def add(body: Any) -> int:
        seq = 1 + sum(isinstance(one, Entry) for one in log)
        log.append(Entry(seq, 1_000 * seq, body))
        return seq

    seq = add(Input("go", address="responses:a"))
    add(Started())
    for step, (lost, words) in enumerate(steps):
        for partial, has_died in lost:
            log += [Delta(character) for character in partial]
            if has_died:
                log.append(None)
                add(Resumed())
            else:
                log.append(Delta("", "reset"))
        log += [Delta(character) for character in words]
        calls = () if step == len(steps) - 1 else (Call(f"c{step}", "list", {}),)
        seq = add(Reply(words, seq, calls))
    add(Ended("done", seq))
    return log


def stream_from(log: list[Event | None], start: int, after: int) -> tuple[list[dict[str, Any]], int]:
    """The events of a stream that begins at this position of the log, and where it ends."""
    entries = [one for one in log if isinstance(one, Entry)]
    stream = ResponseStream(
        ResponseBuilder(SESSION, entries[0], fold(entries[:1]), Bounds()), is_live=start == 0, after=after
    )
    frames, is_in_step = [*stream.begin()], start == 0
    for one in log[:start]:
        if isinstance(one, Entry) and one.seq > 1:
            frames += stream.add(one)
    for at, one in enumerate(log[max(1, start) :], max(1, start)):
        if one is None or stream.is_over:
            return [data_of(frame) for frame in frames], at + 1
        is_in_step = is_in_step or isinstance(one, Entry) or one.kind == "reset"
        if is_in_step:
            frames += stream.add(one)
    return [data_of(frame) for frame in frames], len(log)


def data_of(frame: bytes) -> dict[str, Any]:
    return json.loads(frame.partition(b"data: ")[2])


@settings(derandomize=True)
@given(STEPS, CUTS, st.lists(st.integers(0, 60), max_size=8))
def test_what_is_received_over_any_cuts_is_one_consistent_stream(
    steps: list[tuple[list[tuple[str, bool]], str]], cuts: list[int], absences: list[int]
) -> None:
    log, received, position = turn_log(steps), list[dict[str, Any]](), 0
    for cut, absence in zip(cuts, absences, strict=False):
        events, end = stream_from(log, position, received[-1]["sequence_number"] if received else -1)
        received += events[:cut]
        position = min(len(log), max(position + absence, end if len(events) <= cut else position))
    while not received or received[-1]["type"] != "response.completed":
        events, position = stream_from(log, position, received[-1]["sequence_number"] if received else -1)
        received += events
    numbers = [one["sequence_number"] for one in received]
    assert numbers == sorted(set(numbers))
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for one in received:
        state.handle_event(PARSE.validate_python(one))
    output = received[-1]["response"]["output"]
    deltas = [one for one in received if one["type"] == "response.output_text.delta"]
    for item in output:
        words = "".join(one["delta"] for one in deltas if one["item_id"] == item["id"])
        assert item["content"] == [] or words == item["content"][0]["text"]
    text = "".join(item["content"][0]["text"] for item in output if item["content"])
    assert text == "\n\n".join(words for _, words in steps if words)
