"""A chat completions request in our words: what is new, what went before, whose tools. Pure."""

import binascii
import re
from base64 import b64decode
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outrider.channels.http.failures import HttpError
from outrider.channels.http.shapes import ModelName
from outrider.core.parts import Call
from outrider.core.traits import ToolSpec

MOST_MESSAGES = 2_000
MOST_TOOLS = 128
LONG_HISTORY = 10
"""A history may be so many times as long as one message."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ImageUrl(Struct):
    """A picture as a `data:` URL."""

    url: str


class ContentPart(Struct):
    """A piece of a message: `text` or `image_url`."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    refusal: str | None = None


Content = str | list[ContentPart] | None


class SystemMessage(Struct, tag_field="role", tag="system"):
    """What the client asks of the whole session."""

    content: Content


class DeveloperMessage(Struct, tag_field="role", tag="developer"):
    """The same, as newer clients call it."""

    content: Content


class UserMessage(Struct, tag_field="role", tag="user"):
    """A person's words."""

    content: Content


class CalledFunction(Struct):
    """A tool's name and its arguments as JSON text."""

    name: str
    arguments: str = ""


class ToolCall(Struct):
    """A call of one of the client's tools."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    """What was answered before."""

    content: Content = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(Struct, tag_field="role", tag="tool"):
    """The result of a call."""

    tool_call_id: str
    content: Content


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class DescribedFunction(Struct):
    """A tool as the model is told of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Struct):
    """A tool of the client's own."""

    function: DescribedFunction
    type: Literal["function"]


class StreamOptions(Struct):
    """What else a stream tells."""

    include_usage: bool | None = None


class ResponseFormat(Struct):
    """Only `text`."""

    type: str = "text"


class ChatRequest(Struct):
    """A request for a chat completion. Fields that are not known are left out of account."""

    messages: list[ChatMessage]
    model: ModelName = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: Any = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None


class Words(Struct, frozen=True):
    """What a person said."""

    text: str
    images: tuple[bytes, ...] = ()


class Answer(Struct, frozen=True):
    """What a model said, with the calls it made: `(id on the wire, call)`."""

    text: str
    calls: tuple[tuple[str, Call], ...] = ()


class Outcome(Struct, frozen=True):
    """What came of a call of a client's tool, by the call's id on the wire."""

    call: str
    text: str


Said = Words | Answer | Outcome


class Order(Struct, frozen=True):
    """One request for a completion."""

    model: str
    instructions: str
    said: tuple[Said, ...]
    """All messages but the system's, in order; at least one."""
    tools: tuple[ToolSpec, ...] = ()
    is_stream: bool = False
    wants_usage: bool = False

    @property
    def news(self) -> tuple[Said, ...]:
        """What came after the model's last words."""
        return self.said[self._answered + 1 :]

    @property
    def words(self) -> Words:
        """What the person says now; empty when only results came."""
        new = [one for one in self.news if isinstance(one, Words)]
        return Words(
            "\n\n".join(one.text for one in new if one.text), tuple(image for one in new for image in one.images)
        )

    @property
    def is_silent(self) -> bool:
        """Whether nothing is said now: only results came."""
        return not self.words.text.strip() and not self.words.images

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Results that came for the model's last calls."""
        return tuple(one for one in self.news if isinstance(one, Outcome))

    @property
    def called(self) -> tuple[str, ...]:
        """The ids on the wire of the model's last calls."""
        last = self.said[self._answered] if self._answered >= 0 else None
        return tuple(id for id, _ in last.calls) if isinstance(last, Answer) else ()

    @property
    def past(self) -> tuple[Said, ...]:
        """What a new session begins with: everything that is not said now."""
        return self.said[: self._answered + 1] + self.outcomes

    @property
    def _answered(self) -> int:
        return max((at for at, one in enumerate(self.said) if isinstance(one, Answer)), default=-1)


_decode = msgspec.json.Decoder(ChatRequest).decode


def parse_order(body: bytes, longest: int) -> Order:
    """Raises HttpError 400 with words for whoever wrote the request. `longest` bounds one message, in characters."""
    try:
        wire = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"this is no chat completions request: {error}") from None
    _check(wire)
    system = [m for m in wire.messages if isinstance(m, SystemMessage | DeveloperMessage)]
    order = Order(
        model=wire.model.strip(),
        instructions="\n\n".join(text for message in system if (text := _text(message.content, "system").strip())),
        said=tuple(_said(m) for m in wire.messages if not isinstance(m, SystemMessage | DeveloperMessage)),
        tools=() if wire.tool_choice == "none" else tuple(_spec(tool) for tool in wire.tools or ()),
        is_stream=bool(wire.stream),
        wants_usage=bool(wire.stream_options and wire.stream_options.include_usage),
    )
    _check_order(order, longest)
    return order


def bad(message: str, code: str = "invalid_request") -> HttpError:
    """A request that must be written differently."""
    return HttpError(400, message, code)


def _check(wire: ChatRequest) -> None:
    if len(wire.messages) > MOST_MESSAGES:
        raise bad(f"{len(wire.messages):,} messages are too many; at most {MOST_MESSAGES:,} are taken")
    if wire.n is not None and wire.n != 1:
        raise bad("n must be 1: one turn gives one answer")
    if wire.functions is not None:
        raise bad("functions is not taken; describe them in tools")
    if len(wire.tools or ()) > MOST_TOOLS:
        raise bad(f"at most {MOST_TOOLS} tools are taken")
    if wire.tool_choice not in (None, "auto", "none"):
        raise bad("tool_choice must be auto or none: which tool to use is left to the model")
    if wire.response_format and wire.response_format.type != "text":
        raise bad("response_format must be text: ask for JSON in your words instead")
    if wire.modalities and wire.modalities != ["text"]:
        raise bad("modalities must be text: nothing else is said here")


def _check_order(order: Order, longest: int) -> None:
    if not order.said:
        raise bad("messages holds nobody's words: send at least one user message")
    if not order.news:
        raise bad("the last message must be a user's or a tool's, not the assistant's")
    lengths = [len(order.instructions), *(len(one.text) for one in order.said)]
    if max(lengths) > longest:
        raise bad(f"a message has {max(lengths):,} characters; at most {longest:,} are taken (limits.input)")
    if sum(lengths) > LONG_HISTORY * longest:
        raise bad(f"the messages have {sum(lengths):,} characters; at most {LONG_HISTORY * longest:,} are taken")
    names = [spec.name for spec in order.tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise bad(f"there are two tools called {min(twice)!r}")
    if foreign := [one.call for one in order.outcomes if one.call not in order.called]:
        raise bad(f"no assistant message before it has a tool call {foreign[0][:80]!r}")


def _said(message: UserMessage | AssistantMessage | ToolMessage) -> Said:
    match message:
        case UserMessage(content=content):
            return Words(_text(content, "user"), _images(content))
        case AssistantMessage(content=content, tool_calls=calls):
            return Answer(_text(content, "assistant"), tuple((call.id, _call(call)) for call in calls or ()))
        case ToolMessage(tool_call_id=call, content=content):
            return Outcome(call, _text(content, "tool"))


_TAKEN = {"user": ("text", "image_url"), "assistant": ("text", "refusal")}


def _text(content: Content, role: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _TAKEN.get(role, ("text",)):
            raise bad(f"a content part of type {part.type[:40]!r} is not taken in a message of the {role}")
    return "\n".join(text for part in content if (text := part.text or part.refusal))


def _images(content: Content) -> tuple[bytes, ...]:
    parts = content if isinstance(content, list) else ()
    return tuple(_image(part) for part in parts if part.type == "image_url")


def _image(part: ContentPart) -> bytes:
    url = part.image_url.url if part.image_url else ""
    head, comma, encoded = url.partition(",")
    if not head.startswith("data:"):
        raise bad(
            "pictures are not fetched from addresses: send this one inside the request, as data:image/png;base64,…",
            "image_url",
        )
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("no base64")
        return b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise bad("a picture's data: URL is not valid base64", "image_url") from None


def _call(call: ToolCall) -> Call:
    """With no id of ours yet; that depends on its place in a journal."""
    written = call.function.arguments
    try:
        args = msgspec.json.decode(written or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return Call("", call.function.name, {}, broken=written)
    return Call("", call.function.name, args)


def _spec(tool: ChatTool) -> ToolSpec:
    described = tool.function
    if not _NAME.fullmatch(described.name):
        raise bad(f"a tool's name has 1 to 64 letters, digits, _ or -; {described.name[:80]!r} has not")
    schema = described.parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise bad(f"the parameters of the tool {described.name} must be an object")
    return ToolSpec(described.name, described.description or "", {"type": "object", **schema})
