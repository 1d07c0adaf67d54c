"""`/v1/responses`: turns that a client can leave and come back for. All of a response is read from the journal."""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
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
from outrider.app.runtimes import changed_settings
from outrider.channels.http.endpoints import (
    EndpointSpec,
    find_session,
    json_response,
    log_failure,
    parse_query,
    reader_agent,
    route,
)
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import InputRequest, accept_input, agent_of, context, idempotency_key, open_session
from outrider.channels.http.openai.conversation import (
    ParsedResponsesRequest,
    ResponsesRequest,
    ignored_parameters_header,
    parse_responses_request,
)
from outrider.channels.http.openai.history import journal_from_history
from outrider.channels.http.openai.model_names import check_client_tools, settings_for_model
from outrider.channels.http.openai.resolve_session import digest
from outrider.channels.http.openai.response_object import (
    BACKGROUND_SUFFIX,
    ResponseAnchor,
    ResponseBuilder,
    parse_response_id,
    response_anchors,
    response_id,
)
from outrider.channels.http.openai.response_stream import MAX_NUMBER, ResponseStream, is_valid_number
from outrider.channels.http.openai.turn_output import TurnOutput, bounds_of, parse_call_id
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.delivery import channel_of
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Body, Changed, Ended, Entry, Input, Result
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.types import Image
from outrider.system.images import media_type

CANCEL_SECONDS = 10.0
"""Seconds in which a cancelled turn is expected to end; it is told as it is then."""


class RetrieveQuery(Struct, frozen=True):
    stream: Annotated[bool, Meta(description="as events, also of what has long happened")] = False
    starting_after: Annotated[
        int, Meta(ge=-1, le=MAX_NUMBER, description="only events after the one of this number")
    ] = -1


class ItemsQuery(Struct, frozen=True):
    order: Literal["asc", "desc"] = "desc"


class StoredResponse(Struct, frozen=True):
    """A response that is in a journal."""

    agent: Agent
    session: Session
    journal: Sequence[Entry]
    anchors: Sequence[ResponseAnchor]
    builder: ResponseBuilder

    @property
    def is_open(self) -> bool:
        return self.render()["status"] in ("queued", "in_progress")

    def render(self) -> dict[str, Any]:
        progress, seq = self.builder.turn_output(), self.builder.entry.seq
        for entry in self.journal[seq:]:
            progress.add(entry)
            if progress.is_over:
                break
        return self.builder.render_current(progress, is_begun=fold(self.journal).is_open)


class ResponseSession(Struct, frozen=True):
    """The session a request is for."""

    session: Session
    takes_history: bool
    """Whether it is to begin with what the request says went before."""
    journal: Sequence[Entry] = ()
    """What of its journal has been read."""


async def create(request: Request) -> Response:
    """Ask for a response: whole, as a stream, or to come back for."""
    agent = agent_of(request)
    body = await request.body()
    wanted = parse_responses_request(body, agent.config.limits.input)
    order = wanted.conversation
    _check_request(wanted)
    chosen = settings_for_model(agent.config, order.model)
    if order.tools and (
        "runtime" in chosen or not (wanted.previous_response_id or wanted.conversation_id or order.last_call_ids)
    ):
        check_client_tools(chosen, agent.default_runtime)
    key = idempotency_key(request)
    opened = await _resolve_session(request, agent, wanted, key)
    session = opened.session
    place = (digest(session.id, key) if key else secrets.token_hex(16)) + (
        BACKGROUND_SUFFIX if wanted.is_background else ""
    )
    channel = RESPONSES if wanted.is_stored else CHAT
    settings = {**({"instructions": order.instructions} if order.instructions else {}), **chosen}
    wish = InputRequest(
        channel=channel,
        address_id=place,
        text=order.new_message.text,
        images=order.new_message.images,
        session=session.id,
        idempotency_key=key or None,
        tools=order.tools,
    )
    if opened.takes_history:
        wish = replace(wish, history=_history(agent, wanted, settings))
    else:
        results = [Result(parse_call_id(one.call)[1], one.text) for one in order.tool_outputs]
        wish = replace(wish, results=results, settings=settings)
    known = opened.journal
    async with context(request).session_lock(session.id):  # of two that go on from the same response, one is first
        if not opened.takes_history:
            known = await _read_rest(agent, session, known)
            _check_continuation(known, session, wanted, f"{channel}:{place}")
        entered = await accept_input(request, wish)
    if wanted.is_background and (webhooks := context(request).webhooks):
        await webhooks.enqueue(session, entered.entry.seq)
    kept = _stored_response(agent, session, await _read_rest(agent, session, known), entered.entry.seq)
    headers = {"x-session-id": session.id, **ignored_parameters_header(body)}
    if order.is_stream:
        return EventStreamResponse(
            _events(request, kept, ResponseStream(kept.builder, is_live=entered.is_next)), headers
        )
    if wanted.is_background:
        return _response_with_headers(kept.render(), headers)
    return await _wait_for_response(kept, headers, is_repeatable=bool(key))


def _check_request(parsed: ParsedResponsesRequest) -> None:
    """Refuse here what would be refused later, so that nothing is begun for it."""
    order = parsed.conversation
    if order.has_no_message and not order.tool_outputs:
        raise HttpError(400, "the input is empty", "invalid_request")
    for image in order.new_message.images:
        media_type(image)
    if not parsed.previous_response_id and not parsed.needs_calls:
        lent = order.tools if order.has_no_message and not parsed.conversation_id else None
        journal_from_history((), order.history, lambda image: Image("", media_type(image)), lent)


async def _resolve_session(request: Request, agent: Agent, parsed: ParsedResponsesRequest, key: str) -> ResponseSession:
    if parsed.previous_response_id:
        kept = await _find_response(agent, parsed.previous_response_id)
        return ResponseSession(kept.session, False, kept.journal)
    if parsed.conversation_id:
        if parsed.needs_calls:
            return ResponseSession(await find_session(agent, parsed.conversation_id), False)
        session = await open_session(request, parsed.conversation_id)
        return ResponseSession(session, not session.head)
    if session := await _find_waiting_session(agent, parsed):
        return ResponseSession(session, False)
    return ResponseSession(await open_session(request, f"response {digest(key)}" if key else ""), True)


async def _find_waiting_session(agent: Agent, parsed: ParsedResponsesRequest) -> Session | None:
    """The session that the results of this request are for, when the request holds the calls and no other hint."""
    for name, call in map(parse_call_id, parsed.conversation.last_call_ids):
        try:
            found = await agent.find(name) if name else None
        except Refused:
            continue
        if found and found.id == name:
            journal = await agent.journal(found)
            waiting = {one.id for one in fold(journal).calls}
            answered = {entry.body.call for entry in journal if isinstance(entry.body, Result)}
            if call in waiting or (parsed.conversation.has_no_message and call in answered):
                return found
    return None


def _check_continuation(
    journal: Sequence[Entry], session: Session, parsed: ParsedResponsesRequest, address: str
) -> None:
    """A session has one end: only its last response can be gone on from, unless the same request is sent again."""
    _, seq = parse_response_id(parsed.previous_response_id) or ("", 0)
    if any(isinstance(entry.body, Input) and entry.body.address == address for entry in journal):
        return
    given = {parse_call_id(one.call)[1] for one in parsed.conversation.tool_outputs}
    waiting = {call.id for call in fold(journal).calls}
    answered = {entry.body.call for entry in journal[seq:] if isinstance(entry.body, Result)}
    if foreign := given - waiting - answered:
        raise HttpError(400, f"no call {min(foreign)[:80]!r} waits for a result", "invalid_request")
    later = [point for point in response_anchors(journal) if point.seq > seq]
    is_again = parsed.conversation.has_no_message and given <= answered
    if parsed.previous_response_id and later and not is_again:
        last = response_id(session.id, later[-1].seq)
        raise HttpError(400, f"its session has gone on since: only {last} can be continued", "not_last")


def _history(agent: Agent, parsed: ParsedResponsesRequest, settings: Mapping[str, str]) -> Sequence[Body]:
    def keep(image: bytes) -> Image:
        return Image(agent.home.blobs.put(image), media_type(image))

    changes: list[Body] = [
        Changed(name, value) for name, value in changed_settings(settings, {}, agent.default_runtime).items()
    ]
    order = parsed.conversation
    return journal_from_history(changes, order.history, keep, order.tools if order.has_no_message else None)


async def _read_rest(agent: Agent, session: Session, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The journal, of which this much is known."""
    return [*entries, *await agent.journal(session, len(entries))]


def _stored_response(agent: Agent, session: Session, journal: Sequence[Entry], seq: int) -> StoredResponse:
    frame = ResponseBuilder(session.id, journal[seq - 1], fold(journal[:seq]), bounds_of(agent))
    return StoredResponse(agent, session, journal, response_anchors(journal), frame)


async def _find_response(agent: Agent, id: str) -> StoredResponse:
    """The response of this id. Raises 404: another person's is as good as none, and so is one that was not stored."""
    missing = HttpError(404, f"there is no response {id[:100]!r}", "not_found")
    name, seq = parse_response_id(id) or ("", 0)
    if not name:
        raise missing
    try:
        session = await find_session(agent, name)
    except HttpError:
        raise missing from None
    journal = await agent.journal(session)
    if session.id != name or not 0 < seq <= len(journal):
        raise missing
    kept = _stored_response(agent, session, journal, seq)
    if not any(point.seq == seq and channel_of(point.address) == RESPONSES for point in kept.anchors):
        raise missing
    return kept


async def _wait_for_response(stored: StoredResponse, headers: Mapping[str, str], *, is_repeatable: bool) -> Response:
    try:
        progress = await _follow_to_end(stored)
    except Unavailable as error:
        more = {"retry-after": str(max(1, int(error.retry_after or 1)))}
        more |= {} if is_repeatable else {"x-should-retry": "false"}  # the turn goes on; again would be twice
        raise HttpError(503, str(error), "unavailable", {**headers, **more}) from error
    return _response_with_headers(stored.builder.render_current(progress), headers)


def _response_with_headers(response: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    done = json_response(response)
    done.headers.update(headers)
    return done


async def _follow_to_end(stored: StoredResponse) -> TurnOutput:
    progress = stored.builder.turn_output()
    async with aclosing(stored.agent.follow(stored.session, stored.builder.entry.seq)) as events:
        async for one in events:
            if isinstance(one, Entry):  # deltas say nothing that entries do not
                progress.add(one)
            if progress.is_over:
                break
    return progress


async def _events(request: Request, stored: StoredResponse, telling: ResponseStream) -> AsyncGenerator[bytes, None]:
    for one in telling.begin():
        yield one
    try:
        async with aclosing(stored.agent.follow(stored.session, stored.builder.entry.seq)) as events:
            async for happened in events:
                for one in telling.add(happened):
                    yield one
                if telling.is_over:
                    return
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        # Under the number of the last event: a client that takes the stream up from there misses nothing.
        told = {"type": "error", "sequence_number": telling.number, "code": "unavailable", "param": None}
        yield format_event(msgspec.json.encode({**told, "message": str(error)}), name="error")


async def retrieve(request: Request) -> Response:
    query = parse_query(request, RetrieveQuery)
    kept = await _find_response(reader_agent(request), request.path_params["id"])
    if not is_valid_number(query.starting_after):
        raise HttpError(400, f"no event of this response has the number {query.starting_after}", "invalid_cursor")
    if query.stream:
        telling = ResponseStream(kept.builder, is_live=False, after=query.starting_after)
        return EventStreamResponse(_events(request, kept, telling))
    return json_response(kept.render())


async def cancel(request: Request) -> Response:
    """Stop the turn of a response that is not over; one that is stays as it is."""
    agent = agent_of(request)
    kept = await _find_response(agent, request.path_params["id"])
    if kept.is_open:
        _check_only_response(kept)
        await agent.stop(kept.session, "cancelled by the client")
        with anyio.move_on_after(CANCEL_SECONDS):
            await _follow_to_end(kept)
        journal = await _read_rest(agent, kept.session, kept.journal)
        kept = _stored_response(agent, kept.session, journal, kept.builder.entry.seq)
    return json_response(kept.render())


def _check_only_response(stored: StoredResponse) -> None:
    """Stopping ends all that is asked for in a session: refuse it when that is more than this response."""
    dealt = max((entry.body.saw for entry in stored.journal if isinstance(entry.body, Ended)), default=0)
    for point in stored.anchors:
        is_other = point.seq > dealt and point.seq != stored.builder.entry.seq
        if is_other and _stored_response(stored.agent, stored.session, stored.journal, point.seq).is_open:
            message = f"its session has more to do: stop all of it, at /v1/sessions/{stored.session.id}/stop"
            raise HttpError(409, message, "not_alone")


async def delete(request: Request) -> Response:
    """Delete a response with its session, when nothing else was asked for in there."""
    agent = agent_of(request)
    kept = await _find_response(agent, request.path_params["id"])
    if len(kept.anchors) > 1:
        message = f"other things were said in its session: delete that, at /v1/sessions/{kept.session.id}"
        raise HttpError(409, message, "not_alone")
    await agent.delete(kept.session)
    return json_response({"id": kept.builder.id, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """What was handed in for a response: the words, or the results of calls."""
    query = parse_query(request, ItemsQuery)
    kept = await _find_response(reader_agent(request), request.path_params["id"])
    items = kept.builder.input_items(kept.journal)
    items = items if query.order == "asc" else items[::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return json_response({"object": "list", "data": items, "has_more": False, **ends})


_ONE = "/v1/responses/{id}"
ROUTES = (
    route(
        "/v1/responses",
        create,
        "POST",
        about=EndpointSpec(
            summary="Ask for a response, as OpenAI's responses do: whole, as a stream, or in the background.",
            body=ResponsesRequest,
            streams=True,
            headers={"Idempotency-Key": "the same key gives the same response and runs nothing twice"},
        ),
    ),
    route(
        _ONE,
        retrieve,
        "GET",
        about=EndpointSpec(summary="A response as it is now, or as a stream.", query=RetrieveQuery, streams=True),
    ),
    route(_ONE, delete, "DELETE"),
    route(f"{_ONE}/cancel", cancel, "POST"),
    route(
        f"{_ONE}/input_items",
        input_items,
        "GET",
        about=EndpointSpec(summary="What was handed in for a response.", query=ItemsQuery),
    ),
)
