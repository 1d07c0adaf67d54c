"""`/v1/sessions`: list, create, read, rename, stop and delete sessions, add inputs, and follow their events.

An event stream has every entry once and in order, however often the client reconnects.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

import msgspec
from starlette.responses import Response

from outrider.app.addresses import REQUEST, SESSIONS
from outrider.app.agent import Agent
from outrider.app.runtimes import apply_settings, runtime_of, settings_of
from outrider.channels.http.endpoints import EVENT_STREAM, ApiCall, endpoint, find_session, json_response
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import KEY_HEADER, InputRequest, accept_input, idempotency_key
from outrider.channels.http.openai.models import OUTRIDER, settings_for_model
from outrider.channels.http.schemas import (
    EntriesQuery,
    EntryList,
    EventsQuery,
    InputReceipt,
    ListQuery,
    NewInput,
    NewSession,
    SearchHitList,
    SessionList,
    SessionPatch,
    SessionSearchQuery,
    SessionView,
    StopRequest,
    StopResult,
    encode_delta,
    encode_entry,
    encode_stream_notice,
    render_search_hit,
    render_session,
)
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Changed, Delta, Ended, Entry
from outrider.core.store_port import Session

PAGE_ENTRIES = 100
"""Entries read at once from a journal that is not followed."""
DELIVERY_HEADER = "Outrider-Delivery"
_CURSOR_HEADER = "Last-Event-ID"


@endpoint("GET", "/v1/sessions", scope="read")
async def list_sessions(call: ApiCall, query: ListQuery) -> SessionList:
    """List your sessions, latest first."""
    sessions = await call.agent.sessions(query.limit)
    settings, default = await call.agent.session_settings(query.limit), call.agent.default_runtime
    return SessionList(
        [render_session(session, str(runtime_of(settings.get(session.id, {}), default))) for session in sessions]
    )


@endpoint("POST", "/v1/sessions", results={201: SessionView, 200: SessionView})
async def create_session(call: ApiCall, body: NewSession) -> Response:
    """Create a session, or return the one of this name (200)."""
    settings = _settings_for_model(call.agent, body.model)
    with suppress(HttpError):
        return json_response(await _apply_settings(call.agent, await find_session(call.agent, body.name), settings))
    return json_response(await _apply_settings(call.agent, await call.agent.session(body.name), settings), 201)


@endpoint("GET", "/v1/sessions/search", scope="read")
async def search_sessions(call: ApiCall, query: SessionSearchQuery) -> SearchHitList:
    """Search the text of your sessions."""
    return SearchHitList([render_search_hit(hit) for hit in await call.agent.search(query.q, query.limit)])


@endpoint("GET", "/v1/sessions/{id}", scope="read")
async def get_session(call: ApiCall, id: str) -> SessionView:
    """Get one session."""
    return await _apply_settings(call.agent, await find_session(call.agent, id), {})


@endpoint("PATCH", "/v1/sessions/{id}")
async def update_session(call: ApiCall, id: str, body: SessionPatch) -> SessionView:
    """Rename a session, or change its model or runtime."""
    settings = _settings_for_model(call.agent, body.model)
    session = await find_session(call.agent, id)
    if body.name is not None:
        session = await call.agent.rename(session, body.name)
    return await _apply_settings(call.agent, session, settings)


@endpoint("DELETE", "/v1/sessions/{id}")
async def delete_session(call: ApiCall, id: str) -> None:
    """Stop a session, end its tasks, and delete it with its journal."""
    await call.agent.delete(await find_session(call.agent, id))


@endpoint(
    "POST",
    "/v1/sessions/{id}/inputs",
    status=202,
    headers={
        KEY_HEADER: "a request repeated with the same key adds its input once",
        DELIVERY_HEADER: "`none` when you read no more after this turn: background tasks then promise no notice",
    },
)
async def add_input(call: ApiCall, id: str, body: NewInput) -> InputReceipt:
    """Send a message to a session; it is durable when this responds, and its turn runs by itself."""
    session = await find_session(call.agent, id)
    accepted = await accept_input(
        call,
        InputRequest(
            channel=_channel(call),
            address_id=session.id,
            text=body.text,
            session=session.id,
            images=body.images,
            idempotency_key=idempotency_key(call),
        ),
    )
    return InputReceipt(accepted.session.id, accepted.entry.seq, accepted.entry.at)


@endpoint("GET", "/v1/sessions/{id}/entries", scope="read")
async def list_entries(call: ApiCall, id: str, query: EntriesQuery) -> EntryList:
    """Read part of a session's journal, oldest entry first."""
    session = await find_session(call.agent, id)
    entries = await call.agent.journal(session, _check_cursor(query.after, session), query.limit)
    head = (await find_session(call.agent, session.id)).head
    return EntryList([msgspec.Raw(encode_entry(entry)) for entry in entries], head)


@endpoint("POST", "/v1/sessions/{id}/stop")
async def stop_session(call: ApiCall, id: str, body: StopRequest) -> StopResult:
    """Stop a session's turn and the commands it waits for."""
    return StopResult(await call.agent.stop(await find_session(call.agent, id), tasks=body.tasks))


@endpoint(
    "GET",
    "/v1/sessions/{id}/events",
    scope="read",
    headers={_CURSOR_HEADER: "the id of the last event received; the stream continues after it"},
    media_types=[EVENT_STREAM],
)
async def stream_events(call: ApiCall, id: str, query: EventsQuery) -> Response:
    """Follow a session: each entry once and in order, with its number as the event's id, and deltas in between."""
    session = await find_session(call.agent, id)
    after = _check_cursor(_cursor(call, query.after), session)
    if call.request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)
    events = _session_events(call.agent, session, after, until_idle=query.until == "idle")
    return EventStreamResponse(_with_error_event(events))


def _settings_for_model(agent: Agent, model: str) -> Mapping[str, str]:
    """The settings that a model's name stands for. Raises 404 for a name that stands for nothing."""
    settings = settings_for_model(agent.config, model)
    if model and not settings and model != OUTRIDER:
        raise HttpError(404, f"there is no model {model[:100]!r}; `GET /v1/models` lists all models", "model_not_found")
    return settings


async def _apply_settings(agent: Agent, session: Session, settings: Mapping[str, str]) -> SessionView:
    if await apply_settings(agent, session, settings):
        session = await find_session(agent, session.id)
    current = settings_of(await agent.journal(session))
    return render_session(session, str(runtime_of(current, agent.default_runtime)))


def _channel(call: ApiCall) -> str:
    match call.request.headers.get(DELIVERY_HEADER, "pull").strip().lower():
        case "pull":
            return SESSIONS
        case "none":
            return REQUEST
        case _:
            raise HttpError(400, f"{DELIVERY_HEADER} must be pull or none", "invalid_delivery")


def _check_cursor(after: int, session: Session) -> int:
    """Refuse a cursor beyond the end: it belongs to another journal."""
    if after > session.head:
        raise HttpError(400, f"there is no entry {after} yet: the last one is {session.head}", "invalid_cursor")
    return after


def _cursor(call: ApiCall, after: int) -> int:
    """The header overrides the query: a client that reconnects by itself repeats its first query."""
    cursor = call.request.headers.get(_CURSOR_HEADER, "").strip()
    if not cursor:
        return after
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise HttpError(400, f"{_CURSOR_HEADER} must be the number of an entry", "invalid_cursor")
    return int(cursor)


async def _with_error_event(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events; an error that ends them becomes the last one."""
    async with aclosing(events):
        try:
            async for one in events:
                yield one
        except (Refused, Unavailable) as error:
            yield format_event(encode_stream_notice("error", {"message": str(error)}))


async def _session_events(
    agent: Agent, session: Session, after: int, *, until_idle: bool
) -> AsyncGenerator[bytes, None]:
    head = session.head
    if until_idle and not session.has_work:
        while page := await agent.journal(session, after, PAGE_ENTRIES):
            for entry in page:
                head = after = entry.seq
                yield _entry_event(entry)
        if await _is_idle(agent, session, after):
            yield _idle_event(after)
            return
    async with aclosing(agent.follow(session, after)) as events:
        async for event in events:
            if isinstance(event, Delta):
                yield format_event(encode_delta(event))
                continue
            yield _entry_event(event)
            # No other entry can be the last one of an idle session.
            may_be_last = until_idle and event.seq > head and isinstance(event.body, Ended | Changed)
            if may_be_last and await _is_idle(agent, session, event.seq):
                yield _idle_event(event.seq)
                return


async def _is_idle(agent: Agent, session: Session, seq: int) -> bool:
    """Whether the session has no work, and no entry after this one."""
    current = await agent.find(session.id)
    return not current.has_work and current.head <= seq


def _entry_event(entry: Entry) -> bytes:
    return format_event(encode_entry(entry), id=str(entry.seq))


def _idle_event(seq: int) -> bytes:
    return format_event(encode_stream_notice("idle", {"seq": seq}))


# A literal path precedes a path with a parameter that would match it.
ENDPOINTS = (
    list_sessions,
    create_session,
    search_sessions,
    get_session,
    update_session,
    delete_session,
    add_input,
    list_entries,
    stop_session,
    stream_events,
)
