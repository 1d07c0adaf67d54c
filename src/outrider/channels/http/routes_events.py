"""A session as a stream: every entry once and in order, whenever and however often the client comes back."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from outrider.app.agent import Agent
from outrider.channels.http.app import route
from outrider.channels.http.failures import HttpError
from outrider.channels.http.openapi import EndpointSpec
from outrider.channels.http.reading import parse_query, reader_agent, session_from_path
from outrider.channels.http.routes_sessions import check_cursor
from outrider.channels.http.shapes import EventsQuery, encode_delta, encode_entry, encode_stream_notice
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Changed, Delta, Ended, Entry
from outrider.core.ports import Session

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
