"""Sessions over HTTP: list, begin, read, say something in one, rename, stop, delete."""

from collections.abc import Mapping
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.agent import Agent
from outrider.app.channels import SESSIONS
from outrider.app.runtimes import apply_settings, runtime_of, settings_of
from outrider.channels.http.app import route
from outrider.channels.http.chat_models import OUTRIDER, chosen_settings
from outrider.channels.http.context import Wish, agent_of, enter
from outrider.channels.http.failures import HttpError
from outrider.channels.http.openapi import Operation
from outrider.channels.http.reading import answer, find_session, parse_body, parse_query, reading, session_of
from outrider.channels.http.shapes import (
    Accepted,
    EntriesQuery,
    EntryList,
    FoundList,
    ListQuery,
    NewInput,
    NewName,
    NewSession,
    NewStop,
    SearchQuery,
    SessionList,
    SessionView,
    Stopped,
    encode_entry,
    render_found,
    render_session,
)
from outrider.core.ports import Session

_KEY = "Idempotency-Key"
_LONGEST_KEY = 255


async def list_sessions(request: Request) -> Response:
    query = parse_query(request, ListQuery)
    sessions = await reading(request).sessions(query.limit)
    return answer(SessionList([render_session(session) for session in sessions]))


async def begin(request: Request) -> Response:
    agent = agent_of(request)
    wish = await parse_body(request, NewSession)
    settings = _settings(agent, wish.model)
    with suppress(HttpError):
        return answer(await _set(agent, await find_session(agent, wish.name), settings))
    return answer(await _set(agent, await agent.session(wish.name), settings), 201)


def _settings(agent: Agent, model: str) -> Mapping[str, str]:
    """What a session is set to by this name, which has to mean something. Raises HttpError."""
    settings = chosen_settings(agent.config, model)
    if model and not settings and model != OUTRIDER:
        raise HttpError(404, f"there is no model {model[:100]!r}; `GET /v1/models` lists them", "model_not_found")
    return settings


async def _set(agent: Agent, session: Session, settings: Mapping[str, str]) -> SessionView:
    """The session, with this set."""
    if await apply_settings(agent, session, settings):
        session = await find_session(agent, session.id)
    known = settings_of(await agent.journal(session))
    return render_session(session, str(runtime_of(known, agent.default_runtime)))


async def search(request: Request) -> Response:
    query = parse_query(request, SearchQuery)
    found = await reading(request).search(query.q, query.limit)
    return answer(FoundList([render_found(one) for one in found]))


async def show(request: Request) -> Response:
    agent = reading(request)
    return answer(await _set(agent, await session_of(request, agent), {}))


async def change(request: Request) -> Response:
    agent = agent_of(request)
    wish = await parse_body(request, NewName)
    settings = _settings(agent, wish.model)
    session = await session_of(request, agent)
    return answer(
        await _set(agent, await agent.rename(session, wish.name) if wish.name is not None else session, settings)
    )


async def delete(request: Request) -> Response:
    agent = agent_of(request)
    await agent.delete(await session_of(request, agent))
    return Response(status_code=204)


async def say(request: Request) -> Response:
    session = await session_of(request, agent_of(request))
    wish = await parse_body(request, NewInput)
    entered = await enter(
        request,
        Wish(
            channel=SESSIONS,
            place=session.id,
            text=wish.text,
            session=session.id,
            images=wish.images,
            key=_key(request),
        ),
    )
    return answer(Accepted(entered.session.id, entered.entry.seq, entered.entry.at), 202)


def _key(request: Request) -> str | None:
    key = request.headers.get(_KEY)
    if key is None:
        return None
    if not key.strip() or len(key) > _LONGEST_KEY or not key.isprintable():
        raise HttpError(400, f"{_KEY} has 1 to {_LONGEST_KEY} printable characters", "idempotency_key")
    return key


async def entries(request: Request) -> Response:
    agent = reading(request)
    session = await session_of(request, agent)
    query = parse_query(request, EntriesQuery)
    found = await agent.journal(session, check_cursor(query.after, session), query.limit)
    page = EntryList(
        [msgspec.Raw(encode_entry(entry)) for entry in found], (await find_session(agent, session.id)).head
    )
    return answer(page)


def check_cursor(after: int, session: Session) -> int:
    """Refuses a cursor beyond the end: whoever holds one read another journal than this."""
    if after > session.head:
        raise HttpError(400, f"there is no entry {after} yet: the last one is {session.head}", "invalid_cursor")
    return after


async def stop(request: Request) -> Response:
    agent = agent_of(request)
    session = await session_of(request, agent)
    wish = await parse_body(request, NewStop)
    return answer(Stopped(await agent.stop(session, tasks=wish.tasks)))


ROUTES = (
    route(
        "/v1/sessions",
        list_sessions,
        "GET",
        about=Operation(summary="Your sessions, latest first", query=ListQuery, answer=SessionList),
    ),
    route(
        "/v1/sessions",
        begin,
        "POST",
        about=Operation(
            summary="Begin a session, or find the one of this name (200)",
            body=NewSession,
            answer=SessionView,
            status=201,
            others={200: SessionView},
        ),
    ),
    route(
        "/v1/sessions/search",
        search,
        "GET",
        about=Operation(summary="Where words were said in your sessions", query=SearchQuery, answer=FoundList),
    ),
    route("/v1/sessions/{id}", show, "GET", about=Operation(summary="One session", answer=SessionView)),
    route(
        "/v1/sessions/{id}",
        change,
        "PATCH",
        about=Operation(
            summary="Call a session otherwise, or have another model or runtime answer in it",
            body=NewName,
            answer=SessionView,
        ),
    ),
    route(
        "/v1/sessions/{id}",
        delete,
        "DELETE",
        about=Operation(summary="Stop a session, end its tasks, and delete it with its journal", status=204),
    ),
    route(
        "/v1/sessions/{id}/inputs",
        say,
        "POST",
        about=Operation(
            summary="Say something in a session; it is durable when this is answered, and its turn goes on by itself",
            body=NewInput,
            headers={_KEY: "the same key again is the same input, taken once"},
            answer=Accepted,
            status=202,
        ),
    ),
    route(
        "/v1/sessions/{id}/entries",
        entries,
        "GET",
        about=Operation(summary="A part of the journal, oldest first", query=EntriesQuery, answer=EntryList),
    ),
    route(
        "/v1/sessions/{id}/stop",
        stop,
        "POST",
        about=Operation(summary="Stop the session's turn and the commands it waits for", body=NewStop, answer=Stopped),
    ),
)
