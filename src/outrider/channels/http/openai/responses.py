"""`/v1/responses`: turns that a client can leave and come back for. A response is read from the journal alone."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import anyio
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.addresses import CHAT, RESPONSES
from outrider.app.agent import Agent
from outrider.channels.http.endpoints import EVENT_STREAM, JSON, ApiCall, endpoint, json_response, log_failure
from outrider.channels.http.errors import HttpError
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
from outrider.channels.http.openai.resolve_session import (
    SessionHint,
    address_token,
    check_conversation,
    input_request,
    requested_settings,
    resolve_session,
)
from outrider.channels.http.openai.response_object import (
    BACKGROUND_SUFFIX,
    StoredResponse,
    find_response,
    parse_response_id,
    response_anchors,
    response_id,
    stored_response,
)
from outrider.channels.http.openai.response_stream import MAX_NUMBER, ResponseStream, is_valid_number
from outrider.channels.http.openai.turn_output import TurnOutput, follow_to_end, parse_call_id, unavailable_error
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Ended, Entry, Input, Result
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.types import Call

CANCEL_SECONDS = 10.0
"""Seconds to wait for the end of a cancelled turn before responding."""
_PART_KINDS = {"input_text": "text", "output_text": "text", "input_image": "image", "image": "unsupported"}


class InputPart(Struct):
    """A part of an item: `input_text`, `output_text` or `input_image`."""

    type: str
    text: str | None = None
    image_url: str | None = None
    refusal: str | None = None


class InputItem(Struct):
    """A `message`, a `function_call` or a `function_call_output`; its type decides which fields apply."""

    type: str = "message"
    role: str = ""
    content: str | list[InputPart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[InputPart] | None = None


class FunctionTool(Struct):
    """A tool that the client runs."""

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
    """The format of the text."""

    format: TextFormat | None = None


class ResponsesRequest(ConversationRequest):
    """A request for a response. Unknown fields are ignored."""

    input: str | list[InputItem]
    instructions: str | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[FunctionTool] | None = None
    text: TextOptions | None = None


class ParsedResponsesRequest(Struct, frozen=True):
    conversation: ParsedConversation
    previous_response_id: str
    """The response to continue from."""
    conversation_id: str
    """The session, by name or id."""
    is_stored: bool
    is_background: bool
    needs_calls: bool
    """Whether it has outputs of calls that only the session has."""


class RetrieveQuery(Struct, frozen=True):
    stream: Annotated[bool, Meta(description="respond with events, past ones included")] = False
    starting_after: Annotated[int, Meta(ge=-1, le=MAX_NUMBER, description="only events after this number")] = -1


class ItemsQuery(Struct, frozen=True):
    order: Literal["asc", "desc"] = "desc"


_decode = msgspec.json.Decoder(ResponsesRequest).decode


def parse_responses_request(body: bytes, max_chars: int) -> ParsedResponsesRequest:
    """The parsed request. Raises 400. `max_chars` bounds one message."""
    try:
        wire = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"invalid responses request: {error}") from None
    name = wire.conversation.id if isinstance(wire.conversation, ConversationReference) else wire.conversation
    previous, conversation_id = wire.previous_response_id or "", (name or "").strip()
    is_stored, is_background = wire.store is not False, bool(wire.background)
    if previous and conversation_id:
        raise invalid_request("previous_response_id and conversation both name a session; send one of them")
    if is_background and not is_stored:
        raise invalid_request("background requires store: otherwise the response could not be retrieved")
    if wire.text and wire.text.format and wire.text.format.type != "text":
        raise invalid_request("text.format must be text: ask for JSON in the message instead")
    for tool in wire.tools or ():
        if tool.type != "function":
            raise invalid_request(f"a tool of type {tool.type[:40]!r} is not supported; only functions are")
    items, instructions = _parse_items(wire)
    needs_calls = bool(previous or conversation_id) and _add_missing_calls(items)
    conversation = build_conversation(
        wire,
        items,
        instructions=instructions,
        tools=(parse_tool(tool.name, tool.description, tool.parameters) for tool in wire.tools or ()),
        max_chars=max_chars,
    )
    return ParsedResponsesRequest(conversation, previous, conversation_id, is_stored, is_background, needs_calls)


def _parse_items(wire: ResponsesRequest) -> tuple[list[ConversationItem], list[str]]:
    """The conversation's items, and the instructions."""
    inputs = [InputItem(role="user", content=wire.input)] if isinstance(wire.input, str) else wire.input
    items: list[ConversationItem] = []
    instructions = [wire.instructions or ""]
    for item in inputs:
        match item.type, item.role:
            case "message", "user":
                items.append(UserTurn(*parse_parts("user", _parts(item.content))))
            case "message", "assistant":
                items.append(AssistantTurn(parse_parts("assistant", _parts(item.content))[0]))
            case "message", "system" | "developer":
                instructions.append(parse_parts("system", _parts(item.content))[0])
            case "message", role:
                raise invalid_request(f"a message's role is user, assistant, system or developer, not {role[:40]!r}")
            case "function_call", _:
                call = (item.call_id, parse_call(item.name, item.arguments))
                if items and isinstance(last := items[-1], AssistantTurn):  # text and calls of one reply are one turn
                    items[-1] = replace(last, calls=(*last.calls, call))
                else:
                    items.append(AssistantTurn("", (call,)))
            case "function_call_output", _:
                items.append(ToolOutput(item.call_id, parse_parts("tool", _parts(item.output))[0]))
            case "reasoning", _:
                pass  # the session has it
            case kind, _:
                raise invalid_request(f"an input item of type {kind[:40]!r} is not supported")
    return items, instructions


def _parts(content: str | list[InputPart] | None) -> list[MessagePart]:
    if content is None or isinstance(content, str):
        return [MessagePart("text", content or "")]
    return [
        MessagePart(kind, (part.image_url if kind == "image" else part.text or part.refusal) or "")
        for part in content
        for kind in (_PART_KINDS.get(part.type, part.type),)
    ]


def _add_missing_calls(items: list[ConversationItem]) -> bool:
    """Add calls that the session has and the request omits, so that their outputs follow a call. Whether any were.

    Only their ids matter: the session's journal has the rest.
    """
    answers = [(at, one) for at, one in enumerate(items) if isinstance(one, AssistantTurn)]
    ids = {id for _, turn in answers for id, _ in turn.calls}
    outputs = dict.fromkeys(one.call for one in items if isinstance(one, ToolOutput))
    if missing := tuple((id, Call("", "unknown", {})) for id in outputs if id not in ids):
        items.insert(answers[-1][0] + 1 if answers else 0, AssistantTurn("", missing))
    return bool(missing)


@endpoint(
    "POST",
    "/v1/responses",
    body=ResponsesRequest,
    media_types=[JSON, EVENT_STREAM],
    headers={KEY_HEADER: "a request repeated with the same key gets the same response and runs nothing twice"},
)
async def create_response(call: ApiCall) -> Response:
    """Create a response: whole, as a stream, or in the background."""
    agent, request = call.agent, call.request
    parsed = parse_responses_request(await request.body(), agent.config.limits.input)
    conversation = parsed.conversation
    check_conversation(
        conversation,
        empty="the input is empty",
        with_history=not parsed.previous_response_id and not parsed.needs_calls,
        is_open=conversation.has_no_message and not parsed.conversation_id,
    )
    hint = SessionHint(
        prefix="response",
        name=parsed.conversation_id,
        response=parsed.previous_response_id,
        must_exist=parsed.needs_calls,
    )
    settings = requested_settings(agent, conversation, hint)
    key = idempotency_key(call)
    resolved = await resolve_session(call, conversation, hint, key)
    session, journal = resolved.session, resolved.journal
    channel = RESPONSES if parsed.is_stored else CHAT
    id = address_token(session, key) + (BACKGROUND_SUFFIX if parsed.is_background else "")
    new_input = input_request(agent, conversation, resolved, settings, channel=channel, address_id=id, key=key)
    # Of two requests that continue the same response, one must be first.
    async with call.context.session_lock(session.id):
        if not resolved.takes_history:
            journal = await _read_rest(agent, session, journal)
            _check_continuation(journal, session, parsed, f"{channel}:{id}")
        accepted = await accept_input(call, new_input)
    if parsed.is_background and call.context.webhooks:
        await call.context.webhooks.enqueue(session, accepted.entry.seq)
    response = stored_response(agent, session, await _read_rest(agent, session, journal), accepted.entry.seq)
    headers = {"x-session-id": session.id, **conversation.ignored_header}
    if conversation.is_stream:
        stream = ResponseStream(response.builder, is_live=accepted.is_next)
        return EventStreamResponse(_events(request, response, stream), headers)
    if parsed.is_background:
        return json_response(response.render(), headers=headers)
    try:
        output = await _follow_to_end(response)
    except Unavailable as error:
        raise unavailable_error(error, headers, is_repeatable=bool(key)) from error
    return json_response(response.builder.render_current(output), headers=headers)


def _check_continuation(
    journal: Sequence[Entry], session: Session, parsed: ParsedResponsesRequest, address: str
) -> None:
    """Refuse to continue from any but the session's last response, unless the same request is sent again."""
    _, seq = parse_response_id(parsed.previous_response_id) or ("", 0)
    if any(isinstance(entry.body, Input) and entry.body.address == address for entry in journal):
        return
    outputs = {parse_call_id(one.call)[1] for one in parsed.conversation.tool_outputs}
    waiting = {call.id for call in fold(journal).calls}
    answered = {entry.body.call for entry in journal[seq:] if isinstance(entry.body, Result)}
    if foreign := outputs - waiting - answered:
        raise invalid_request(f"no call {min(foreign)[:80]!r} is waiting for an output")
    later = [anchor for anchor in response_anchors(journal) if anchor.seq > seq]
    is_repeated = parsed.conversation.has_no_message and outputs <= answered
    if parsed.previous_response_id and later and not is_repeated:
        last = response_id(session.id, later[-1].seq)
        raise invalid_request(f"the session has continued since: only {last} can be continued", "not_last")


async def _read_rest(agent: Agent, session: Session, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The whole journal, of which this much has been read."""
    return [*entries, *await agent.journal(session, len(entries))]


async def _follow_to_end(response: StoredResponse) -> TurnOutput:
    output = response.builder.turn_output()
    await follow_to_end(response.agent, response.session, output)
    return output


async def _events(request: Request, response: StoredResponse, stream: ResponseStream) -> AsyncGenerator[bytes, None]:
    for one in stream.begin():
        yield one
    try:
        async with aclosing(response.agent.follow(response.session, response.seq)) as events:
            async for event in events:
                for one in stream.add(event):
                    yield one
                if stream.is_over:
                    return
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        # With the number of the last event, so that a client that resumes after it misses nothing.
        body = {"type": "error", "sequence_number": stream.number, "code": "unavailable", "param": None}
        yield format_event(msgspec.json.encode({**body, "message": str(error)}), name="error")


@endpoint("GET", "/v1/responses/{id}", scope="read", media_types=[JSON, EVENT_STREAM])
async def retrieve_response(call: ApiCall, id: str, query: RetrieveQuery) -> Response:
    """Get a response as it is now, or as a stream."""
    response = await find_response(call.agent, id)
    if not is_valid_number(query.starting_after):
        raise HttpError(400, f"no event of this response has the number {query.starting_after}", "invalid_cursor")
    if query.stream:
        stream = ResponseStream(response.builder, is_live=False, after=query.starting_after)
        return EventStreamResponse(_events(call.request, response, stream))
    return json_response(response.render())


@endpoint("DELETE", "/v1/responses/{id}")
async def delete_response(call: ApiCall, id: str) -> Response:
    """Delete a response together with its session, unless the session has other messages."""
    response = await find_response(call.agent, id)
    if len(response.anchors) > 1:
        message = f"its session has other messages: delete the session, at /v1/sessions/{response.session.id}"
        raise HttpError(409, message, "not_alone")
    await call.agent.delete(response.session)
    return json_response({"id": response.builder.id, "object": "response", "deleted": True})


@endpoint("POST", "/v1/responses/{id}/cancel")
async def cancel_response(call: ApiCall, id: str) -> Response:
    """Stop the turn of a response; one that has ended stays as it is."""
    agent, response = call.agent, await find_response(call.agent, id)
    if response.is_open:
        _check_no_other_open(response)
        await agent.stop(response.session, "cancelled by the client")
        with anyio.move_on_after(CANCEL_SECONDS):
            await _follow_to_end(response)
        journal = await _read_rest(agent, response.session, response.journal)
        response = stored_response(agent, response.session, journal, response.seq)
    return json_response(response.render())


def _check_no_other_open(response: StoredResponse) -> None:
    """Raise 409 when stopping the session would stop another response too."""
    seen = max((entry.body.saw for entry in response.journal if isinstance(entry.body, Ended)), default=0)
    for anchor in response.anchors:
        is_other = anchor.seq > seen and anchor.seq != response.seq
        if is_other and stored_response(response.agent, response.session, response.journal, anchor.seq).is_open:
            message = f"its session has more work: stop all of it, at /v1/sessions/{response.session.id}/stop"
            raise HttpError(409, message, "not_alone")


@endpoint("GET", "/v1/responses/{id}/input_items", scope="read")
async def list_input_items(call: ApiCall, id: str, query: ItemsQuery) -> Response:
    """List what was sent for a response: the message, or tool outputs."""
    response = await find_response(call.agent, id)
    items = response.builder.input_items(response.journal)
    items = items if query.order == "asc" else items[::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return json_response({"object": "list", "data": items, "has_more": False, **ends})


ENDPOINTS = (create_response, retrieve_response, delete_response, cancel_response, list_input_items)
