"""A prompt as a Responses request. Nothing is stored at the provider, so reasoning goes back encrypted. Pure."""

import msgspec
from msgspec import Struct

from outrider.config.choice import ModelChoice
from outrider.core.events import Result
from outrider.core.parts import Image, Reasoning
from outrider.core.ports import Blobs
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.traits import ToolSpec
from outrider.models.rendering import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    RenderCache,
    call_arguments,
    encode,
    encode_image,
    is_blank,
    tool_name,
    wire_id,
)
from outrider.models.wire import ReasoningReplay

WIRE = "openai-responses"
_NO_REASONING = ("gpt-3.5", "gpt-4", "chatgpt-4o")
"""Models that refuse to be asked for encrypted reasoning."""


class ReasoningItem(Struct, tag="reasoning", omit_defaults=True):
    """A reasoning item that can be replayed."""

    id: str
    encrypted_content: str
    summary: list[dict[str, object]]


class MessagePhase(Struct, tag="phase"):
    """Which kind of message the words were; newer models want their label back."""

    phase: str


_opaque_decoder: msgspec.json.Decoder[ReasoningItem | MessagePhase] = msgspec.json.Decoder(ReasoningItem | MessagePhase)


class ResponsesRenderer:
    """Renders prompts for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self._choice = choice
        self._blobs = blobs
        self._cache = RenderCache(self._items, lambda pair: len(pair[0]) + len(pair[1]))
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        fields = [b'"model":' + encode(self._choice.model)]
        if not is_blank(prompt.system):
            fields.append(b'"instructions":' + encode(prompt.system))
        fields.append(b'"input":[' + b",".join(self._input(prompt, past)) + b"]")
        fields.append(b'"stream":true,"store":false')
        if past is not ReasoningReplay.NONE and not self._choice.model.startswith(_NO_REASONING):
            fields.append(b'"include":["reasoning.encrypted_content"]')
        if prompt.tools:
            fields.append(b'"tools":' + self._tool_list(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning":' + encode({"effort": self._choice.effort}))
        if self._choice.max_output_tokens:
            fields.append(b'"max_output_tokens":%d' % self._choice.max_output_tokens)
        return b"{" + b",".join(fields) + b"}"

    def _input(self, prompt: Prompt, past: ReasoningReplay) -> list[bytes]:
        get = self._cache.get
        bare = past is ReasoningReplay.NONE
        items: list[bytes] = []
        newest: Message | None = None
        for message in prompt.messages:
            thoughts, words = get(message)
            if thoughts and not bare:
                items.append(thoughts)
            if words:
                items.append(words)
                newest = message
        last = prompt.tail or (CONTINUE if newest is None or isinstance(newest, AssistantMessage) else "")
        if last:
            items.append(encode({"role": "user", "content": last}))
        return items

    def _items(self, message: Message) -> tuple[bytes, bytes]:
        """`(its reasoning, the rest)`, each some input items joined by commas."""
        match message:
            case UserMessage(text=text, images=()):
                return b"", b"" if is_blank(text) else encode({"role": "user", "content": text})
            case UserMessage(text=text, images=images):
                return b"", encode({"role": "user", "content": self._parts(text, images)})
            case AssistantMessage():
                return self._assistant_items(message)
            case ToolMessage(results=results):
                return b"", b",".join(encode(self._tool_output(result)) for result in results)

    def _assistant_items(self, message: AssistantMessage) -> tuple[bytes, bytes]:
        thoughts, phase = _replayable(message.reasoning)
        items: list[bytes] = []
        if not is_blank(message.text):
            items.append(encode({"role": "assistant", "content": message.text} | phase))
        items += (
            encode(
                {
                    "type": "function_call",
                    "call_id": wire_id(call.id),
                    "name": tool_name(call.tool),
                    "arguments": encode(call_arguments(call)).decode(),
                }
            )
            for call in message.calls
        )
        # Reasoning without what it led to is refused.
        return (b",".join(thoughts), b",".join(items)) if items else (b"", b"")

    def _tool_output(self, result: Result) -> dict[str, object]:
        output = self._parts(result.text or NO_OUTPUT, result.images) if result.images else result.text or NO_OUTPUT
        return {"type": "function_call_output", "call_id": wire_id(result.call), "output": output}

    def _parts(self, text: str, images: tuple[Image, ...]) -> list[dict[str, object]]:
        parts: list[dict[str, object]] = [] if is_blank(text) else [{"type": "input_text", "text": text}]
        for image in images:
            found = encode_image(image, self._blobs)
            parts.append(
                {"type": "input_image", "image_url": found.url, "detail": "auto"}
                if found
                else {"type": "input_text", "text": IMAGE_UNAVAILABLE}
            )
        return parts

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, encode([_tool_definition(tool) for tool in tools]))
        return self._tools[1]


def _replayable(reasoning: tuple[Reasoning, ...]) -> tuple[list[bytes], dict[str, object]]:
    thoughts: list[bytes] = []
    phase: dict[str, object] = {}
    for part in reasoning:
        if part.wire != WIRE or not part.opaque:
            continue
        try:
            found = _opaque_decoder.decode(part.opaque)
        except msgspec.DecodeError:
            continue
        if isinstance(found, MessagePhase):
            phase = {"phase": found.phase}
        else:
            thoughts.append(encode(found))
    return thoughts, phase


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": False,
    }
