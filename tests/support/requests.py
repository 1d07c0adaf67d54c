"""Requests as each provider takes them: renders a prompt over a wire, and checks what came out."""

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from anthropic.types import MessageParam
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.core.events import Begun, Body, Compacted, Ended, Entry, Input, Reply, Result, Resumed, Source, Started
from outrider.core.prompt import Prompt
from outrider.core.types import Call, Image, Reasoning, ToolSpec, call_id
from outrider.models.anthropic import MessagesWire
from outrider.models.http_model import ReasoningReplay, Wire
from outrider.models.openai_chat import ChatWire
from outrider.models.openai_responses import ResponsesWire

Json = dict[str, Any]
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"[cx][a-z0-9]{8}")
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


def render(name: str, prompt: Prompt, past: ReasoningReplay = ReasoningReplay.FULL, **rest: Any) -> Json:
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
