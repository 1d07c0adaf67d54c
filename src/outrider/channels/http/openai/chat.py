"""`/v1/chat/completions`: a turn for any OpenAI client. Closing the connection does not stop the turn."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.addresses import CHAT
from outrider.app.agent import Agent
from outrider.channels.http.endpoints import EVENT_STREAM, JSON, ApiCall, endpoint, log_failure
from outrider.channels.http.errors import HttpError, error_body, request_id
from outrider.channels.http.inputs import KEY_HEADER, accept_input, idempotency_key
from outrider.channels.http.openai.conversation import (
    AssistantTurn,
    ConversationItem,
    ConversationRequest,
    MessagePart,
    ParsedConversation,
    ToolOutput,
    UserTurn,
    build_conversation,
    invalid_request,
    parse_call,
    parse_parts,
    parse_tool,
)
from outrider.channels.http.openai.models import reported_model
from outrider.channels.http.openai.resolve_session import (
    SessionHint,
    address_token,
    check_conversation,
    input_request,
    requested_settings,
    resolve_session,
)
from outrider.channels.http.openai.turn_output import (
    TurnOutput,
    bounds_of,
    encode_call_id,
    follow_to_end,
    turn_error,
    unavailable_error,
)
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.errors import Refused, Unavailable
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.text import one_line
from outrider.core.types import Call, Usage

SESSION_HEADERS = ("x-session-id", "x-outrider-session-id", "x-hermes-session-id")
RESTART_COMMENT = ": the text above was retracted; the reply starts over\n\n"


class ImageUrl(Struct):
    """An image as a `data:` URL."""

    url: str


class ContentPart(Struct):
    """A part of a message: `text` or `image_url`."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    refusal: str | None = None


ChatContent = str | list[ContentPart] | None


class ChatSystemMessage(Struct, tag_field="role", tag="system"):
    """Instructions for the whole session."""

    content: ChatContent


class ChatDeveloperMessage(Struct, tag_field="role", tag="developer"):
    """The same under its newer role."""

    content: ChatContent


class ChatUserMessage(Struct, tag_field="role", tag="user"):
    """A message of the user."""

    content: ChatContent


class FunctionCall(Struct):
    """The name of a tool, and its arguments as JSON text."""

    name: str
    arguments: str = ""


class ChatToolCall(Struct):
    """A call of a client tool."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatAssistantMessage(Struct, tag_field="role", tag="assistant"):
    """An earlier message of the model."""

    content: ChatContent = None
    tool_calls: list[ChatToolCall] | None = None


class ChatToolMessage(Struct, tag_field="role", tag="tool"):
    """The output of a call."""

    tool_call_id: str
    content: ChatContent


ChatMessage = ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage


class FunctionDefinition(Struct):
    """A tool as the model sees it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Struct):
    """A tool that the client runs."""

    function: FunctionDefinition
    type: Literal["function"]


class StreamOptions(Struct):
    """What else a stream contains."""

    include_usage: bool | None = None


class ResponseFormat(Struct):
    """Only `text`."""

    type: str = "text"


class ChatRequest(ConversationRequest):
    """A request for a chat completion. Unknown fields are ignored."""

    messages: list[ChatMessage]
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    functions: Any = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None


_decode = msgspec.json.Decoder(ChatRequest).decode


def parse_chat_request(body: bytes, max_chars: int) -> ParsedConversation:
    """The conversation of a request. Raises 400. `max_chars` bounds one message."""
    try:
        wire = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"invalid chat completions request: {error}") from None
    if wire.n is not None and wire.n != 1:
        raise invalid_request("n must be 1: a turn has one result")
    if wire.functions is not None:
        raise invalid_request("functions is not supported; use tools")
    if wire.response_format and wire.response_format.type != "text":
        raise invalid_request("response_format must be text: ask for JSON in the message instead")
    if wire.modalities and wire.modalities != ["text"]:
        raise invalid_request("modalities must be text: there is no other output")
    items: list[ConversationItem] = []
    instructions: list[str] = []
    for message in wire.messages:
        match message:
            case ChatSystemMessage() | ChatDeveloperMessage():
                instructions.append(parse_parts("system", _parts(message.content))[0])
            case ChatUserMessage():
                items.append(UserTurn(*parse_parts("user", _parts(message.content))))
            case ChatAssistantMessage(tool_calls=calls):
                text, _ = parse_parts("assistant", _parts(message.content))
                parsed = ((call.id, parse_call(call.function.name, call.function.arguments)) for call in calls or ())
                items.append(AssistantTurn(text, tuple(parsed)))
            case ChatToolMessage(tool_call_id=id):
                items.append(ToolOutput(id, parse_parts("tool", _parts(message.content))[0]))
    functions = (tool.function for tool in wire.tools or ())
    return build_conversation(
        wire,
        items,
        instructions=instructions,
        tools=(parse_tool(one.name, one.description, one.parameters) for one in functions),
        max_chars=max_chars,
        wants_usage=bool(wire.stream and wire.stream_options and wire.stream_options.include_usage),
    )


def _parts(content: ChatContent) -> list[MessagePart]:
    if content is None or isinstance(content, str):
        return [MessagePart("text", content or "")]
    return [
        MessagePart("image", part.image_url.url if part.image_url else "")
        if part.type == "image_url"
        else MessagePart(part.type, part.text or part.refusal or "")
        for part in content
    ]


class CompletionRenderer(Struct, frozen=True):
    """Renders one completion and its chunks."""

    id: str
    created: int
    model: str
    session: str
    wants_usage: bool = False

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return self._chunk(choices, None)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def calls(self, calls: tuple[Call, ...]) -> bytes:
        return self.chunk({"tool_calls": [{"index": n, **self._render_call(call)} for n, call in enumerate(calls)]})

    def completion(self, output: TurnOutput) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": output.text or None, "refusal": None}
        if output.calls:
            message["tool_calls"] = [self._render_call(call) for call in output.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": output.finish_reason}
        fields = self._fields("chat.completion", [choice])
        return msgspec.json.encode({**fields, "usage": render_usage(output.usage)})

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        fields = self._fields("chat.completion.chunk", choices)
        if self.wants_usage:
            fields["usage"] = render_usage(usage) if usage else None
        return msgspec.json.encode(fields)

    def _fields(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _render_call(self, call: Call) -> dict[str, Any]:
        arguments = call.broken or msgspec.json.encode(call.args).decode()
        function = {"name": call.tool, "arguments": arguments}
        return {"id": encode_call_id(self.session, call.id), "type": "function", "function": function}


def render_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


@endpoint(
    "POST",
    "/v1/chat/completions",
    body=ChatRequest,
    media_types=[JSON, EVENT_STREAM],
    headers={
        "X-Session-Id": "continue this session; without it, the messages are the history",
        KEY_HEADER: "a request repeated with the same key gets the same completion and runs nothing twice",
    },
)
async def create_completion(call: ApiCall) -> Response:
    """Create a chat completion, whole or as a stream of chunks."""
    agent, request = call.agent, call.request
    conversation = parse_chat_request(await request.body(), agent.config.limits.input)
    empty = conversation.has_no_message
    check_conversation(conversation, empty="the last message is empty", with_history=True, is_open=empty)
    names = (request.headers.get(header, "").strip() for header in SESSION_HEADERS)
    hint = SessionHint(prefix="chat", name=next(filter(None, names), ""))
    settings = requested_settings(agent, conversation, hint)
    key = idempotency_key(call)
    resolved = await resolve_session(call, conversation, hint, key)
    id = f"chatcmpl-{address_token(resolved.session, key)}"
    new_input = input_request(agent, conversation, resolved, settings, channel=CHAT, address_id=id, key=key)
    accepted = await accept_input(call, new_input)
    session, entry = accepted.session, accepted.entry
    renderer = CompletionRenderer(id, entry.at // 1000, reported_model(settings), session.id, conversation.wants_usage)
    headers = {"x-session-id": resolved.public_name, **conversation.ignored_header}
    state = fold(await agent.journal(session, 0, entry.seq))
    output = TurnOutput(entry.seq, state, bounds_of(agent), is_live=accepted.is_next)
    if conversation.is_stream:
        return EventStreamResponse(_chunks(request, agent, session, renderer, output), headers)
    try:
        await follow_to_end(agent, session, output)
    except Unavailable as error:
        raise unavailable_error(error, headers, is_repeatable=bool(key)) from error
    if output.ended and output.ended.outcome != "done":
        error = turn_error(output.ended)
        raise HttpError(error.status, str(error), error.code, {**error.headers, **headers})
    return Response(renderer.completion(output), headers=headers, media_type=JSON)


async def _chunks(
    request: Request, agent: Agent, session: Session, renderer: CompletionRenderer, output: TurnOutput
) -> AsyncGenerator[bytes, None]:
    yield format_event(renderer.chunk({"role": "assistant", "content": ""}))
    try:
        async with aclosing(agent.follow(session, output.seq)) as events:
            async for event in events:
                chunk = output.add(event)
                if chunk.restarts_reply:
                    yield RESTART_COMMENT.encode()
                if chunk.text:
                    yield format_event(renderer.chunk({"content": chunk.text}))
                if output.is_over:
                    break
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        yield _error_event(request, HttpError(503, str(error), "unavailable"))
        return
    if output.ended and output.ended.outcome != "done":
        yield _error_event(request, turn_error(output.ended))
        return
    if output.calls:
        yield format_event(renderer.calls(output.calls))
    yield format_event(renderer.chunk({}, output.finish_reason))
    if renderer.wants_usage:
        yield format_event(renderer.usage(output.usage))
    yield format_event("[DONE]")


def _error_event(request: Request, error: HttpError) -> bytes:
    body = error_body(error.status, one_line(str(error)), error.code, request_id(request))
    return format_event(msgspec.json.encode(body))


ENDPOINTS = (create_completion,)
