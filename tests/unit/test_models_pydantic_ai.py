"""Tests of the pydantic-ai wire with pydantic-ai's own test models."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Result
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Image, Reasoning, ToolSpec, call_id
from outrider.models.errors import ProviderRefused
from outrider.models.pydantic_ai import PydanticAiModel, open_model, render_messages
from outrider.plugins import load

pytestmark = pytest.mark.anyio
CHOICE = ModelChoice("pydantic-ai:test:m", "pydantic-ai", "test:m", key=Secret("topsecretkey"))
TOOLS = (ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
PROMPT = Prompt("be kind", [UserMessage("hi")], TOOLS, 7)


class Blobs:
    def put(self, content: bytes) -> str:
        return "dot"

    def get(self, name: str) -> bytes:
        if name != "dot":
            raise Refused(f"no blob {name}")
        return b"\x89PNG"


Piece = str | dict[int, DeltaToolCall] | dict[int, DeltaThinkingPart]


def saying(*pieces: Piece, seen: list[ModelMessage] | None = None) -> PydanticAiModel:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Piece]:
        if seen is not None:
            seen.extend(messages)
        for piece in pieces:
            yield piece

    return PydanticAiModel(FunctionModel(stream_function=stream), CHOICE, Blobs())


async def test_text_reasoning_and_calls_arrive_as_deltas_and_as_a_reply() -> None:
    deltas: list[Delta] = []
    model = saying(
        {0: DeltaThinkingPart(content="hm", signature="sig")},
        "on ",
        "it",
        {2: DeltaToolCall(name="read", json_args='{"path":', tool_call_id="theirs")},
        {2: DeltaToolCall(json_args='"a"}')},
        {3: DeltaToolCall(name="read", json_args="[1]")},
    )
    reply = await model.reply(PROMPT, deltas.append)
    assert reply.text == "on it"
    assert reply.calls == (
        Call(call_id(7, 0), "read", {"path": "a"}),
        Call(call_id(7, 1), "read", {}, broken="[1]"),
    )
    assert [part.text for part in reply.reasoning] == ["hm"]
    assert json.loads(reply.reasoning[0].opaque)["signature"] == "sig"
    assert (reply.saw, reply.model) == (7, CHOICE.name)
    assert deltas == [
        Delta("hm", "reasoning"),
        Delta("on "),
        Delta("it"),
        Delta("read", "call"),
        Delta("read", "call"),
    ]


async def test_the_prompt_reaches_the_provider() -> None:
    seen: list[ModelMessage] = []
    await saying("ok", seen=seen).reply(PROMPT, lambda _: None)
    assert [[type(part) for part in message.parts] for message in seen] == [[SystemPromptPart, UserPromptPart]]


async def test_an_empty_reply_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await saying(" ").reply(PROMPT, lambda _: None)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ModelHTTPError(429, "m", {"error": {"message": "slow"}}), Unavailable, "test is busy (429): slow"),
        (ModelHTTPError(401, "m", "topsecretkey?"), ProviderRefused, "test did not accept the key (401)"),
        (ModelHTTPError(400, "m", {"error": {"code": "context_length_exceeded"}}), ContextTooLong, "too long"),
        (ModelHTTPError(400, "m", None), Refused, "refused the request (400)"),
        (ModelAPIError("m", "broke topsecretkey"), Unavailable, "test failed: broke …"),
        (UserError("cannot"), Refused, "cannot"),
    ],
)
async def test_errors_of_pydantic_ai_become_refused_or_unavailable(
    error: Exception, kind: type[Exception], text: str
) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "half a "
        raise error

    model = PydanticAiModel(FunctionModel(stream_function=stream), CHOICE, Blobs())
    with pytest.raises(kind) as caught:
        await model.reply(PROMPT, lambda _: None)
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert "topsecretkey" not in str(caught.value)


@pytest.mark.parametrize("name", ["nobody:m", "m", "google:gemini-3-pro"])
async def test_a_provider_that_is_unknown_or_not_installed_is_refused(name: str) -> None:
    choice = ModelChoice(f"pydantic-ai:{name}", "pydantic-ai", name, key=Secret("topsecretkey"))
    with pytest.raises(Refused, match=name):
        async with open_model(choice, Blobs()):
            pass


def test_opening_the_app_imports_neither_pydantic_ai_nor_an_http_library() -> None:
    code = "import sys, outrider.app.open; print([m for m in ('pydantic_ai', 'httpx2') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[]\n"


def test_without_the_extra_the_refusal_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "outrider.models.pydantic_ai")
    monkeypatch.setitem(sys.modules, "pydantic_ai.direct", None)
    with pytest.raises(Refused, match=r"pip install 'outrider\[providers\]'"):
        load("models", "pydantic-ai")


async def test_pydantic_ais_own_test_model_can_be_opened() -> None:
    async with open_model(ModelChoice("t", "pydantic-ai", "test", attempts=1), Blobs()) as model:
        reply = await model.reply(Prompt("", [UserMessage("hi")], (), 7), lambda _: None)
    assert reply.text


def test_signatures_are_sent_back_with_their_parts() -> None:
    signed = '{"kind":"call","at":0,"provider":"google","details":{"thought_signature":"s"}}'
    thought = '{"kind":"thinking","signature":"s","provider":"google"}'
    reply = AssistantMessage(
        "on it",
        (Call("c00000001", "read", {"path": "a"}),),
        (Reasoning("hm", "pydantic-ai", thought), Reasoning("", "pydantic-ai", signed), Reasoning("no", "other")),
    )
    picture = Image("dot", "image/png")
    results = ToolMessage((Result("c00000001", "", images=(picture,)),))
    prompt = Prompt(
        "be kind", [UserMessage("hi"), UserMessage("see", images=(picture,)), reply, results], (), 7, "tail"
    )
    messages = render_messages(prompt, Blobs())
    dot = BinaryContent(b"\x89PNG", media_type="image/png")
    request, response, results_request = messages
    assert [getattr(part, "content", None) for part in request.parts] == ["be kind", "hi", ["see", dot]]
    assert response.parts == [
        ThinkingPart("hm", signature="s", provider_name="google"),
        TextPart("on it"),
        ToolCallPart(
            "read", {"path": "a"}, "c00000001", provider_name="google", provider_details={"thought_signature": "s"}
        ),
    ]
    assert [(type(part), getattr(part, "content", None)) for part in results_request.parts] == [
        (ToolReturnPart, "(no output)"),
        (UserPromptPart, ["[Image returned by the tool:]", dot]),
        (UserPromptPart, "tail"),
    ]


CALL = Call("c00000001", "read", {})
messages = st.lists(
    st.sampled_from(
        [
            (UserMessage("hi"),),
            (UserMessage(" "),),
            (AssistantMessage("ho"),),
            (AssistantMessage(""),),
            (AssistantMessage("", (CALL,)), ToolMessage((Result("c00000001", ""),))),
        ]
    ),
    max_size=8,
)


@given(messages, st.sampled_from(["", "tail"]))
def test_any_messages_render_as_alternating_requests_and_responses_with_content(
    groups: list[tuple[Message, ...]], tail: str
) -> None:
    rendered = render_messages(Prompt("s", [message for group in groups for message in group], (), 7, tail), Blobs())
    kinds = [type(message) for message in rendered]
    assert kinds == [ModelRequest, ModelResponse] * (len(kinds) // 2) + [ModelRequest]
    for message in rendered:
        assert [part for part in message.parts if not isinstance(part, SystemPromptPart)]
