"""A responses request in our words: the conversation as chat completions have it, and where it goes on. Pure."""

from typing import Any

import msgspec
from msgspec import Struct

from outrider.channels.http.chat_parse import (
    ChatAssistantMessage,
    ChatDeveloperMessage,
    ChatMessage,
    ChatRequest,
    ChatSystemMessage,
    ChatTool,
    ChatToolCall,
    ChatToolMessage,
    ChatUserMessage,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    ImageUrl,
    ParsedConversation,
    invalid_request,
    parse_chat_request,
)
from outrider.channels.http.shapes import ModelName

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
    return msgspec.structs.replace(wanted, order=order, needs_calls=needs_calls)


def _check_responses_request(wire: ResponsesRequest, wanted: ParsedResponsesRequest) -> None:
    if wanted.previous_response_id and wanted.conversation_id:
        raise invalid_request("previous_response_id and conversation both say where to go on; send one of them")
    if wanted.is_background and not wanted.is_stored:
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
