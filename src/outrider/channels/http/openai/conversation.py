"""Conversations of OpenAI's two APIs in one shape: new messages, history, tool outputs and client tools. Pure."""

import binascii
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.channels.http.errors import HttpError
from outrider.channels.http.schemas import ModelName
from outrider.core.types import Call, ToolSpec

MAX_MESSAGES = 2_000
MAX_TOOLS = 128
HISTORY_FACTOR = 10
"""All messages together may be this many times as long as one message."""
IGNORED_HEADER = "x-outrider-ignored"
"""The response header that names the request's ignored parameters."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ALLOWED_PARTS = {"user": ("text", "image"), "assistant": ("text", "refusal")}


class SamplingParameters(Struct, kw_only=True):
    """Parameters that are accepted and ignored: the model's own settings apply."""

    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    temperature: Any = None
    top_p: Any = None
    stop: Any = None
    seed: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None


class ConversationRequest(SamplingParameters, kw_only=True):
    """The fields that requests of both APIs have."""

    model: ModelName | None = None
    stream: bool | None = None
    tool_choice: str | dict[str, Any] | None = None


class MessagePart(Struct, frozen=True):
    """A part of a message's content."""

    kind: str
    """`text`, `refusal` or `image`; anything else is the type of a part that no message may have."""
    value: str
    """The text, or the image's URL."""


class UserTurn(Struct, frozen=True):
    """A message of the user."""

    text: str
    images: tuple[bytes, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.text.strip() and not self.images


class AssistantTurn(Struct, frozen=True):
    """A message of the model, with the calls it made: `(id on the wire, call)`."""

    text: str
    calls: tuple[tuple[str, Call], ...] = ()


class ToolOutput(Struct, frozen=True):
    """The output of a client tool, for a call by its id on the wire."""

    call: str
    text: str


ConversationItem = UserTurn | AssistantTurn | ToolOutput


class ParsedConversation(Struct, frozen=True):
    """The conversation that one request holds."""

    model: str
    instructions: str
    items: tuple[ConversationItem, ...]
    """All messages except the system's, in order; at least one."""
    tools: tuple[ToolSpec, ...] = ()
    is_stream: bool = False
    wants_usage: bool = False
    ignored: tuple[str, ...] = ()
    """The names of the parameters that were ignored."""

    @property
    def new_items(self) -> tuple[ConversationItem, ...]:
        """What follows the model's last message."""
        return self.items[self._last_answer_index + 1 :]

    @property
    def new_message(self) -> UserTurn:
        """The user's new messages as one; empty when there are only tool outputs."""
        turns = [one for one in self.new_items if isinstance(one, UserTurn)]
        text = "\n\n".join(turn.text for turn in turns if turn.text)
        return UserTurn(text, tuple(image for turn in turns for image in turn.images))

    @property
    def has_no_message(self) -> bool:
        return self.new_message.is_empty

    @property
    def tool_outputs(self) -> tuple[ToolOutput, ...]:
        """Outputs for the model's last calls."""
        return tuple(one for one in self.new_items if isinstance(one, ToolOutput))

    @property
    def last_call_ids(self) -> tuple[str, ...]:
        """The ids on the wire of the model's last calls."""
        last = self.items[self._last_answer_index] if self._last_answer_index >= 0 else None
        return tuple(id for id, _ in last.calls) if isinstance(last, AssistantTurn) else ()

    @property
    def history(self) -> tuple[ConversationItem, ...]:
        """What a new session begins with: everything but the new message."""
        return self.items[: self._last_answer_index + 1] + self.tool_outputs

    @property
    def ignored_header(self) -> Mapping[str, str]:
        return {IGNORED_HEADER: ", ".join(self.ignored)} if self.ignored else {}

    @property
    def _last_answer_index(self) -> int:
        return max((at for at, one in enumerate(self.items) if isinstance(one, AssistantTurn)), default=-1)


def build_conversation(
    request: ConversationRequest,
    items: Sequence[ConversationItem],
    *,
    instructions: Iterable[str],
    tools: Iterable[ToolSpec],
    max_chars: int,
    wants_usage: bool = False,
) -> ParsedConversation:
    """Check what both APIs require of a conversation. Raises 400. `max_chars` bounds one message."""
    if len(items) > MAX_MESSAGES:
        raise invalid_request(f"too many messages: {len(items):,}; at most {MAX_MESSAGES:,} are allowed")
    if request.tool_choice not in (None, "auto", "none"):
        raise invalid_request("tool_choice must be auto or none: the model decides which tool to use")
    conversation = ParsedConversation(
        model=(request.model or "").strip(),
        instructions="\n\n".join(text for one in instructions if (text := one.strip())),
        items=tuple(items),
        tools=() if request.tool_choice == "none" else tuple(tools),
        is_stream=bool(request.stream),
        wants_usage=wants_usage,
        ignored=tuple(name for name in SamplingParameters.__struct_fields__ if getattr(request, name) is not None),
    )
    if not conversation.items:
        raise invalid_request("there is no message: send at least one user message")
    if not conversation.new_items:
        raise invalid_request("the last message must be from the user or a tool, not from the assistant")
    lengths = [len(conversation.instructions), *(len(one.text) for one in conversation.items)]
    if max(lengths) > max_chars:
        raise invalid_request(
            f"a message has {max(lengths):,} characters; at most {max_chars:,} are allowed (limits.input)"
        )
    if sum(lengths) > HISTORY_FACTOR * max_chars:
        raise invalid_request(
            f"the messages have {sum(lengths):,} characters; at most {HISTORY_FACTOR * max_chars:,} are allowed"
        )
    if len(conversation.tools) > MAX_TOOLS:
        raise invalid_request(f"at most {MAX_TOOLS} tools are allowed")
    names = [spec.name for spec in conversation.tools]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise invalid_request(f"there are two tools named {min(duplicates)!r}")
    for output in conversation.tool_outputs:
        if output.call not in conversation.last_call_ids:
            raise output_without_call(output)
    return conversation


def invalid_request(message: str, code: str = "invalid_request") -> HttpError:
    return HttpError(400, message, code)


def output_without_call(output: ToolOutput) -> HttpError:
    return invalid_request(f"no earlier assistant message has the tool call {output.call[:80]!r}")


def parse_parts(role: str, parts: Sequence[MessagePart]) -> tuple[str, tuple[bytes, ...]]:
    """The text and the images of a message. Raises 400 for a part that this role may not have."""
    for part in parts:
        if part.kind not in _ALLOWED_PARTS.get(role, ("text",)):
            raise invalid_request(f"a content part of type {part.kind[:40]!r} is not supported in a {role} message")
    text = "\n".join(part.value for part in parts if part.kind != "image" and part.value)
    return text, tuple(_decode_image(part.value) for part in parts if part.kind == "image")


def _decode_image(url: str) -> bytes:
    head, comma, encoded = url.partition(",")
    if not head.startswith("data:"):
        raise invalid_request(
            "images are not fetched from URLs: send the image in the request, as data:image/png;base64,…", "image_url"
        )
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("no base64")
        return b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise invalid_request("an image's data: URL is not valid base64", "image_url") from None


def parse_call(name: str, arguments: str) -> Call:
    """A call of a client tool, without an id: that depends on its position in a journal."""
    try:
        return Call("", name, msgspec.json.decode(arguments or "{}", type=dict[str, object]))
    except (msgspec.DecodeError, RecursionError):
        return Call("", name, {}, broken=arguments)


def parse_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSpec:
    if not _TOOL_NAME.fullmatch(name):
        raise invalid_request(f"a tool's name must have 1 to 64 letters, digits, _ or -; {name[:80]!r} does not")
    schema = parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise invalid_request(f"the parameters of the tool {name} must be an object")
    return ToolSpec(name, description or "", {"type": "object", **schema})
