"""A prompt as a chat completions request. Pure.

Person messages that follow each other become one, since many servers insist that roles alternate.
"""

from typing import NamedTuple

import msgspec
from msgspec import Struct

from outrider.config.choice import ModelChoice
from outrider.core.parts import Call, Image, Reasoning
from outrider.core.ports import Blobs
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.traits import ToolSpec
from outrider.models.rendering import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
    TOOL_IMAGE,
    RenderCache,
    call_arguments,
    encode,
    encode_image,
    is_blank,
    tool_name,
    wire_id,
)

WIRE = "openai-chat"
_PARAGRAPH_BREAK = rb"\n\n"
_NEED_REASONING_CONTENT = ("deepseek", "moonshot", "kimi")
_NEED_BRIDGE = ("mistral", "ministral", "devstral", "codestral", "magistral", "pixtral")
_BRIDGE_MESSAGE = b'{"role":"assistant","content":"[I have seen the results.]"}'
_NO_SIGNATURE = "skip_thought_signature_validator"


class ReasoningRecord(Struct, omit_defaults=True):
    """What is kept of a reply's reasoning: who sent it, under which field, and what else came with it."""

    host: str
    field: str
    """`reasoning_content`, `reasoning_details` or `extra_content`."""
    details: list[dict[str, object]] = []
    extras: dict[int, object] = {}
    """By the place of the call it came with."""


class ChatPiece(NamedTuple):
    """One message, rendered: whole messages, or words and pictures still to be joined with their neighbours'."""

    whole: bytes = b""
    text: bytes = b""
    """The inside of a JSON string."""
    images: bytes = b""
    """Content parts, joined by commas."""

    @property
    def size(self) -> int:
        return len(self.whole) + len(self.text) + len(self.images)


class ChatRenderer:
    """Renders prompts for one model of one host."""

    def __init__(self, choice: ModelChoice, host: str, blobs: Blobs) -> None:
        self._choice = choice
        self._host = host
        self._blobs = blobs
        known_as = f"{host} {choice.model}".lower()
        self._needs_reasoning_content = any(name in known_as for name in _NEED_REASONING_CONTENT)
        self._needs_bridge = any(name in known_as for name in _NEED_BRIDGE)
        self._cache = RenderCache(self._piece, lambda piece: piece.size)
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def render(self, prompt: Prompt) -> bytes:
        fields = [
            b'"model":' + encode(self._choice.model),
            b'"messages":[' + b",".join(_system_message(prompt) + self._messages(prompt)) + b"]",
            b'"stream":true',
        ]
        if not self._host.endswith("mistral.ai"):
            # Mistral tells the usage unasked, and refuses to be asked.
            fields.append(b'"stream_options":{"include_usage":true}')
        if prompt.tools:
            fields.append(b'"tools":' + self._tool_list(prompt.tools))
        if self._choice.effort:
            fields.append(b'"reasoning_effort":' + encode(self._choice.effort))
        if self._choice.max_output_tokens:
            # OpenAI's own reasoning models refuse the older name, most other servers know nothing else.
            own = self._host.endswith(("api.openai.com", ".azure.com"))
            fields.append(
                b'"%s":%d' % (b"max_completion_tokens" if own else b"max_tokens", self._choice.max_output_tokens)
            )
        return b"{" + b",".join(fields) + b"}"

    def _messages(self, prompt: Prompt) -> list[bytes]:
        out: list[bytes] = []
        asked: list[tuple[bytes, bytes]] = []
        get = self._cache.get
        for message in prompt.messages:
            whole, text, seen = get(message)
            if whole:
                if asked or not out:
                    out.append(_user_message(asked or [(encode(SESSION_START)[1:-1], b"")]))
                    asked = []
                out.append(whole)
            if text or seen:
                asked.append((text, seen))
        last = prompt.tail or ("" if asked or _ends_with_results(prompt) else CONTINUE)
        if last:
            asked.append((encode(last)[1:-1], b""))
        if asked:
            out.append(_user_message(asked))
        return _with_bridges(out) if self._needs_bridge else out

    def _piece(self, message: Message) -> ChatPiece:
        match message:
            case UserMessage(text=text, images=images):
                return ChatPiece(text=b"" if is_blank(text) else encode(text)[1:-1], images=self._image_parts(images))
            case AssistantMessage():
                return ChatPiece(self._assistant_message(message))
            case ToolMessage(results=results):
                outputs = b",".join(
                    encode({"role": "tool", "tool_call_id": wire_id(r.call), "content": r.text or NO_OUTPUT})
                    for r in results
                )
                # A tool message holds words only, so its pictures follow as the person's.
                seen = self._image_parts(tuple(image for result in results for image in result.images))
                return ChatPiece(outputs, encode(TOOL_IMAGE)[1:-1] if seen else b"", seen)

    def _image_parts(self, images: tuple[Image, ...]) -> bytes:
        parts: list[bytes] = []
        for image in images:
            found = encode_image(image, self._blobs)
            part = (
                {"type": "image_url", "image_url": {"url": found.url}}
                if found
                else {"type": "text", "text": IMAGE_UNAVAILABLE}
            )
            parts.append(encode(part))
        return b",".join(parts)

    def _assistant_message(self, message: AssistantMessage) -> bytes:
        said = None if is_blank(message.text) else message.text
        if said is None and not message.calls:
            return b""
        fields: dict[str, object] = {"role": "assistant", "content": said}
        if message.calls:
            thoughts = [
                (part.text, thought) for part in message.reasoning if (thought := self._reasoning_of_host(part))
            ]
            extras = self._call_extras([thought for _, thought in thoughts])
            fields["tool_calls"] = [_tool_call(call) | extras.get(n, {}) for n, call in enumerate(message.calls)]
            fields.update(self._reasoning_fields(thoughts))
        return encode(fields)

    def _reasoning_of_host(self, part: Reasoning) -> ReasoningRecord | None:
        """What this host sent; reasoning of another is of no use to it."""
        if part.wire != WIRE or not part.opaque:
            return None
        try:
            thought = msgspec.json.decode(part.opaque, type=ReasoningRecord)
        except msgspec.DecodeError:
            return None
        return thought if thought.host == self._host else None

    def _call_extras(self, thoughts: list[ReasoningRecord]) -> dict[int, dict[str, object]]:
        """Signatures that came with single calls. Gemini refuses calls without one, save for this stand-in."""
        found = {at: {"extra_content": extra} for thought in thoughts for at, extra in thought.extras.items()}
        if not found and self._host.endswith("googleapis.com"):
            return {0: {"extra_content": {"google": {"thought_signature": _NO_SIGNATURE}}}}
        return found

    def _reasoning_fields(self, thoughts: list[tuple[str, ReasoningRecord]]) -> dict[str, object]:
        """The reasoning to send back beside calls.

        DeepSeek and Kimi refuse a call of a thinking model without its `reasoning_content`, even an empty one;
        OpenRouter hands `reasoning_details` on to providers with signatures. Nobody needs it beside plain text, and
        servers that never sent it may refuse it: so it goes back beside calls, to the host it came from, only.
        """
        fields: dict[str, object] = {}
        for text, thought in thoughts:
            if thought.field == "reasoning_content":
                fields["reasoning_content"] = text
            elif thought.details:
                fields["reasoning_details"] = thought.details
        return fields or ({"reasoning_content": ""} if self._needs_reasoning_content else {})

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, encode([_tool_definition(tool) for tool in tools]))
        return self._tools[1]


def _system_message(prompt: Prompt) -> list[bytes]:
    return [] if is_blank(prompt.system) else [encode({"role": "system", "content": prompt.system})]


def _ends_with_results(prompt: Prompt) -> bool:
    return bool(prompt.messages) and isinstance(prompt.messages[-1], ToolMessage)


def _with_bridges(messages: list[bytes]) -> list[bytes]:
    """Mistral's models want a word of their own between results and the person's words."""
    out: list[bytes] = []
    for message in messages:
        if message.startswith(b'{"role":"user"') and out and out[-1].startswith(b'{"role":"tool"'):
            out.append(_BRIDGE_MESSAGE)
        out.append(message)
    return out


def _user_message(asked: list[tuple[bytes, bytes]]) -> bytes:
    """One message of all these words and pictures, in their order."""
    words: list[bytes] = []
    parts: list[bytes] = []
    for text, pictures in asked:
        if text:
            words.append(text)
        if pictures:
            parts += [_text_part(words), pictures] if words else [pictures]
            words = []
    if not parts:
        return b'{"role":"user","content":"' + _PARAGRAPH_BREAK.join(words) + b'"}'
    parts += [_text_part(words)] if words else []
    return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def _text_part(words: list[bytes]) -> bytes:
    return b'{"type":"text","text":"' + _PARAGRAPH_BREAK.join(words) + b'"}'


def _tool_call(call: Call) -> dict[str, object]:
    written = {"name": tool_name(call.tool), "arguments": encode(call_arguments(call)).decode()}
    return {"id": wire_id(call.id), "type": "function", "function": written}


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": described}
