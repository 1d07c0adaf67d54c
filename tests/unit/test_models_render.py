"""Any journal, cut anywhere, renders to a request that its provider takes; and each prompt extends the one before."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import MessageParam
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from outrider.config.choice import ModelChoice, Secret
from outrider.core.errors import Refused
from outrider.core.events import Begun, Body, Compacted, Ended, Entry, Input, Reply, Result, Resumed, Source, Started
from outrider.core.parts import Call, Image, Reasoning, call_id
from outrider.core.prompt import FromModel, FromPerson, FromTools, Prompt, transcript
from outrider.core.traits import ToolSpec
from outrider.models.anthropic import MessagesWire
from outrider.models.openai_chat import ChatWire
from outrider.models.openai_responses import ResponsesWire
from outrider.models.wire import Past, Wire

Json = dict[str, Any]
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"c[a-z0-9]{8}")
TOOLS = (ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
PNG = Image("dot", "image/png")


class Blobs:
    def put(self, content: bytes) -> str:
        return "dot"

    def get(self, name: str) -> bytes:
        if name != "dot":
            raise Refused(f"no blob {name}")
        return b"\x89PNG"


MAKERS: dict[str, Callable[[ModelChoice, Blobs], Wire]] = {
    "openai-chat": ChatWire,
    "openai-responses": ResponsesWire,
    "anthropic": MessagesWire,
}


def wire_of(name: str, model: str = "m", **rest: Any) -> Wire:
    given: dict[str, Any] = {"url": "http://model.test", **rest}
    choice = ModelChoice(f"{name}:{model}", name, model, key=Secret("k"), **given)
    return MAKERS[name](choice, Blobs())


def render(name: str, prompt: Prompt, past: Past = Past.WHOLE, **rest: Any) -> Json:
    return json.loads(wire_of(name, **rest).render(prompt, past))


# --- journals ---------------------------------------------------------------------------------------------------

sources: st.SearchStrategy[Source] = st.sampled_from(["person", "task", "schedule"])
texts = st.sampled_from(["", " ", "hi", "Grüße 🌍\n", 'quote " and \\ slash'])
images = st.sampled_from([(), (), (), (PNG,), (Image("gone", "image/png"),), (Image("dot", "image/tiff"),)])
thoughts = st.lists(
    st.sampled_from(
        [
            Reasoning("hm", "anthropic", '{"type":"thinking","thinking":"hm","signature":"s"}'),
            Reasoning("", "anthropic", '{"type":"redacted_thinking","data":"x"}'),
            Reasoning("hm", "openai-responses", '{"type":"reasoning","id":"rs","encrypted_content":"x","summary":[]}'),
            Reasoning("", "openai-responses", '{"type":"phase","phase":"commentary"}'),
            Reasoning("hm", "openai-chat", '{"host":"model.test","field":"reasoning_content"}'),
            Reasoning("hm", "another", "not even json"),
            Reasoning("hm", "anthropic", "not even json"),
        ]
    ),
    max_size=3,
).map(tuple)


@st.composite
def journals(draw: st.DrawFn) -> list[Entry]:
    """What a session could have written, stopped at any entry."""
    bodies: list[Body] = []
    open_calls: list[str] = []
    for _ in range(draw(st.integers(0, 25))):
        seq = len(bodies) + 1
        step = draw(st.sampled_from(["input", "reply", "reply", "result", "result", "begun", "end", "stop", "compact"]))
        match step:
            case "input":
                source = draw(sources)
                bodies.append(Input(draw(texts), source, draw(images)))
            case "reply" if not open_calls:
                saw = draw(st.integers(max(0, seq - 4), seq - 1)) if seq > 1 else 0
                tools = draw(st.lists(st.sampled_from(["read", "read", "", "bad name!", "x" * 90]), max_size=3))
                broken = draw(st.sampled_from(["", "", '{"a":']))
                calls = tuple(Call(call_id(seq, n), tool, {"path": "a"}, broken) for n, tool in enumerate(tools))
                bodies.append(Reply(draw(texts), saw, calls, draw(thoughts)))
                open_calls = [call.id for call in calls]
            case "begun" if open_calls:
                bodies.append(Begun(open_calls[0]))
            case "result" if open_calls:
                call = open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))
                bodies.append(Result(call, draw(texts), draw(st.booleans()), draw(images)))
            case "end" | "stop":
                partial = draw(texts)
                bodies.append(Ended("interrupted" if step == "stop" else "done", seq - 1, partial=partial))
                open_calls = []
            case "compact" if not open_calls and seq > 2:
                bodies.append(Compacted(draw(st.integers(1, seq - 1)), "summary"))
            case _:
                bodies.append(draw(st.sampled_from([Started(), Resumed()])))
    return [Entry(seq, 0, body) for seq, body in enumerate(bodies, 1)]


# --- what the providers insist on ---------------------------------------------------------------------------------


@cache
def of_type(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_chat(request: Json) -> None:
    messages: list[Json] = request["messages"]
    of_type(list[ChatCompletionMessageParam]).validate_python(messages)
    assert messages[0]["role"] == "system"
    roles = [message["role"] for message in messages[1:]]
    assert roles[0] == "user"
    assert roles[-1] in ("user", "tool")
    waiting: list[str] = []
    for before, message in pairwise(messages):
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert message["content"]
            continue
        assert waiting == []
        if message["role"] == "assistant":
            calls: list[Json] = message.get("tool_calls", [])
            assert calls or message["content"].strip()
            waiting = [call["id"] for call in calls]
            for call in calls:
                assert NAME.fullmatch(call["function"]["name"])
                assert ID.fullmatch(call["id"])
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        else:
            assert message["role"] == "user"
            assert message["content"]
            assert before["role"] != "user"
    assert waiting == []


def check_responses(request: Json) -> None:
    items: list[Json] = request["input"]
    of_type(list[ResponseInputItemParam]).validate_python(items)
    assert items
    waiting: list[str] = []
    for item, after in zip(items, [*items[1:], None], strict=True):
        match item.get("type", "message"):
            case "function_call_output":
                assert item["call_id"] == waiting.pop(0)
                assert item["output"]
            case "function_call":
                waiting.append(item["call_id"])
                assert ID.fullmatch(item["call_id"])
                assert NAME.fullmatch(item["name"])
                assert isinstance(json.loads(item["arguments"]), dict)
            case "reasoning":
                assert after is not None
                assert after.get("type") in ("reasoning", "function_call") or after["role"] == "assistant"
            case _:
                assert waiting == []
                assert item["content"].strip() if isinstance(item["content"], str) else item["content"]
    assert waiting == []
    assert items[-1].get("role") == "user" or items[-1].get("type") == "function_call_output"


def check_anthropic(request: Json) -> None:
    messages: list[Json] = request["messages"]
    of_type(list[MessageParam]).validate_python(messages)
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    waiting: list[str] = []
    for message in messages:
        blocks: list[Json] = message["content"]
        assert blocks
        assert blocks[-1]["type"] not in ("thinking", "redacted_thinking")
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert answered == waiting
        assert all(block["type"] == "tool_result" for block in blocks[: len(answered)])
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            assert block["type"] != "text" or block["text"].strip()
            if block["type"] == "tool_use":
                assert ID.fullmatch(block["id"])
                assert NAME.fullmatch(block["name"])
    assert waiting == []
    assert json.dumps(request).count('"cache_control"') <= 4


CHECKS = {"openai-chat": check_chat, "openai-responses": check_responses, "anthropic": check_anthropic}


@pytest.mark.parametrize("name", list(CHECKS))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(journal=journals(), cut=st.integers(0, 30), tail=st.sampled_from(["", "Two tasks run."]))
def test_any_journal_cut_anywhere_renders_to_a_valid_request(
    name: str, journal: Sequence[Entry], cut: int, tail: str
) -> None:
    prompt = Prompt("You are Outrider.", transcript(journal[:cut]), TOOLS, 7, tail)
    for past in Past:
        CHECKS[name](render(name, prompt, past))


@pytest.mark.parametrize("name", list(CHECKS))
@settings(max_examples=50, deadline=None)
@given(journal=journals())
def test_a_kept_rendering_is_what_a_fresh_one_would_be(name: str, journal: Sequence[Entry]) -> None:
    keeps = wire_of(name)
    messages = transcript(journal)
    for length in range(len(messages) + 1):
        prompt = Prompt("s", messages[:length], TOOLS, 7)
        assert keeps.render(prompt, Past.WHOLE) == wire_of(name).render(prompt, Past.WHOLE)


def said(name: str, request: Json) -> str:
    """All that the model reads, in order, without marks for the cache and without borders between messages."""
    match name:
        case "openai-chat":
            found: Any = [
                [part if isinstance(part, dict) else {"type": "text", "text": part}]
                for message in request["messages"]
                for part in (message["content"] if isinstance(message["content"], list) else [message["content"]])
            ]
        case "openai-responses":
            found = request["input"]
        case _:
            found = [
                {key: value for key, value in block.items() if key != "cache_control"}
                for message in request["messages"]
                for block in message["content"]
            ]
    return json.dumps(found)


@pytest.mark.parametrize("name", list(CHECKS))
@settings(max_examples=50, deadline=None)
@given(journal=journals())
def test_each_prompt_extends_the_one_before_it(name: str, journal: Sequence[Entry]) -> None:
    wire = wire_of(name)
    messages = transcript(journal)
    before = ""
    for length, message in enumerate(messages, 1):
        if isinstance(message, FromModel) or (isinstance(message, FromPerson) and not message.text.strip()):
            continue
        now = said(name, json.loads(wire.render(Prompt("s", messages[:length], TOOLS, 7), Past.WHOLE)))
        assert now.startswith(before)
        # The end of the last text may be followed by more text; all before it is settled.
        before = now.rstrip(']}"')


# --- each wire by example ---------------------------------------------------------------------------------------

CALL = Call("c00000001", "read", {"path": "a"})
STORY = (
    FromPerson("one"),
    FromPerson("two", "task", (PNG,)),
    FromModel("on it", (CALL,)),
    FromTools((Result("c00000001", "", images=(PNG,)),)),
)
URL = "data:image/png;base64,iVBORw=="


def test_a_chat_request_joins_the_persons_words_and_shows_a_tools_picture_after_its_result() -> None:
    assert render("openai-chat", Prompt("be kind", STORY, TOOLS, 7, "tail"), effort="high", longest=99) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be kind"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "one\n\ntwo"},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            },
            {
                "role": "assistant",
                "content": "on it",
                "tool_calls": [
                    {
                        "id": "c00000001",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path":"a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c00000001", "content": "(no output)"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "[The picture that the tool returned:]"},
                    {"type": "image_url", "image_url": {"url": URL}},
                    {"type": "text", "text": "tail"},
                ],
            },
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {"name": "read", "description": "Read a file.", "parameters": TOOLS[0].schema},
            }
        ],
        "reasoning_effort": "high",
        "max_tokens": 99,
    }


def test_a_responses_request_stores_nothing_and_asks_for_encrypted_reasoning() -> None:
    assert render("openai-responses", Prompt("be kind", STORY, TOOLS, 7, "tail"), effort="high", longest=99) == {
        "model": "m",
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": "one"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "two"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
            {"role": "assistant", "content": "on it"},
            {"type": "function_call", "call_id": "c00000001", "name": "read", "arguments": '{"path":"a"}'},
            {
                "type": "function_call_output",
                "call_id": "c00000001",
                "output": [
                    {"type": "input_text", "text": "(no output)"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
            {"role": "user", "content": "tail"},
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [
            {
                "type": "function",
                "name": "read",
                "description": "Read a file.",
                "parameters": TOOLS[0].schema,
                "strict": False,
            }
        ],
        "reasoning": {"effort": "high"},
        "max_output_tokens": 99,
    }


def test_a_messages_request_marks_the_cache_before_the_tail() -> None:
    mark = {"type": "ephemeral"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
    assert render("anthropic", Prompt("be kind", STORY, TOOLS, 7, "tail")) == {
        "model": "m",
        "max_tokens": 8192,
        "stream": True,
        "tools": [{"name": "read", "description": "Read a file.", "input_schema": TOOLS[0].schema}],
        "system": [{"type": "text", "text": "be kind", "cache_control": mark}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": "two"},
                    picture | {"cache_control": mark},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "on it"},
                    {"type": "tool_use", "id": "c00000001", "name": "read", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c00000001",
                        "content": [{"type": "text", "text": "(no output)"}, picture],
                        "cache_control": mark,
                    },
                    {"type": "text", "text": "tail"},
                ],
            },
        ],
    }


def thinking(model: str, effort: str, messages: Sequence[FromPerson | FromModel | FromTools] = ()) -> Json:
    request = render("anthropic", Prompt("", messages), model=model, effort=effort)
    return {name: request[name] for name in ("thinking", "output_config", "max_tokens") if name in request}


def test_effort_is_said_as_each_claude_wants_it() -> None:
    adaptive = {"type": "adaptive", "display": "summarized"}
    assert thinking("claude-opus-5-5", "") == {"max_tokens": 32_000}
    for model in ("claude-opus-5-5", "claude-sonnet-4-6", "claude-haiku-5-5", "claude-fable-5-1"):
        assert thinking(model, "high") == {
            "thinking": adaptive,
            "output_config": {"effort": "high"},
            "max_tokens": 32_000,
        }
    for model in ("claude-opus-4-5", "claude-sonnet-4-5-20250929", "claude-haiku-4-5"):
        budget = {"type": "enabled", "budget_tokens": 2048}
        assert thinking(model, "low") == {"thinking": budget, "max_tokens": 32_000}
    for model in ("claude-sonnet-4-20250514", "claude-3-7-sonnet-latest", "deepseek-v4-pro"):
        budget = {"type": "enabled", "budget_tokens": 16_384}
        assert thinking(model, "high") == {"thinking": budget, "max_tokens": 20_480}


def test_budgeted_thinking_waits_while_calls_made_without_it_are_open() -> None:
    assert thinking("claude-opus-4-5", "low", STORY) == {"max_tokens": 32_000}


THINKING = '{"type":"thinking","thinking":"hm","signature":"s"}'
ITEM = '{"type":"reasoning","id":"rs","encrypted_content":"x","summary":[]}'
FIELD = '{"host":"model.test","field":"reasoning_content"}'
ELSEWHERE = '{"host":"other.test","field":"reasoning_content"}'


def thoughtful(*reasoning: Reasoning) -> Prompt:
    return Prompt("", [FromPerson("go"), FromModel("", (CALL,), reasoning), FromTools((Result("c00000001", "x"),))])


def test_reasoning_goes_back_before_the_calls_it_led_to_and_only_over_its_own_wire() -> None:
    prompt = thoughtful(
        Reasoning("hm", "anthropic", THINKING),
        Reasoning("hm", "openai-responses", ITEM),
        Reasoning("", "openai-responses", '{"type":"phase","phase":"commentary"}'),
        Reasoning("hm", "openai-chat", FIELD),
    )
    blocks = render("anthropic", prompt)["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
    assert blocks[0] == json.loads(THINKING)
    items = render("openai-responses", prompt)["input"]
    assert items[1] == json.loads(ITEM)
    assert [item.get("type") for item in items] == [None, "reasoning", "function_call", "function_call_output"]
    assert render("openai-chat", prompt)["messages"][1]["reasoning_content"] == "hm"
    for name in CHECKS:
        assert "hm" not in json.dumps(render(name, thoughtful(Reasoning("hm", "another", "{}"))))


def test_bare_requests_leave_reasoning_out() -> None:
    prompt = thoughtful(Reasoning("hm", "anthropic", THINKING), Reasoning("hm", "openai-responses", ITEM))
    assert "thinking" not in json.dumps(render("anthropic", prompt, Past.BARE))
    assert "reasoning" not in json.dumps(render("openai-responses", prompt, Past.BARE))


def test_loose_requests_give_leave_to_drop_stale_thinking() -> None:
    request = render(
        "anthropic", thoughtful(Reasoning("hm", "anthropic", THINKING)), Past.LOOSE, model="claude-opus-5-5"
    )
    binding = {"prefix_mismatch_behavior": "drop_block"}
    assert request["thinking"] == {"type": "adaptive", "block_binding": binding}
    assert "anthropic-beta" in wire_of("anthropic").headers(Past.LOOSE)
    assert "anthropic-beta" not in wire_of("anthropic").headers(Past.WHOLE)


def test_chat_reasoning_returns_to_its_own_host_only_and_deepseek_always_gets_the_field() -> None:
    foreign = thoughtful(Reasoning("hm", "openai-chat", ELSEWHERE))
    assert "reasoning_content" not in render("openai-chat", foreign)["messages"][1]
    assert render("openai-chat", foreign, model="deepseek-v4-pro")["messages"][1]["reasoning_content"] == ""


def test_signatures_of_calls_go_back_and_gemini_gets_a_stand_in_where_there_is_none() -> None:
    signed = '{"host":"model.test","field":"extra_content","extras":{"0":{"google":{"thought_signature":"s"}}}}'
    call = render("openai-chat", thoughtful(Reasoning("", "openai-chat", signed)))["messages"][1]["tool_calls"][0]
    assert call["extra_content"] == {"google": {"thought_signature": "s"}}
    google = "https://generativelanguage.googleapis.com/v1beta/openai"
    call = render("openai-chat", thoughtful(), url=google)["messages"][1]["tool_calls"][0]
    assert call["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}


def test_mistral_says_a_word_between_results_and_the_persons() -> None:
    prompt = Prompt("", [*thoughtful().messages, FromPerson("more")], (), 7, "tail")
    request = render("openai-chat", prompt, model="devstral-medium", url="https://api.mistral.ai/v1")
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    assert "stream_options" not in request


def test_the_phase_of_a_message_is_given_back() -> None:
    said = FromModel("on it", (), (Reasoning("", "openai-responses", '{"type":"phase","phase":"final_answer"}'),))
    items = render("openai-responses", Prompt("", [FromPerson("go"), said, FromPerson("more")]))["input"]
    assert items[1] == {"role": "assistant", "content": "on it", "phase": "final_answer"}


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("openai-chat", "", "https://api.openai.com/v1/chat/completions"),
        ("openai-chat", "http://127.0.0.1:1234/v1/", "http://127.0.0.1:1234/v1/chat/completions"),
        ("openai-chat", "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("openai-responses", "", "https://api.openai.com/v1/responses"),
        ("openai-responses", "http://h/v1/responses", "http://h/v1/responses"),
        ("anthropic", "", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://h/anthropic", "https://h/anthropic/v1/messages"),
        ("anthropic", "https://h/v1", "https://h/v1/messages"),
        ("anthropic", "https://h/v1/messages", "https://h/v1/messages"),
    ],
)
def test_a_base_url_is_taken_with_or_without_its_path(name: str, url: str, expected: str) -> None:
    assert wire_of(name, url=url).url == expected


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(Refused, match="is no address of a model"):
        wire_of("openai-chat", url="localhost:8080/v1")
