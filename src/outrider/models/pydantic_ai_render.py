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
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
    TOOL_IMAGE,
    call_arguments,
    is_blank,
    tool_name,
    wire_id,
)

WIRE = "pydantic-ai"


class PartMetadata(Struct, frozen=True, omit_defaults=True):
    """What a provider attached to one part of its reply and wants to see again."""

    kind: str
    """`thinking`, `text` or `call`."""
    at: int = 0
    """Which of the calls."""
    id: str | None = None
    signature: str | None = None
    provider: str | None = None
    details: dict[str, object] | None = None


def render_messages(prompt: Prompt, blobs: Blobs) -> list[ModelMessage]:
    """Requests and responses in turn, a request first and last."""
    asked: list[ModelRequestPart] = [] if is_blank(prompt.system) else [SystemPromptPart(prompt.system)]
    messages: list[ModelMessage] = []
    tools: dict[str, str] = {}
    fresh = False
    for message in prompt.messages:
        match message:
            case UserMessage(text=text, images=images):
                parts = _user_parts(text, images, blobs)
                asked += parts
                fresh = fresh or bool(parts)
            case ToolMessage(results=results):
                for result in results:
                    words = NO_OUTPUT if is_blank(result.text) else result.text
                    asked.append(ToolReturnPart(tools.get(result.call, "unknown"), words, wire_id(result.call)))
                seen = tuple(image for result in results for image in result.images)
                asked += _user_parts(TOOL_IMAGE, seen, blobs) if seen else []
                fresh = True
            case AssistantMessage():
                parts = _assistant_parts(message)
                if not parts:
                    continue
                tools = {call.id: tool_name(call.tool) for call in message.calls}
                messages.append(
                    ModelRequest(asked if fresh else [*asked, UserPromptPart(CONTINUE if messages else SESSION_START)])
                )
                messages.append(ModelResponse(parts))
                asked, fresh = [], False
    last = prompt.tail or ("" if fresh else CONTINUE)
    if last:
        asked.append(UserPromptPart(last))
    return [*messages, ModelRequest(asked)]


def _user_parts(text: str, images: tuple[Image, ...], blobs: Blobs) -> list[ModelRequestPart]:
    content: list[UserContent] = [] if is_blank(text) else [text]
    for image in images:
        try:
            content.append(BinaryContent(blobs.get(image.blob), media_type=image.media))
        except Refused:
            content.append(IMAGE_UNAVAILABLE)
    if not content:
        return []
    return [UserPromptPart(text if len(content) == 1 and not images else content)]


def _assistant_parts(message: AssistantMessage) -> list[ModelResponsePart]:
    thoughts, text, calls = _parse_metadata(message.reasoning)
    parts: list[ModelResponsePart] = []
    if not is_blank(message.text):
        parts.append(TextPart(message.text, id=text.id, provider_name=text.provider, provider_details=text.details))
    parts += (_tool_call_part(call, calls.get(n, PartMetadata("call"))) for n, call in enumerate(message.calls))
    # Thinking without what it led to is refused.
    return [*thoughts, *parts] if parts else []


def _tool_call_part(call: Call, extra: PartMetadata) -> ToolCallPart:
    return ToolCallPart(
        tool_name(call.tool),
        call_arguments(call),
        wire_id(call.id),
        id=extra.id,
        provider_name=extra.provider,
        provider_details=extra.details,
    )


def _parse_metadata(
    reasoning: tuple[Reasoning, ...],
) -> tuple[list[ModelResponsePart], PartMetadata, Mapping[int, PartMetadata]]:
    thoughts: list[ModelResponsePart] = []
    text, calls = PartMetadata("text"), dict[int, PartMetadata]()
    for part in reasoning:
        if part.wire != WIRE:
            continue
        try:
            extra = msgspec.json.decode(part.opaque, type=PartMetadata)
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
