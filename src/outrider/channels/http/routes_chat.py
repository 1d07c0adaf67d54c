"""`/v1/chat/completions`: a turn for any OpenAI client. The connection is the channel; closing it stops nothing."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.agent import Agent, media_type
from outrider.app.channels import CHAT
from outrider.app.runtimes import changed_settings
from outrider.channels.http.app import log_failure, route
from outrider.channels.http.chat_models import check_lending, chosen_settings, told_model
from outrider.channels.http.chat_parse import ChatRequest, Order, parse_order
from outrider.channels.http.chat_past import render_past
from outrider.channels.http.chat_render import AGAIN, Envelope, Progress, failure, parse_call
from outrider.channels.http.context import Wish, agent_of, enter, open_session
from outrider.channels.http.failures import HttpError, error_body, request_id
from outrider.channels.http.openai_common import bounds_of, digest, idempotency_key, ignored
from outrider.channels.http.openapi import Operation
from outrider.channels.http.sse import EventStream, event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Body, Changed, Entry, Event, Result
from outrider.core.parts import Image
from outrider.core.plan import fold
from outrider.core.ports import Session

SESSION_HEADERS = ("x-session-id", "x-outrider-session-id", "x-hermes-session-id")


class Opened(Struct, frozen=True):
    """The session a request is about, before anything of it is in there."""

    session: Session
    told: str
    """How the client is told to name it."""
    is_begun_here: bool
    """Whether the messages before the new ones are its past."""


async def complete(request: Request) -> Response:
    """Answer a conversation: with one completion, or with a stream of chunks."""
    agent = agent_of(request)
    body = await request.body()
    order = parse_order(body, agent.config.limits.input)
    _check(order)
    chosen = chosen_settings(agent.config, order.model)
    if order.tools and ("runtime" in chosen or not (_named(request) or order.called)):
        check_lending(chosen, agent.default_runtime)
    key = idempotency_key(request)
    opened = await _open(agent, request, order, key)
    settings = {**({"instructions": order.instructions} if order.instructions else {}), **chosen}
    place = f"chatcmpl-{digest(opened.session.id, key) if key else secrets.token_hex(16)}"
    wish = _wish(agent, order, opened, settings)
    entered = await enter(request, replace(wish, place=place, key=key or None))
    envelope = Envelope(
        place, entered.entry.at // 1000, told_model(chosen), entered.session.id, order.is_stream and order.wants_usage
    )
    headers = {"x-session-id": opened.told, **ignored(body)}
    progress = Progress(entered.entry.seq, await entered.state(), bounds_of(agent), is_live=entered.is_next)
    events = agent.follow(entered.session, entered.entry.seq)
    if order.is_stream:
        return EventStream(_chunks(request, events, envelope, progress), headers)
    return await _whole(events, envelope, progress, headers, is_repeatable=bool(key))


def _check(order: Order) -> None:
    """Refuse here what would be refused later, so that nothing is begun for it."""
    if order.is_silent and not order.outcomes:
        raise HttpError(400, "the last message is empty", "invalid_request")
    for image in order.words.images:
        media_type(image)
    render_past((), order.past, lambda image: Image("", media_type(image)), order.tools if order.is_silent else None)


def _named(request: Request) -> str:
    """The session that a header names, if one does."""
    return next((name for header in SESSION_HEADERS if (name := request.headers.get(header, "").strip())), "")


async def _open(agent: Agent, request: Request, order: Order, key: str) -> Opened:
    """By the header, or by the calls that wait for this client, or by the key; else a new one."""
    if named := _named(request):
        session = await open_session(request, named)
        return Opened(session, named, not session.head)
    if session := await _waiting(agent, order):
        return Opened(session, session.id, False)
    session = await open_session(request, f"chat {digest(key)}" if key else "")
    return Opened(session, session.id, True)


async def _waiting(agent: Agent, order: Order) -> Session | None:
    """The session whose turn waits for the results of this conversation's last calls, or has gone on with them."""
    calls = [parse_call(id) for id in order.called]
    for name in {session for session, _ in calls if session}:
        try:
            found = await agent.find(name)
        except Refused:
            continue
        journal = await agent.journal(found)
        waiting = {call.id for call in fold(journal).calls}
        if any(session == found.id and call in waiting for session, call in calls):
            return found
        answered = {entry.body.call for entry in journal if isinstance(entry.body, Result)}
        given = [parse_call(one.call) for one in order.outcomes]
        if given and order.is_silent and all(s == found.id and call in answered for s, call in given):
            return found
    return None


def _wish(agent: Agent, order: Order, opened: Opened, settings: Mapping[str, str]) -> Wish:
    words = order.words
    wish = Wish(
        channel=CHAT, place="", text=words.text, images=words.images, session=opened.session.id, tools=order.tools
    )
    if not opened.is_begun_here:
        results = [Result(parse_call(one.call)[1], one.text) for one in order.outcomes]
        return replace(wish, results=results, settings=settings)

    def keep(image: bytes) -> Image:
        return Image(agent.home.blobs.put(image), media_type(image))

    changes: list[Body] = [
        Changed(name, value) for name, value in changed_settings(settings, {}, agent.default_runtime).items()
    ]
    return replace(wish, past=render_past(changes, order.past, keep, order.tools if order.is_silent else None))


async def _whole(
    events: AsyncGenerator[Event, None],
    envelope: Envelope,
    progress: Progress,
    headers: Mapping[str, str],
    *,
    is_repeatable: bool,
) -> Response:
    try:
        async with aclosing(events):
            async for one in events:
                if isinstance(one, Entry):  # deltas say nothing that entries do not
                    progress.take(one)
                if progress.is_over:
                    break
    except Unavailable as error:
        # The turn is in the journal and goes on; asked again without a key, it would be done a second time.
        more = {"retry-after": str(max(1, int(error.retry_after or 1)))}
        more |= {} if is_repeatable else {"x-should-retry": "false"}
        raise HttpError(503, str(error), "unavailable", {**headers, **more}) from error
    if progress.ended and progress.ended.outcome != "done":
        raise _told(failure(progress.ended), headers)
    return Response(envelope.completion(progress), headers=dict(headers), media_type="application/json")


def _told(error: HttpError, headers: Mapping[str, str]) -> HttpError:
    return HttpError(error.status, str(error), error.code, {**error.headers, **headers})


async def _chunks(
    request: Request, events: AsyncGenerator[Event, None], envelope: Envelope, progress: Progress
) -> AsyncGenerator[bytes, None]:
    yield event(envelope.chunk({"role": "assistant", "content": ""}))
    try:
        async with aclosing(events):
            async for one in events:
                piece = progress.take(one)
                if piece.is_new_start:
                    yield AGAIN.encode()
                if piece.text:
                    yield event(envelope.chunk({"content": piece.text}))
                if progress.is_over:
                    break
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        yield _error(request, HttpError(503, str(error), "unavailable"))
        return
    if progress.ended and progress.ended.outcome != "done":
        yield _error(request, failure(progress.ended))
        return
    if progress.calls:
        yield event(envelope.calls(progress.calls))
    yield event(envelope.chunk({}, progress.finish))
    if envelope.wants_usage:
        yield event(envelope.usage(progress.usage))
    yield event("[DONE]")


def _error(request: Request, error: HttpError) -> bytes:
    body = error_body(error.status, " ".join(str(error).split()), error.code, request_id(request))
    return event(msgspec.json.encode(body))


ROUTES = (
    route(
        "/v1/chat/completions",
        complete,
        "POST",
        about=Operation(
            summary="Answer a conversation, as OpenAI's chat completions do.",
            body=ChatRequest,
            streams=True,
            headers={
                "X-Session-Id": "go on with this session; without it the messages are the history",
                "Idempotency-Key": "the same key gives the same completion and runs nothing twice",
            },
        ),
    ),
)
