"""Tests of the exact requests of each wire: text, images, reasoning, effort, addresses."""

import json
from collections.abc import Sequence

import pytest

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Reasoning
from outrider.models.http_model import ReasoningReplay
from tests.support.requests import CHECKS, PNG, TOOLS, Json, render, wire_of

CALL = Call("c00000001", "read", {"path": "a"})
STORY = (
    UserMessage("one"),
    UserMessage("two", "task", (PNG,)),
    AssistantMessage("on it", (CALL,)),
    ToolMessage((Result("c00000001", "", images=(PNG,)),)),
)
URL = "data:image/png;base64,iVBORw=="


def test_a_chat_request_joins_user_messages_and_puts_the_image_of_a_tool_after_its_result() -> None:
    assert render("openai-chat", Prompt("be kind", STORY, TOOLS, 7, "tail"), effort="high", max_output_tokens=99) == {
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
                    {"type": "text", "text": "[Image returned by the tool:]"},
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
    assert render(
        "openai-responses", Prompt("be kind", STORY, TOOLS, 7, "tail"), effort="high", max_output_tokens=99
    ) == {
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


def thinking(model: str, effort: str, messages: Sequence[UserMessage | AssistantMessage | ToolMessage] = ()) -> Json:
    request = render("anthropic", Prompt("", messages), model=model, effort=effort)
    return {name: request[name] for name in ("thinking", "output_config", "max_tokens") if name in request}


def test_effort_is_rendered_for_each_generation_of_claude() -> None:
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


def test_thinking_by_budget_is_off_after_calls_without_thinking() -> None:
    assert thinking("claude-opus-4-5", "low", STORY) == {"max_tokens": 32_000}


THINKING = '{"type":"thinking","thinking":"hm","signature":"s"}'
ITEM = '{"type":"reasoning","id":"rs","encrypted_content":"x","summary":[]}'
FIELD = '{"host":"model.test","field":"reasoning_content"}'
ELSEWHERE = '{"host":"other.test","field":"reasoning_content"}'


def thoughtful(*reasoning: Reasoning) -> Prompt:
    return Prompt(
        "", [UserMessage("go"), AssistantMessage("", (CALL,), reasoning), ToolMessage((Result("c00000001", "x"),))]
    )


def test_reasoning_is_sent_back_before_its_calls_and_only_over_its_own_wire() -> None:
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


def test_a_request_without_reasoning_replay_leaves_reasoning_out() -> None:
    prompt = thoughtful(Reasoning("hm", "anthropic", THINKING), Reasoning("hm", "openai-responses", ITEM))
    assert "thinking" not in json.dumps(render("anthropic", prompt, ReasoningReplay.NONE))
    assert "reasoning" not in json.dumps(render("openai-responses", prompt, ReasoningReplay.NONE))


def test_a_lenient_request_allows_the_provider_to_drop_stale_thinking() -> None:
    request = render(
        "anthropic",
        thoughtful(Reasoning("hm", "anthropic", THINKING)),
        ReasoningReplay.LENIENT,
        model="claude-opus-5-5",
    )
    binding = {"prefix_mismatch_behavior": "drop_block"}
    assert request["thinking"] == {"type": "adaptive", "block_binding": binding}
    assert "anthropic-beta" in wire_of("anthropic").headers(ReasoningReplay.LENIENT)
    assert "anthropic-beta" not in wire_of("anthropic").headers(ReasoningReplay.FULL)


def test_chat_reasoning_is_sent_only_to_its_own_host_and_deepseek_always_gets_the_field() -> None:
    foreign = thoughtful(Reasoning("hm", "openai-chat", ELSEWHERE))
    assert "reasoning_content" not in render("openai-chat", foreign)["messages"][1]
    assert render("openai-chat", foreign, model="deepseek-v4-pro")["messages"][1]["reasoning_content"] == ""


def test_signatures_of_calls_are_sent_back_and_gemini_gets_a_placeholder_for_a_missing_one() -> None:
    signed = '{"host":"model.test","field":"extra_content","extras":{"0":{"google":{"thought_signature":"s"}}}}'
    call = render("openai-chat", thoughtful(Reasoning("", "openai-chat", signed)))["messages"][1]["tool_calls"][0]
    assert call["extra_content"] == {"google": {"thought_signature": "s"}}
    google = "https://generativelanguage.googleapis.com/v1beta/openai"
    call = render("openai-chat", thoughtful(), url=google)["messages"][1]["tool_calls"][0]
    assert call["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}


def test_mistral_gets_an_assistant_message_between_results_and_a_user_message() -> None:
    prompt = Prompt("", [*thoughtful().messages, UserMessage("more")], (), 7, "tail")
    request = render("openai-chat", prompt, model="devstral-medium", url="https://api.mistral.ai/v1")
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    assert "stream_options" not in request


def test_the_phase_of_a_message_is_sent_back() -> None:
    said = AssistantMessage(
        "on it", (), (Reasoning("", "openai-responses", '{"type":"phase","phase":"final_answer"}'),)
    )
    items = render("openai-responses", Prompt("", [UserMessage("go"), said, UserMessage("more")]))["input"]
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
def test_a_base_url_is_accepted_with_or_without_its_path(name: str, url: str, expected: str) -> None:
    assert wire_of(name, url=url).url == expected


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(Refused, match="is not the address of a model"):
        wire_of("openai-chat", url="localhost:8080/v1")
