"""A prompt as pydantic-ai's messages. Pure; imported only when that wire is chosen."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from outrider.core.errors import Refused
from outrider.core.parts import Call, Image, Reasoning
from outrider.core.ports import Blobs
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.models.rendering import (
    GO_ON,
    LOST,
    OPENING,
    PICTURE,
    SILENCE,
    arguments,
    is_blank,
    tool_name,
    wire_id,
)

WIRE = "pydantic-ai"


class Extra(Struct, frozen=True, omit_defaults=True):
    """What a provider attached to one part of its reply and wants to see again."""

    kind: str
    """`thinking`, `text` or `call`."""
    at: int = 0
    """Which of the calls."""
    id: str | None = None
    signature: str | None = None
    provider: str | None = None
    details: dict[str, object] | None = None


def render(prompt: Prompt, blobs: Blobs) -> list[ModelMessage]:
    """Requests and responses in turn, a request first and last."""
    asked: list[ModelRequestPart] = [] if is_blank(prompt.system) else [SystemPromptPart(prompt.system)]
    messages: list[ModelMessage] = []
    tools: dict[str, str] = {}
    fresh = False
    for message in prompt.messages:
        match message:
            case UserMessage(text=text, images=images):
                parts = _shown(text, images, blobs)
                asked += parts
                fresh = fresh or bool(parts)
            case ToolMessage(results=results):
                for result in results:
                    words = SILENCE if is_blank(result.text) else result.text
                    asked.append(ToolReturnPart(tools.get(result.call, "unknown"), words, wire_id(result.call)))
                seen = tuple(image for result in results for image in result.images)
                asked += _shown(PICTURE, seen, blobs) if seen else []
                fresh = True
            case AssistantMessage():
                parts = _said(message)
                if not parts:
                    continue
                tools = {call.id: tool_name(call.tool) for call in message.calls}
                messages.append(
                    ModelRequest(asked if fresh else [*asked, UserPromptPart(GO_ON if messages else OPENING)])
                )
                messages.append(ModelResponse(parts))
                asked, fresh = [], False
    last = prompt.tail or ("" if fresh else GO_ON)
    if last:
        asked.append(UserPromptPart(last))
    return [*messages, ModelRequest(asked)]


def _shown(text: str, images: tuple[Image, ...], blobs: Blobs) -> list[ModelRequestPart]:
    content: list[UserContent] = [] if is_blank(text) else [text]
    for image in images:
        try:
            content.append(BinaryContent(blobs.get(image.blob), media_type=image.media))
        except Refused:
            content.append(LOST)
    if not content:
        return []
    return [UserPromptPart(text if len(content) == 1 and not images else content)]


def _said(message: AssistantMessage) -> list[ModelResponsePart]:
    thoughts, text, calls = _extras(message.reasoning)
    parts: list[ModelResponsePart] = []
    if not is_blank(message.text):
        parts.append(TextPart(message.text, id=text.id, provider_name=text.provider, provider_details=text.details))
    parts += (_call(call, calls.get(n, Extra("call"))) for n, call in enumerate(message.calls))
    # Thinking without what it led to is refused.
    return [*thoughts, *parts] if parts else []


def _call(call: Call, extra: Extra) -> ToolCallPart:
    return ToolCallPart(
        tool_name(call.tool),
        arguments(call),
        wire_id(call.id),
        id=extra.id,
        provider_name=extra.provider,
        provider_details=extra.details,
    )


def _extras(reasoning: tuple[Reasoning, ...]) -> tuple[list[ModelResponsePart], Extra, Mapping[int, Extra]]:
    thoughts: list[ModelResponsePart] = []
    text, calls = Extra("text"), dict[int, Extra]()
    for part in reasoning:
        if part.wire != WIRE:
            continue
        try:
            extra = msgspec.json.decode(part.opaque, type=Extra)
        except msgspec.DecodeError:
            continue
        match extra.kind:
            case "thinking":
                thought = ThinkingPart(
                    part.text,
                    id=extra.id,
                    signature=extra.signature,
                    provider_name=extra.provider,
                    provider_details=extra.details,
                )
                thoughts.append(thought)
            case "call":
                calls[extra.at] = extra
            case _:
                text = extra
    return thoughts, text, calls
