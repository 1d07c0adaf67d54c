"""A chat completions request in our words: what is new, what went before, whose tools. Pure.

A responses request in our words: the conversation as chat completions have it, and where it goes on. Pure.
"""

import binascii
import re
from base64 import b64decode
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outrider.channels.http.errors import HttpError
from outrider.channels.http.schemas import ModelName
from outrider.core.types import Call, ToolSpec

MAX_MESSAGES = 2_000
MAX_TOOLS = 128
HISTORY_FACTOR = 10
"""A history may be so many times as long as one message."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ImageUrl(Struct):
    """A picture as a `data:` URL."""

    url: str


class ContentPart(Struct):
    """A piece of a message: `text` or `image_url`."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    refusal: str | None = None


ChatContent = str | list[ContentPart] | None


class ChatSystemMessage(Struct, tag_field="role", tag="system"):
    """What the client asks of the whole session."""

    content: ChatContent


class ChatDeveloperMessage(Struct, tag_field="role", tag="developer"):
    """The same, as newer clients call it."""

    content: ChatContent


class ChatUserMessage(Struct, tag_field="role", tag="user"):
    """A person's words."""

    content: ChatContent


class FunctionCall(Struct):
    """A tool's name and its arguments as JSON text."""

    name: str
    arguments: str = ""


class ChatToolCall(Struct):
    """A call of one of the client's tools."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatAssistantMessage(Struct, tag_field="role", tag="assistant"):
    """What was answered before."""

    content: ChatContent = None
    tool_calls: list[ChatToolCall] | None = None


class ChatToolMessage(Struct, tag_field="role", tag="tool"):
    """The result of a call."""

    tool_call_id: str
    content: ChatContent


ChatMessage = ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage


class FunctionDefinition(Struct):
    """A tool as the model is told of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Struct):
    """A tool of the client's own."""

    function: FunctionDefinition
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


class UserTurn(Struct, frozen=True):
    """What a person said."""

    text: str
    images: tuple[bytes, ...] = ()


class AssistantTurn(Struct, frozen=True):
    """What a model said, with the calls it made: `(id on the wire, call)`."""

    text: str
    calls: tuple[tuple[str, Call], ...] = ()


class ToolOutput(Struct, frozen=True):
    """What came of a call of a client's tool, by the call's id on the wire."""

    call: str
    text: str


ConversationItem = UserTurn | AssistantTurn | ToolOutput


class ParsedConversation(Struct, frozen=True):
    """One request for a completion."""

    model: str
    instructions: str
    items: tuple[ConversationItem, ...]
    """All messages but the system's, in order; at least one."""
    tools: tuple[ToolSpec, ...] = ()
    is_stream: bool = False
    wants_usage: bool = False

    @property
    def new_items(self) -> tuple[ConversationItem, ...]:
        """What came after the model's last words."""
        return self.items[self._last_answer_index + 1 :]

    @property
    def new_message(self) -> UserTurn:
        """What the person says now; empty when only results came."""
        new = [one for one in self.new_items if isinstance(one, UserTurn)]
        return UserTurn(
            "\n\n".join(one.text for one in new if one.text), tuple(image for one in new for image in one.images)
        )

    @property
    def has_no_message(self) -> bool:
        """Whether nothing is said now: only results came."""
        return not self.new_message.text.strip() and not self.new_message.images

    @property
    def tool_outputs(self) -> tuple[ToolOutput, ...]:
        """Results that came for the model's last calls."""
        return tuple(one for one in self.new_items if isinstance(one, ToolOutput))

    @property
    def last_call_ids(self) -> tuple[str, ...]:
        """The ids on the wire of the model's last calls."""
        last = self.items[self._last_answer_index] if self._last_answer_index >= 0 else None
        return tuple(id for id, _ in last.calls) if isinstance(last, AssistantTurn) else ()

    @property
    def history(self) -> tuple[ConversationItem, ...]:
        """What a new session begins with: everything that is not said now."""
        return self.items[: self._last_answer_index + 1] + self.tool_outputs

    @property
    def _last_answer_index(self) -> int:
        return max((at for at, one in enumerate(self.items) if isinstance(one, AssistantTurn)), default=-1)


_decode_chat = msgspec.json.Decoder(ChatRequest).decode


def parse_chat_request(body: bytes, longest: int) -> ParsedConversation:
    """Raises HttpError 400 with words for whoever wrote the request. `longest` bounds one message, in characters."""
    try:
        wire = _decode_chat(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"this is no chat completions request: {error}") from None
    _check_chat_request(wire)
    system = [m for m in wire.messages if isinstance(m, ChatSystemMessage | ChatDeveloperMessage)]
    order = ParsedConversation(
        model=wire.model.strip(),
        instructions="\n\n".join(text for message in system if (text := _text(message.content, "system").strip())),
        items=tuple(
            _parse_message(m) for m in wire.messages if not isinstance(m, ChatSystemMessage | ChatDeveloperMessage)
        ),
        tools=() if wire.tool_choice == "none" else tuple(_tool_spec(tool) for tool in wire.tools or ()),
        is_stream=bool(wire.stream),
        wants_usage=bool(wire.stream_options and wire.stream_options.include_usage),
    )
    _check_conversation(order, longest)
    return order


def invalid_request(message: str, code: str = "invalid_request") -> HttpError:
    """A request that must be written differently."""
    return HttpError(400, message, code)


def _check_chat_request(wire: ChatRequest) -> None:
    if len(wire.messages) > MAX_MESSAGES:
        raise invalid_request(f"{len(wire.messages):,} messages are too many; at most {MAX_MESSAGES:,} are taken")
    if wire.n is not None and wire.n != 1:
        raise invalid_request("n must be 1: one turn gives one answer")
    if wire.functions is not None:
        raise invalid_request("functions is not taken; describe them in tools")
    if len(wire.tools or ()) > MAX_TOOLS:
        raise invalid_request(f"at most {MAX_TOOLS} tools are taken")
    if wire.tool_choice not in (None, "auto", "none"):
        raise invalid_request("tool_choice must be auto or none: which tool to use is left to the model")
    if wire.response_format and wire.response_format.type != "text":
        raise invalid_request("response_format must be text: ask for JSON in your words instead")
    if wire.modalities and wire.modalities != ["text"]:
        raise invalid_request("modalities must be text: nothing else is said here")


def _check_conversation(order: ParsedConversation, longest: int) -> None:
    if not order.items:
        raise invalid_request("messages holds nobody's words: send at least one user message")
    if not order.new_items:
        raise invalid_request("the last message must be a user's or a tool's, not the assistant's")
    lengths = [len(order.instructions), *(len(one.text) for one in order.items)]
    if max(lengths) > longest:
        raise invalid_request(
            f"a message has {max(lengths):,} characters; at most {longest:,} are taken (limits.input)"
        )
    if sum(lengths) > HISTORY_FACTOR * longest:
        raise invalid_request(
            f"the messages have {sum(lengths):,} characters; at most {HISTORY_FACTOR * longest:,} are taken"
        )
    names = [spec.name for spec in order.tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise invalid_request(f"there are two tools called {min(twice)!r}")
    if foreign := [one.call for one in order.tool_outputs if one.call not in order.last_call_ids]:
        raise invalid_request(f"no assistant message before it has a tool call {foreign[0][:80]!r}")


def _parse_message(message: ChatUserMessage | ChatAssistantMessage | ChatToolMessage) -> ConversationItem:
    match message:
        case ChatUserMessage(content=content):
            return UserTurn(_text(content, "user"), _images(content))
        case ChatAssistantMessage(content=content, tool_calls=calls):
            return AssistantTurn(_text(content, "assistant"), tuple((call.id, _call(call)) for call in calls or ()))
        case ChatToolMessage(tool_call_id=call, content=content):
            return ToolOutput(call, _text(content, "tool"))


_ALLOWED_PARTS = {"user": ("text", "image_url"), "assistant": ("text", "refusal")}


def _text(content: ChatContent, role: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _ALLOWED_PARTS.get(role, ("text",)):
            raise invalid_request(f"a content part of type {part.type[:40]!r} is not taken in a message of the {role}")
    return "\n".join(text for part in content if (text := part.text or part.refusal))


def _images(content: ChatContent) -> tuple[bytes, ...]:
    parts = content if isinstance(content, list) else ()
    return tuple(_image(part) for part in parts if part.type == "image_url")


def _image(part: ContentPart) -> bytes:
    url = part.image_url.url if part.image_url else ""
    head, comma, encoded = url.partition(",")
    if not head.startswith("data:"):
        raise invalid_request(
            "pictures are not fetched from addresses: send this one inside the request, as data:image/png;base64,…",
            "image_url",
        )
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("no base64")
        return b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise invalid_request("a picture's data: URL is not valid base64", "image_url") from None


def _call(call: ChatToolCall) -> Call:
    """With no id of ours yet; that depends on its place in a journal."""
    written = call.function.arguments
    try:
        args = msgspec.json.decode(written or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return Call("", call.function.name, {}, broken=written)
    return Call("", call.function.name, args)


def _tool_spec(tool: ChatTool) -> ToolSpec:
    described = tool.function
    if not _TOOL_NAME.fullmatch(described.name):
        raise invalid_request(f"a tool's name has 1 to 64 letters, digits, _ or -; {described.name[:80]!r} has not")
    schema = described.parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise invalid_request(f"the parameters of the tool {described.name} must be an object")
    return ToolSpec(described.name, described.description or "", {"type": "object", **schema})


_TEXT_PARTS = ("input_text", "output_text", "text")


class InputPart(Struct):
    """A piece of an item: `input_text`, `output_text` or `input_image`."""

    type: str
    text: str | None = None
    image_url: str | None = None
    refusal: str | None = None


class InputItem(Struct):
    """A `message`, a `function_call`, or a `function_call_output`; which fields count follows from its type."""

    type: str = "message"
    role: str = ""
    content: str | list[InputPart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[InputPart] | None = None


class FunctionTool(Struct):
    """A tool of the client's own."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ConversationReference(Struct):
    """A session, by its name or id."""

    id: str


class TextFormat(Struct):
    """Only `text`."""

    type: str = "text"


class TextOptions(Struct):
    """How the words are to be."""

    format: TextFormat | None = None


class ResponsesRequest(Struct):
    """A request for a response. Fields that are not known are left out of account."""

    input: str | list[InputItem]
    model: ModelName | None = None
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None


class ParsedResponsesRequest(Struct, frozen=True):
    """One request for a response."""

    conversation: ParsedConversation
    previous_response_id: str
    """The response it goes on from, by its id."""
    conversation_id: str
    """The session it belongs to, by name or id."""
    is_stored: bool
    is_background: bool
    needs_calls: bool = False
    """Whether it holds results of calls that only the session knows."""


_decode_responses = msgspec.json.Decoder(ResponsesRequest).decode


def parse_responses_request(body: bytes, longest: int) -> ParsedResponsesRequest:
    """Raises HttpError 400 with words for whoever wrote the request. `longest` bounds one message, in characters."""
    try:
        wire = _decode_responses(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"this is no responses request: {error}") from None
    conversation = wire.conversation.id if isinstance(wire.conversation, ConversationReference) else wire.conversation
    wanted = ParsedResponsesRequest(
        conversation=ParsedConversation("", "", ()),
        previous_response_id=wire.previous_response_id or "",
        conversation_id=(conversation or "").strip(),
        is_stored=wire.store is not False,
        is_background=bool(wire.background),
    )
    _check_responses_request(wire, wanted)
    messages = _messages(wire)
    needs_calls = bool(wanted.previous_response_id or wanted.conversation_id) and _add_missing_calls(messages)
    chat = ChatRequest(
        messages=[ChatSystemMessage(wire.instructions), *messages] if wire.instructions else messages,
        model=wire.model or "",
        stream=wire.stream,
        tools=[_chat_tool(tool) for tool in wire.tools] if wire.tools else None,
        tool_choice=wire.tool_choice,
    )
    order = parse_chat_request(msgspec.json.encode(chat), longest)
    return msgspec.structs.replace(wanted, conversation=order, needs_calls=needs_calls)


def _check_responses_request(wire: ResponsesRequest, parsed: ParsedResponsesRequest) -> None:
    if parsed.previous_response_id and parsed.conversation_id:
        raise invalid_request("previous_response_id and conversation both say where to go on; send one of them")
    if parsed.is_background and not parsed.is_stored:
        raise invalid_request("background needs store: nobody could come back for this response")
    if wire.text and wire.text.format and wire.text.format.type != "text":
        raise invalid_request("text.format must be text: ask for JSON in your words instead")


def _messages(wire: ResponsesRequest) -> list[ChatMessage]:
    items = [InputItem(role="user", content=wire.input)] if isinstance(wire.input, str) else wire.input
    messages: list[ChatMessage] = []
    for item in items:
        _append_item(messages, item)
    return messages


def _append_item(messages: list[ChatMessage], item: InputItem) -> None:
    match item.type:
        case "message":
            messages.append(_message_of_item(item))
        case "function_call":
            call = ChatToolCall(item.call_id, FunctionCall(item.name, item.arguments))
            last = messages[-1] if messages else None
            if isinstance(last, ChatAssistantMessage):  # what was said and called in one reply is one message there
                last.tool_calls = [*(last.tool_calls or ()), call]
            else:
                messages.append(ChatAssistantMessage(tool_calls=[call]))
        case "function_call_output":
            messages.append(ChatToolMessage(item.call_id, _chat_content(item.output)))
        case "reasoning":
            pass  # ours to keep: it is in the session, and means nothing elsewhere
        case other:
            raise invalid_request(f"an input item of type {other[:40]!r} is not taken")


def _message_of_item(item: InputItem) -> ChatMessage:
    content = _chat_content(item.content)
    match item.role:
        case "user":
            return ChatUserMessage(content)
        case "assistant":
            return ChatAssistantMessage(content)
        case "system":
            return ChatSystemMessage(content)
        case "developer":
            return ChatDeveloperMessage(content)
        case other:
            raise invalid_request(f"a message's role is user, assistant, system or developer, not {other[:40]!r}")


def _add_missing_calls(messages: list[ChatMessage]) -> bool:
    """Put in the calls that are in the session and not in the request, so that their results have something to follow.

    The session's journal knows them better; only their ids count. False when there are none.
    """
    said = [(at, one) for at, one in enumerate(messages) if isinstance(one, ChatAssistantMessage)]
    known = {call.id for _, one in said for call in one.tool_calls or ()}
    given = dict.fromkeys(one.tool_call_id for one in messages if isinstance(one, ChatToolMessage))
    if missing := [id for id in given if id not in known]:
        calls = [ChatToolCall(id, FunctionCall("unknown")) for id in missing]
        messages.insert(said[-1][0] + 1 if said else 0, ChatAssistantMessage(tool_calls=calls))
    return bool(missing)


def _chat_content(content: str | list[InputPart] | None) -> str | list[ContentPart] | None:
    return [_chat_part(part) for part in content] if isinstance(content, list) else content


def _chat_part(part: InputPart) -> ContentPart:
    if part.type in _TEXT_PARTS:
        return ContentPart("text", part.text)
    if part.type == "input_image":
        return ContentPart("image_url", image_url=ImageUrl(part.image_url or ""))
    return ContentPart(part.type, refusal=part.refusal)


def _chat_tool(tool: FunctionTool) -> ChatTool:
    if tool.type != "function":
        raise invalid_request(f"a tool of type {tool.type[:40]!r} is not taken; describe your own as functions")
    return ChatTool(FunctionDefinition(tool.name, tool.description, tool.parameters), "function")


IGNORED_HEADER = "x-outrider-ignored"
"""Names the parameters of a request that were not used."""


class SamplingParameters(Struct):
    """What a client may ask of the model itself. It is taken and not used: the model's own settings hold."""

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


_decode_sampling = msgspec.json.Decoder(SamplingParameters).decode


def ignored_parameters_header(body: bytes) -> dict[str, str]:
    """A header that names what of a request was not used; nothing where all was."""
    asked = _decode_sampling(body)
    names = [name for name in SamplingParameters.__struct_fields__ if getattr(asked, name) is not None]
    return {IGNORED_HEADER: ", ".join(names)} if names else {}
