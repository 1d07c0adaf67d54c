"""Chat completions without a server: parsing requests, rendering completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.chat import CompletionRenderer, parse_chat_request
from outrider.channels.http.openai.conversation import (
    AssistantTurn,
    ConversationItem,
    ParsedConversation,
    ToolOutput,
    UserTurn,
)
from outrider.channels.http.openai.history import journal_from_history
from outrider.channels.http.openai.models import known_models, settings_for_model
from outrider.channels.http.openai.turn_output import (
    REPLY_SEPARATOR,
    TurnOutput,
    encode_call_id,
    parse_call_id,
    turn_error,
)
from outrider.config.load import load
from outrider.core.events import Body, Changed, Delta, Ended, Entry, Event, Input, Reply, Result, Started
from outrider.core.plan import Bounds, State, fold
from outrider.core.prompt import AssistantMessage, ToolMessage, UserMessage, transcript
from outrider.core.types import Call, Image, ToolSpec, Usage
from outrider.engine.event_hub import FELL_BEHIND

SPEC = ToolSpec("ring", "Ring.", {"type": "object"})
RING: dict[str, Any] = {"type": "function", "function": {"name": "ring", "description": "Ring."}}
USER = {"role": "user", "content": "hi"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "ring", "arguments": '{"n": 1}'}}]}


def parse(*messages: Any, **more: Any) -> ParsedConversation:
    return parse_chat_request(json.dumps({"model": "m", "messages": list(messages), **more}).encode(), 100)


def store_image(image: bytes) -> Image:
    return Image(image.hex(), "image/png")


def journal(*bodies: Body) -> list[Entry]:
    return [Entry(seq, 0, body) for seq, body in enumerate(bodies, 1)]


def test_a_request_is_parsed_into_new_messages_and_history() -> None:
    result = {"role": "tool", "tool_call_id": "x", "content": "ding"}
    read = parse({"role": "system", "content": "a"}, USER, CALLED, result, {"role": "user", "content": "so"})
    assert (read.instructions, read.last_call_ids, read.new_message, read.tool_outputs) == (
        "a",
        ("x",),
        UserTurn("so"),
        (ToolOutput("x", "ding"),),
    )
    assert read.history == (
        UserTurn("hi"),
        AssistantTurn("", (("x", Call("", "ring", {"n": 1})),)),
        ToolOutput("x", "ding"),
    )


def test_tools_are_passed_on_unless_none_may_be_chosen() -> None:
    assert parse(USER, tools=[RING]).tools == (ToolSpec("ring", "Ring.", {"type": "object", "properties": {}}),)
    assert parse(USER, tools=[RING], tool_choice="none").tools == ()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "invalid chat completions request"),
        (b"[]", "invalid chat completions request"),
        (b'{"messages": 1}', "invalid chat completions request"),
        (b'{"messages": [{"role": "king", "content": "x"}]}', "king"),
        (b'{"messages": ["\xff"]}', "invalid chat completions request"),
        (b"[" * 100_000, "invalid chat completions request"),
        (b'{"messages": []}', "no message"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "no message"),
    ],
)
def test_an_invalid_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words) as caught:
        parse_chat_request(body, 100)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("messages", "more", "words"),
    [
        ([USER, {"role": "assistant", "content": "x"}], {}, "last message"),
        ([USER] * 2_001, {}, "too many"),
        ([{"role": "user", "content": "x" * 101}], {}, "101 characters"),
        ([{"role": "user", "content": "x" * 99}] * 11, {}, "1,089 characters"),
        ([{"role": "tool", "tool_call_id": "y", "content": "x"}], {}, "no earlier assistant message"),
        ([USER, CALLED, {"role": "tool", "tool_call_id": "y", "content": "x"}], {}, "no earlier assistant message"),
        ([USER], {"n": 2}, "n must be 1"),
        ([USER], {"functions": []}, "functions"),
        ([USER], {"tool_choice": "required"}, "tool_choice"),
        ([USER], {"tool_choice": {"type": "function"}}, "tool_choice"),
        ([USER], {"response_format": {"type": "json_object"}}, "response_format"),
        ([USER], {"modalities": ["audio"]}, "modalities"),
        ([USER], {"tools": [RING, RING]}, "two tools"),
        ([USER], {"tools": [RING] * 129}, "at most 128"),
        ([USER], {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ([USER], {"tools": [{"type": "custom", "function": {"name": "a"}}]}, "custom"),
        (
            [USER],
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            "object",
        ),
    ],
)
def test_an_unsupported_request_is_refused_with_a_reason(messages: list[Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(HttpError, match=words):
        parse(*messages, **more)


def test_a_history_becomes_the_journal_it_would_have_left() -> None:
    items = (
        UserTurn("a"),
        UserTurn("b"),
        AssistantTurn("", (("x", Call("", "ring", {})),)),
        ToolOutput("x", "ding"),
        AssistantTurn("c"),
    )
    settings = [Changed("instructions", "be brief")]
    assert journal_from_history(settings, (*items, UserTurn("d", (b"i",)), AssistantTurn("e")), store_image) == (
        Changed("instructions", "be brief"),
        Input("a"),
        Input("b"),
        Started(),
        Reply("", 4, (Call("c000000e8", "ring", {}),)),
        Result("c000000e8", "ding"),
        Reply("c", 6),
        Ended("done", 6),
        Input("d", images=(Image("69", "image/png"),)),
        Started(),
        Reply("e", 10),
        Ended("done", 10),
    )


def test_a_history_that_ends_with_outputs_is_an_open_turn() -> None:
    items = (UserTurn("a"), AssistantTurn("", (("x", Call("", "ring", {})),)), ToolOutput("x", "ding"))
    state = fold(journal(*journal_from_history((), items, store_image, (SPEC,))))
    assert (state.is_open, state.owes_reply, state.calls, dict(state.client_tools)) == (True, True, (), {"ring": SPEC})
    with pytest.raises(HttpError, match="no user message"):
        journal_from_history((), items[1:], store_image, ())


_WORDS = st.builds(UserTurn, st.text(min_size=1).filter(str.strip))
_ANSWERS = st.one_of(
    st.builds(AssistantTurn, st.text(min_size=1)),
    st.just(AssistantTurn("", (("x", Call("", "ring", {})), ("y", Call("", "ring", {}))))),
)


@given(st.lists(st.one_of(_WORDS, _ANSWERS), max_size=20))
def test_any_conversation_becomes_an_idle_journal_with_all_its_text_in_the_prompt(
    items: list[ConversationItem],
) -> None:
    entries = journal(*journal_from_history((), items, store_image))
    state = fold(entries)
    assert (state.is_open, state.has_unseen and isinstance(items[-1], AssistantTurn)) == (False, False)
    assert all(entry.body.saw < entry.seq for entry in entries if isinstance(entry.body, Reply | Ended))
    sent_text = [message.text for message in transcript(entries) if isinstance(message, UserMessage | AssistantMessage)]
    assert sent_text == [one.text for one in items]


def test_a_call_without_an_output_counts_as_not_run() -> None:
    items = (UserTurn("a"), AssistantTurn("", (("x", Call("", "ring", {})),)), UserTurn("b"), AssistantTurn("c"))
    (results,) = [
        m for m in transcript(journal(*journal_from_history((), items, store_image))) if isinstance(m, ToolMessage)
    ]
    assert [result.failed for result in results.results] == [True]


def progress(**more: Any) -> TurnOutput:
    return TurnOutput(1, fold(journal(Input("hi", tools=(SPEC,)))), Bounds(), **more)


def sent_text(one: TurnOutput, *events: Event | Body) -> str:
    """The text sent for these events; bodies are numbered from 2."""
    seq, text = 1, ""
    for event in events:
        if not isinstance(event, Delta | Entry):
            seq += 1
            event = Entry(seq, 0, event)
        text += one.add(event).text
    return text


def test_deltas_are_sent_as_they_come_and_the_reply_adds_what_they_left_out() -> None:
    events = (
        Started(),
        Delta("one "),
        Delta("hm", "reasoning"),
        Delta("two"),
        Reply("one two three", 2),
        Ended("done", 2),
    )
    one = progress()
    assert sent_text(one, *events) == "one two three" == one.text
    assert (one.is_over, one.finish_reason) == (True, "stop")


def test_two_replies_are_two_paragraphs_with_and_without_deltas() -> None:
    facts = Started(), Reply("a", 2, (Call("c1", "list", {}),)), Result("c1", "x"), Reply("b", 4), Ended("done", 4)
    with_deltas = facts[0], Delta("a"), *facts[1:3], Delta("b"), *facts[3:]
    assert sent_text(progress(), *facts) == sent_text(progress(), *with_deltas) == f"a{REPLY_SEPARATOR}b"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Delta("one "), Delta("busy", "reset"), Delta("one "), Delta("two")], "one two three"),
        ([Delta("one "), FELL_BEHIND, Delta("three")], "one two three"),
        ([FELL_BEHIND, Delta("three")], "one two three"),
        ([Delta("busy", "reset"), Delta("one ")], "one two three"),
        ([Delta("uno "), Delta("busy", "reset"), Delta("one "), Delta("two")], f"uno {REPLY_SEPARATOR}one two three"),
    ],
)
def test_text_is_never_sent_twice_when_deltas_are_lost_or_reset(events: list[Event], expected: str) -> None:
    assert sent_text(progress(), Started(), *events, Reply("one two three", 2), Ended("done", 2)) == expected


@given(
    st.lists(st.one_of(st.just(FELL_BEHIND), st.just(Delta("x", "reset")), st.builds(Delta, st.text(max_size=3)))),
    st.text(),
)
def test_the_reply_is_sent_whole_and_last_whatever_the_deltas_were(deltas: list[Delta], text: str) -> None:
    one = progress()
    assert sent_text(one, Started(), *deltas, Reply(text, 2), Ended("done", 2)) == one.text
    assert one.text.endswith(text)


def test_text_for_an_earlier_input_is_not_sent() -> None:
    one = TurnOutput(3, State(), Bounds(), is_live=False)
    events: list[Event] = [Delta("old"), *journal(Input("a"), Input("b"), Input("c"), Reply("old words", 2))[3:]]
    events += [Delta("new"), Entry(5, 0, Reply("new words", 4)), Entry(6, 0, Ended("done", 4))]
    assert sent_text(one, *events) == "new words"


def test_text_for_a_later_input_is_not_sent() -> None:
    events = Started(), Input("another"), Reply("first", 2), Reply("second", 4), Ended("done", 4)
    one = progress()
    for seq, body in enumerate(events, 2):
        if not one.is_over:
            one.add(Entry(seq, 0, body))
    assert (one.text, one.finish_reason) == ("first", "stop")


def test_a_turn_that_waits_for_the_client_ends_the_output_with_its_calls() -> None:
    own, client_call = Call("c1", "list", {}), Call("c2", "ring", {"n": 1})
    one = progress()
    sent_text(one, Started(), Reply("", 2, (own, client_call), usage=Usage(3, 4)))
    assert not one.is_over
    sent_text(one, *journal(*[Input("")] * 3, Result("c1", "x"))[3:])
    assert (one.is_over, one.finish_reason, one.calls, one.usage) == (True, "tool_calls", (client_call,), Usage(3, 4))


def test_a_calls_id_on_the_wire_includes_its_session() -> None:
    session = "00ff" * 8
    assert parse_call_id(encode_call_id(session, "c00000001")) == (session, "c00000001")
    assert len(encode_call_id(session, "c00000001")) <= 40
    assert parse_call_id("call_abc") == ("", "call_abc")
    assert parse_call_id("call_" + "é" * 40) == ("", "call_" + "é" * 40)
    assert encode_call_id("no hex", "c1") == "c1"


def test_arguments_that_are_not_json_are_passed_on_unchanged() -> None:
    envelope = CompletionRenderer("id", 1, "outrider", "00" * 16)
    (called,) = json.loads(envelope.calls((Call("c1", "ring", {}, broken="{n:"),)))["choices"][0]["delta"]["tool_calls"]
    assert called["function"] == {"name": "ring", "arguments": "{n:"}


@pytest.mark.parametrize(
    ("ended", "status", "words"),
    [
        (Ended("interrupted", 1, "stopped by the person"), 422, "stopped by the person"),
        (Ended("failed", 1, "stopped after 60 steps, the limit of one turn (limits.steps)"), 422, "60 steps"),
        (Ended("failed", 1, "internal error: KeyError: 'x'"), 500, "internal error"),
        (Ended("failed", 1, "the provider is down"), 424, "the provider is down"),
    ],
)
def test_a_failed_turn_has_its_reason_and_is_not_retried(ended: Ended, status: int, words: str) -> None:
    error = turn_error(ended)
    assert (error.status, words in str(error), error.headers) == (status, True, {"x-should-retry": "false"})


def test_a_model_name_without_a_provider_chooses_nothing(tmp_path: Any) -> None:
    config = load(tmp_path, {"OPENAI_API_KEY": "k-1234567890"}, {"model.name": "anthropic:claude-x", "model.key": "k"})
    assert [settings_for_model(config, name) for name in ("", "outrider", "gpt-4o", "llama3:8b")] == [{}] * 4
    assert settings_for_model(config, "anthropic:claude-x") == {"runtime": "native"}
    assert settings_for_model(config, "openai:gpt-5.6-terra") == {"runtime": "native", "model": "openai:gpt-5.6-terra"}
    assert known_models(config) == ("outrider", "anthropic:claude-x", "openai:gpt-5.6-terra")
    with pytest.raises(HttpError, match="needs a key") as caught:
        settings_for_model(config, "groq:x")
    assert caught.value.status == 404


_FIELDS = [
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "tool_calls",
    "tool_call_id",
    "function",
    "name",
    "id",
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=4), inner),
    max_leaves=20,
)
_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
    optional={
        "content": _JSON | st.text(max_size=8),
        "tool_call_id": st.sampled_from(["x", "y"]),
        "tool_calls": st.lists(
            st.sampled_from([{"id": "x", "function": {"name": "ring", "arguments": "{"}}, {"id": "y"}])
        ),
    },
)


@given(st.lists(_MESSAGES, max_size=6), st.dictionaries(st.sampled_from(["tools", "n", "stream", "model"]), _JSON))
def test_any_request_is_parsed_or_refused(messages: list[Any], more: dict[str, Any]) -> None:
    try:
        read = parse(*messages, **more)
        journal_from_history((), read.history, store_image, read.tools if read.has_no_message else None)
        status = 200
    except HttpError as error:
        status = error.status
    assert status in (200, 400)
