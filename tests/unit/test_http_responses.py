"""Responses without a server: parsing requests, anchors in a journal, event streams."""

import json
import random
from typing import Any

import pytest

from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.conversation import AssistantTurn, ToolOutput, UserTurn
from outrider.channels.http.openai.response_object import (
    ResponseAnchor,
    ResponseBuilder,
    parse_response_id,
    response_anchors,
    response_id,
)
from outrider.channels.http.openai.response_stream import (
    MAX_NUMBER,
    POSITION_SHIFT,
    RETRACTED_SHIFT,
    ResponseStream,
    is_valid_number,
    split_text,
)
from outrider.channels.http.openai.responses import parse_responses_request
from outrider.core.events import Body, Delta, Ended, Entry, Event, Input, Reply, Result, Resumed, Started
from outrider.core.plan import Bounds, fold
from outrider.core.types import Call, ToolSpec

SESSION = "0123456789abcdef" * 2
RING = ToolSpec("ring", "", {"type": "object"})
CALL = {"type": "function_call", "call_id": "c1", "name": "ring", "arguments": '{"times": 2}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ding"}


def parse(input: Any, **more: Any) -> Any:
    return parse_responses_request(json.dumps({"input": input, **more}).encode(), 1_000)


def journal(*bodies: Body) -> list[Entry]:
    return [Entry(seq, 1_000 * seq, body) for seq, body in enumerate(bodies, 1)]


def stream_of(entries: list[Entry], after: int = -1) -> ResponseStream:
    frame = ResponseBuilder(SESSION, entries[0], fold(entries[:1]), Bounds())
    return ResponseStream(frame, is_live=True, after=after)


def events_of(entries: list[Entry], happened: list[Event], after: int = -1) -> list[dict[str, Any]]:
    stream = stream_of(entries, after)
    raw = [*stream.begin()] + [one for event in happened for one in stream.add(event)]
    return [json.loads(line[6:]) for one in raw for line in one.decode().splitlines() if line.startswith("data: ")]


def test_input_items_become_a_conversation() -> None:
    input: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "ring"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ringing"}]},
        CALL,
        OUTPUT,
    ]
    order = parse(input, instructions="speak plainly").conversation
    assert order.instructions == "speak plainly\n\nbe brief"
    assert order.items == (
        UserTurn("ring"),
        AssistantTurn("ringing", (("c1", Call("", "ring", {"times": 2})),)),
        ToolOutput("c1", "ding"),
    )


def test_outputs_may_come_without_their_calls_when_the_session_has_them() -> None:
    by_response, by_name = parse([OUTPUT], previous_response_id="resp_x"), parse([OUTPUT], conversation="s")
    assert (by_response.conversation.tool_outputs, by_response.conversation.has_no_message) == (
        (ToolOutput("c1", "ding"),),
        True,
    )
    assert (by_response.needs_calls, by_name.needs_calls, by_name.conversation_id) == (True, True, "s")
    assert parse([{"role": "user", "content": "ring"}, CALL, OUTPUT], conversation={"id": "s"}).needs_calls is False


@pytest.mark.parametrize(
    ("input", "more", "words"),
    [
        ([OUTPUT], {}, "tool call"),
        ([{"type": "item_reference", "id": "x"}], {}, "item_reference"),
        ([{"role": "king", "content": "obey"}], {}, "king"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], {}, "input_file"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "https://h/a.png"}]}], {}, "not fetched"),
        ("hi", {"tools": [{"type": "web_search"}]}, "web_search"),
        ("hi", {"previous_response_id": "a", "conversation": "b"}, "one of them"),
        ("hi", {"background": True, "store": False}, "store"),
        ("hi", {"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("hi", {"tool_choice": "required"}, "tool_choice"),
        ("x" * 1_001, {}, "at most 1,000"),
        (7, {}, "invalid responses request"),
        ([], {}, "no message"),
    ],
)
def test_an_unsupported_request_is_refused_with_a_reason(input: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(HttpError, match=words) as caught:
        parse(input, **more)
    assert caught.value.status == 400


def test_an_id_includes_its_session_and_entry_and_nothing_else_is_an_id() -> None:
    assert parse_response_id(response_id(SESSION, 12)) == (SESSION, 12)
    for id in ("", "resp_x_1", f"resp_{SESSION}_", f"resp_{SESSION}_1\n", f"resp_{SESSION}_²", f"chat_{SESSION}_1"):
        assert parse_response_id(id) is None


def test_a_history_belongs_to_its_input_and_outputs_of_client_tools_have_an_anchor_of_their_own() -> None:
    entries = journal(
        Input("earlier", address="responses:a"),
        Started(),
        Reply("so", 1),
        Ended("done", 1),
        Input("ring and look", address="responses:a", tools=(RING,)),
        Started(),
        Reply("", 5, (Call("c1", "ring", {}), Call("c2", "ring", {}), Call("c3", "list", {}))),
        Result("c3", "ours"),
        Result("c1", "ding"),
        Result("c2", "dong"),
        Input("a task is done", source="task"),
        Reply("done", 11),
        Ended("done", 11),
        Input("bye", address="chat:b"),
    )
    assert response_anchors(entries) == [
        ResponseAnchor(5, "responses:a"),
        ResponseAnchor(10, "responses:a"),
        ResponseAnchor(14, "chat:b"),
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_numbers_follow_from_the_journal_and_not_from_how_it_was_streamed(size: int) -> None:
    first, second = "let me look", "it is empty: «nothing» 🦉"
    entries = journal(
        Input("look", address="responses:a", tools=(RING,)),
        Started(),
        Reply(first, 1, (Call("c1", "list", {}),)),
        Result("c1", "nothing"),
        Reply(second, 4, (Call("c2", "ring", {"times": 2}),)),
    )
    live: list[Event] = [entries[1]]
    live += [Delta(first[at : at + size]) for at in range(0, len(first), size)]
    live += entries[2:4]
    live += [Delta(second[at : at + size]) for at in range(0, len(second), size)]
    live += entries[4:]
    streamed = events_of(entries, live)
    assert streamed == events_of(entries, [*entries[1:]])
    assert "".join(one["delta"] for one in streamed if "output_text.delta" in one["type"]) == f"{first}\n\n{second}"
    numbers = [one["sequence_number"] for one in streamed]
    assert numbers == sorted(set(numbers))
    assert all(map(is_valid_number, numbers))
    for at, number in enumerate(numbers):
        assert events_of(entries, [*entries[1:]], number) == streamed[at + 1 :]
        assert events_of(entries, live, number) == streamed[at + 1 :]
    assert numbers[-1] >> POSITION_SHIFT == 3 + len(f"{first}\n\n{second}") + 1 + 3 + 4


def test_a_number_that_was_never_sent_is_rarely_valid() -> None:
    assert not any(map(is_valid_number, (999_999_999, 10**12, MAX_NUMBER)))
    made_up = random.Random(7).sample(range(1 << 20, MAX_NUMBER), 10_000)
    assert sum(map(is_valid_number, made_up)) < len(made_up) // 50


def test_deltas_are_words_of_limited_length_and_the_last_waits_for_more() -> None:
    assert [*split_text("one two\n\n  three")] == ["one ", "two\n\n  "]
    assert [*split_text("x" * 150)] == ["x" * 64, "x" * 64]
    assert [[*split_text(words)] for words in ("", "one", "one ")] == [[], [], []]


WRONG, RIGHT = "a long wrong beginning that was lost", "short and right"


def check_retracted(received: list[dict[str, Any]], rest: list[dict[str, Any]], right: str = RIGHT) -> None:
    """Check that the rest ends the open message and sends the right one, with increasing numbers."""
    numbers = [one["sequence_number"] for one in received + rest]
    assert numbers == sorted(set(numbers))
    void, item = rest[0], rest[1]["item"]["id"]
    assert (void["type"], void["output_index"], void["item"]["status"]) == (
        "response.output_item.done",
        0,
        "incomplete",
    )
    words = [one for one in received + rest if one["type"] == "response.output_text.delta"]
    assert "".join(one["delta"] for one in words if one["item_id"] == item) == right
    output = rest[-1]["response"]["output"]
    assert [(one["id"], len(one["content"])) for one in output] == [(void["item"]["id"], 0), (item, 1)]
    assert output[1]["content"][0]["text"] == right


@pytest.mark.parametrize("right", [RIGHT, RIGHT + " and longer than all that was said before it was lost"])
def test_lost_text_is_retracted_for_a_client_that_received_it(right: str) -> None:
    entries = journal(Input("go", address="responses:a"), Started(), Resumed(), Reply(right, 1), Ended("done", 1))
    received = events_of(entries, [entries[1], Delta(WRONG)])
    assert received[-1]["type"] == "response.output_text.delta"
    assert all(is_valid_number(one["sequence_number"]) for one in received)
    rest = events_of(entries, [*entries[1:]], received[-1]["sequence_number"])
    check_retracted(received, rest, right)
    assert all(is_valid_number(one["sequence_number"]) for one in rest)
    for at, one in enumerate(rest):  # and cut again
        assert events_of(entries, [*entries[1:]], one["sequence_number"]) == rest[at + 1 :]
    whole = events_of(entries, [*entries[1:]])
    assert [one["sequence_number"] >> RETRACTED_SHIFT for one in whole] == [0] * len(whole)


def test_retracted_text_is_replaced_within_the_stream() -> None:
    entries = journal(Input("go", address="responses:a"), Started(), Reply(RIGHT, 1), Ended("done", 1))
    live = [entries[1], Delta(WRONG), Delta("", "reset"), Delta(RIGHT), *entries[2:]]
    streamed = events_of(entries, live)
    at = next(n for n, one in enumerate(streamed) if one["type"] == "response.output_item.done")
    check_retracted(streamed[:at], streamed[at:])
    for n, one in enumerate(streamed[at:], at):
        assert events_of(entries, [*entries[1:]], one["sequence_number"]) == streamed[n + 1 :]


def test_text_that_is_lost_before_it_was_sent_is_never_sent() -> None:
    entries = journal(Input("go", address="responses:a"), Started(), Reply(RIGHT, 1), Ended("done", 1))
    live = [entries[1], Delta("wrong"), Delta("", "reset"), *entries[2:]]
    assert events_of(entries, live) == events_of(entries, [*entries[1:]])


@pytest.mark.parametrize("after", [1, 2, 5, 4096])
def test_a_number_before_any_text_resumes_with_all_of_it(after: int) -> None:
    entries = journal(Input("go", address="responses:a"), Started(), Reply(RIGHT, 1), Ended("done", 1))
    rest = events_of(entries, [*entries[1:]], after)
    assert "".join(one["delta"] for one in rest if "output_text.delta" in one["type"]) == RIGHT
    assert rest[-1]["type"] == "response.completed"
