"""Sessions over HTTP: list, begin, read, say something in one, rename, stop, delete.

A session as a stream: every entry once and in order, whenever and however often the client comes back.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.addresses import SESSIONS
from outrider.app.agent import Agent
from outrider.app.runtimes import apply_settings, runtime_of, settings_of
from outrider.channels.http.endpoints import (
    EndpointSpec,
    find_session,
    json_response,
    parse_body,
    parse_query,
    reader_agent,
    route,
    session_from_path,
)
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import InputRequest, accept_input, agent_of
from outrider.channels.http.openai.model_names import OUTRIDER, settings_for_model
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

_KEY_HEADER = "Idempotency-Key"
_MAX_KEY_CHARS = 255


async def list_sessions(request: Request) -> Response:
    query = parse_query(request, ListQuery)
    sessions = await reader_agent(request).sessions(query.limit)
    return json_response(SessionList([render_session(session) for session in sessions]))


async def create_session(request: Request) -> Response:
    agent = agent_of(request)
    wish = await parse_body(request, NewSession)
    settings = _settings_for_model(agent, wish.model)
    with suppress(HttpError):
        return json_response(await _apply_settings(agent, await find_session(agent, wish.name), settings))
    return json_response(await _apply_settings(agent, await agent.session(wish.name), settings), 201)


def _settings_for_model(agent: Agent, model: str) -> Mapping[str, str]:
    """What a session is set to by this name, which has to mean something. Raises HttpError."""
    settings = settings_for_model(agent.config, model)
    if model and not settings and model != OUTRIDER:
        raise HttpError(404, f"there is no model {model[:100]!r}; `GET /v1/models` lists them", "model_not_found")
    return settings


async def _apply_settings(agent: Agent, session: Session, settings: Mapping[str, str]) -> SessionView:
    """The session, with this set."""
    if await apply_settings(agent, session, settings):
        session = await find_session(agent, session.id)
    known = settings_of(await agent.journal(session))
    return render_session(session, str(runtime_of(known, agent.default_runtime)))


async def search_sessions(request: Request) -> Response:
    query = parse_query(request, SessionSearchQuery)
    found = await reader_agent(request).search(query.q, query.limit)
    return json_response(SearchHitList([render_search_hit(one) for one in found]))


async def get_session(request: Request) -> Response:
    agent = reader_agent(request)
    return json_response(await _apply_settings(agent, await session_from_path(request, agent), {}))


async def update_session(request: Request) -> Response:
    agent = agent_of(request)
    wish = await parse_body(request, SessionPatch)
    settings = _settings_for_model(agent, wish.model)
    session = await session_from_path(request, agent)
    return json_response(
        await _apply_settings(
            agent, await agent.rename(session, wish.name) if wish.name is not None else session, settings
        )
    )


async def delete_session(request: Request) -> Response:
    agent = agent_of(request)
    await agent.delete(await session_from_path(request, agent))
    return Response(status_code=204)


async def add_input(request: Request) -> Response:
    session = await session_from_path(request, agent_of(request))
    wish = await parse_body(request, NewInput)
    entered = await accept_input(
        request,
        InputRequest(
            channel=SESSIONS,
            address_id=session.id,
            text=wish.text,
            session=session.id,
            images=wish.images,
            idempotency_key=_idempotency_key(request),
        ),
    )
    return json_response(InputReceipt(entered.session.id, entered.entry.seq, entered.entry.at), 202)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get(_KEY_HEADER)
    if key is None:
        return None
    if not key.strip() or len(key) > _MAX_KEY_CHARS or not key.isprintable():
        raise HttpError(400, f"{_KEY_HEADER} has 1 to {_MAX_KEY_CHARS} printable characters", "idempotency_key")
    return key


async def list_entries(request: Request) -> Response:
    agent = reader_agent(request)
    session = await session_from_path(request, agent)
    query = parse_query(request, EntriesQuery)
    found = await agent.journal(session, check_cursor(query.after, session), query.limit)
    page = EntryList(
        [msgspec.Raw(encode_entry(entry)) for entry in found], (await find_session(agent, session.id)).head
    )
    return json_response(page)


def check_cursor(after: int, session: Session) -> int:
    """Refuses a cursor beyond the end: whoever holds one read another journal than this."""
    if after > session.head:
        raise HttpError(400, f"there is no entry {after} yet: the last one is {session.head}", "invalid_cursor")
    return after


async def stop_session(request: Request) -> Response:
    agent = agent_of(request)
    session = await session_from_path(request, agent)
    wish = await parse_body(request, StopRequest)
    return json_response(StopResult(await agent.stop(session, tasks=wish.tasks)))


ROUTES = (
    route(
        "/v1/sessions",
        list_sessions,
        "GET",
        about=EndpointSpec(summary="Your sessions, latest first", query=ListQuery, answer=SessionList),
    ),
    route(
        "/v1/sessions",
        create_session,
        "POST",
        about=EndpointSpec(
            summary="Begin a session, or find the one of this name (200)",
            body=NewSession,
            answer=SessionView,
            status=201,
            others={200: SessionView},
        ),
    ),
    route(
        "/v1/sessions/search",
        search_sessions,
        "GET",
        about=EndpointSpec(
            summary="Where words were said in your sessions", query=SessionSearchQuery, answer=SearchHitList
        ),
    ),
    route("/v1/sessions/{id}", get_session, "GET", about=EndpointSpec(summary="One session", answer=SessionView)),
    route(
        "/v1/sessions/{id}",
        update_session,
        "PATCH",
        about=EndpointSpec(
            summary="Call a session otherwise, or have another model or runtime answer in it",
            body=SessionPatch,
            answer=SessionView,
        ),
    ),
    route(
        "/v1/sessions/{id}",
        delete_session,
        "DELETE",
        about=EndpointSpec(summary="Stop a session, end its tasks, and delete it with its journal", status=204),
    ),
    route(
        "/v1/sessions/{id}/inputs",
        add_input,
        "POST",
        about=EndpointSpec(
            summary="Say something in a session; it is durable when this is answered, and its turn goes on by itself",
            body=NewInput,
            headers={_KEY_HEADER: "the same key again is the same input, taken once"},
            answer=InputReceipt,
            status=202,
        ),
    ),
    route(
        "/v1/sessions/{id}/entries",
        list_entries,
        "GET",
        about=EndpointSpec(summary="A part of the journal, oldest first", query=EntriesQuery, answer=EntryList),
    ),
    route(
        "/v1/sessions/{id}/stop",
        stop_session,
        "POST",
        about=EndpointSpec(
            summary="Stop the session's turn and the commands it waits for", body=StopRequest, answer=StopResult
        ),
    ),
)
PAGE_ENTRIES = 100
"""Entries that are read at once from a journal that is already there."""
_CURSOR_HEADER = "Last-Event-ID"


async def stream_events(request: Request) -> Response:
    agent = reader_agent(request)
    session = await session_from_path(request, agent)
    query = parse_query(request, EventsQuery)
    after = check_cursor(_cursor(request, query.after), session)
    if request.method == "HEAD":
        return Response(media_type=EventStreamResponse.media_type)
    return EventStreamResponse(
        _with_error_event(_session_events(agent, session, after, is_brief=query.until == "idle"))
    )


def _cursor(request: Request, after: int) -> int:
    """The header wins: a client that comes back by itself repeats its first query."""
    given = request.headers.get(_CURSOR_HEADER, "").strip()
    if not given:
        return after
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise HttpError(400, f"{_CURSOR_HEADER} is the number of an entry", "invalid_cursor")
    return int(given)


async def _with_error_event(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events; trouble that ends them is told as the last one."""
    async with aclosing(events):
        try:
            async for one in events:
                yield one
        except (Refused, Unavailable) as error:
            yield format_event(encode_stream_notice("error", {"message": str(error)}))


async def _session_events(agent: Agent, session: Session, after: int, *, is_brief: bool) -> AsyncGenerator[bytes, None]:
    known = session.head
    if is_brief and not session.has_work:
        while page := await agent.journal(session, after, PAGE_ENTRIES):
            for entry in page:
                known = after = entry.seq
                yield _entry_event(entry)
        if await _is_idle(agent, session, after):
            yield _idle_event(after)
            return
    async with aclosing(agent.follow(session, after)) as stream:
        async for happened in stream:
            if isinstance(happened, Delta):
                yield format_event(encode_delta(happened))
                continue
            yield _entry_event(happened)
            # Nothing else can be the last entry of a session at rest.
            may_be_last = is_brief and happened.seq > known and isinstance(happened.body, Ended | Changed)
            if may_be_last and await _is_idle(agent, session, happened.seq):
                yield _idle_event(happened.seq)
                return


async def _is_idle(agent: Agent, session: Session, seq: int) -> bool:
    """Whether nothing is left to do, and nothing to read after this entry."""
    now = await agent.find(session.id)
    return not now.has_work and now.head <= seq


def _entry_event(entry: Entry) -> bytes:
    return format_event(encode_entry(entry), id=str(entry.seq))


def _idle_event(seq: int) -> bytes:
    return format_event(encode_stream_notice("idle", {"seq": seq}))


EVENT_ROUTES = (
    route(
        "/v1/sessions/{id}/events",
        stream_events,
        "GET",
        about=EndpointSpec(
            summary="Follow a session: entries, each once and in order with its number as id, and deltas in between",
            query=EventsQuery,
            headers={_CURSOR_HEADER: "the id of the last event that was seen; the stream goes on after it"},
            media="text/event-stream",
        ),
    ),
)
