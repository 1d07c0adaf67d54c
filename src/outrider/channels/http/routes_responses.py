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

from outrider.app.agent import Agent, media_type
from outrider.app.channels import CHAT, RESPONSES
from outrider.app.runtimes import changed_settings
from outrider.channels.http.app import log_failure, route
from outrider.channels.http.chat_models import check_lending, chosen_settings
from outrider.channels.http.chat_past import render_past
from outrider.channels.http.chat_render import Progress, parse_call
from outrider.channels.http.context import Wish, agent_of, context, enter, open_session
from outrider.channels.http.failures import HttpError
from outrider.channels.http.openai_common import bounds_of, digest, idempotency_key, ignored
from outrider.channels.http.openapi import Operation
from outrider.channels.http.reading import answer, find_session, parse_query, reading
from outrider.channels.http.responses_parse import ResponsesRequest, Wanted, parse_wanted
from outrider.channels.http.responses_render import BACKGROUND, Frame, Point, parse_response_id, points, response_id
from outrider.channels.http.responses_stream import LAST, Telling, is_ours
from outrider.channels.http.sse import EventStream, event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Body, Changed, Ended, Entry, Input, Result
from outrider.core.parts import Image
from outrider.core.plan import fold
from outrider.core.ports import Session
from outrider.core.route import channel_of

STOPPING = 10.0
"""Seconds in which a cancelled turn is expected to end; it is told as it is then."""


class RetrieveQuery(Struct, frozen=True):
    stream: Annotated[bool, Meta(description="as events, also of what has long happened")] = False
    starting_after: Annotated[int, Meta(ge=-1, le=LAST, description="only events after the one of this number")] = -1


class ItemsQuery(Struct, frozen=True):
    order: Literal["asc", "desc"] = "desc"


class Kept(Struct, frozen=True):
    """A response that is in a journal."""

    agent: Agent
    session: Session
    journal: Sequence[Entry]
    points: Sequence[Point]
    frame: Frame

    @property
    def is_open(self) -> bool:
        return self.render()["status"] in ("queued", "in_progress")

    def render(self) -> dict[str, Any]:
        progress, seq = self.frame.progress(), self.frame.entry.seq
        for entry in self.journal[seq:]:
            progress.take(entry)
            if progress.is_over:
                break
        return self.frame.so_far(progress, is_begun=fold(self.journal).is_open)


class Opened(Struct, frozen=True):
    """The session a request is for."""

    session: Session
    begins: bool
    """Whether it is to begin with what the request says went before."""
    known: Sequence[Entry] = ()
    """What of its journal has been read."""


async def create(request: Request) -> Response:
    """Ask for a response: whole, as a stream, or to come back for."""
    agent = agent_of(request)
    body = await request.body()
    wanted = parse_wanted(body, agent.config.limits.input)
    order = wanted.order
    _check(wanted)
    chosen = chosen_settings(agent.config, order.model)
    if order.tools and ("runtime" in chosen or not (wanted.previous or wanted.conversation or order.called)):
        check_lending(chosen, agent.default_runtime)
    key = idempotency_key(request)
    opened = await _open(request, agent, wanted, key)
    session = opened.session
    place = (digest(session.id, key) if key else secrets.token_hex(16)) + (BACKGROUND if wanted.is_background else "")
    channel = RESPONSES if wanted.is_stored else CHAT
    settings = {**({"instructions": order.instructions} if order.instructions else {}), **chosen}
    wish = Wish(
        channel=channel,
        place=place,
        text=order.words.text,
        images=order.words.images,
        session=session.id,
        key=key or None,
        tools=order.tools,
    )
    if opened.begins:
        wish = replace(wish, past=_past(agent, wanted, settings))
    else:
        results = [Result(parse_call(one.call)[1], one.text) for one in order.outcomes]
        wish = replace(wish, results=results, settings=settings)
    known = opened.known
    async with context(request).place(session.id):  # of two that go on from the same response, one is first
        if not opened.begins:
            known = await _read_on(agent, session, known)
            _check_place(known, session, wanted, f"{channel}:{place}")
        entered = await enter(request, wish)
    if wanted.is_background and (webhooks := context(request).webhooks):
        await webhooks.owe(session, entered.entry.seq)
    kept = _kept(agent, session, await _read_on(agent, session, known), entered.entry.seq)
    headers = {"x-session-id": session.id, **ignored(body)}
    if order.is_stream:
        return EventStream(_events(request, kept, Telling(kept.frame, is_live=entered.is_next)), headers)
    if wanted.is_background:
        return _told(kept.render(), headers)
    return await _whole(kept, headers, is_repeatable=bool(key))


def _check(wanted: Wanted) -> None:
    """Refuse here what would be refused later, so that nothing is begun for it."""
    order = wanted.order
    if order.is_silent and not order.outcomes:
        raise HttpError(400, "the input is empty", "invalid_request")
    for image in order.words.images:
        media_type(image)
    if not wanted.previous and not wanted.needs_calls:
        lent = order.tools if order.is_silent and not wanted.conversation else None
        render_past((), order.past, lambda image: Image("", media_type(image)), lent)


async def _open(request: Request, agent: Agent, wanted: Wanted, key: str) -> Opened:
    if wanted.previous:
        kept = await _find(agent, wanted.previous)
        return Opened(kept.session, False, kept.journal)
    if wanted.conversation:
        if wanted.needs_calls:
            return Opened(await find_session(agent, wanted.conversation), False)
        session = await open_session(request, wanted.conversation)
        return Opened(session, not session.head)
    if session := await _waiting(agent, wanted):
        return Opened(session, False)
    return Opened(await open_session(request, f"response {digest(key)}" if key else ""), True)


async def _waiting(agent: Agent, wanted: Wanted) -> Session | None:
    """The session that the results of this request are for, when the request holds the calls and no other hint."""
    for name, call in map(parse_call, wanted.order.called):
        try:
            found = await agent.find(name) if name else None
        except Refused:
            continue
        if found and found.id == name:
            journal = await agent.journal(found)
            waiting = {one.id for one in fold(journal).calls}
            answered = {entry.body.call for entry in journal if isinstance(entry.body, Result)}
            if call in waiting or (wanted.order.is_silent and call in answered):
                return found
    return None


def _check_place(journal: Sequence[Entry], session: Session, wanted: Wanted, address: str) -> None:
    """A session has one end: only its last response can be gone on from, unless the same request is sent again."""
    _, seq = parse_response_id(wanted.previous) or ("", 0)
    if any(isinstance(entry.body, Input) and entry.body.address == address for entry in journal):
        return
    given = {parse_call(one.call)[1] for one in wanted.order.outcomes}
    waiting = {call.id for call in fold(journal).calls}
    answered = {entry.body.call for entry in journal[seq:] if isinstance(entry.body, Result)}
    if foreign := given - waiting - answered:
        raise HttpError(400, f"no call {min(foreign)[:80]!r} waits for a result", "invalid_request")
    later = [point for point in points(journal) if point.seq > seq]
    is_again = wanted.order.is_silent and given <= answered
    if wanted.previous and later and not is_again:
        last = response_id(session.id, later[-1].seq)
        raise HttpError(400, f"its session has gone on since: only {last} can be continued", "not_last")


def _past(agent: Agent, wanted: Wanted, settings: Mapping[str, str]) -> Sequence[Body]:
    def keep(image: bytes) -> Image:
        return Image(agent.home.blobs.put(image), media_type(image))

    changes: list[Body] = [
        Changed(name, value) for name, value in changed_settings(settings, {}, agent.default_runtime).items()
    ]
    order = wanted.order
    return render_past(changes, order.past, keep, order.tools if order.is_silent else None)


async def _read_on(agent: Agent, session: Session, known: Sequence[Entry]) -> Sequence[Entry]:
    """The journal, of which this much is known."""
    return [*known, *await agent.journal(session, len(known))]


def _kept(agent: Agent, session: Session, journal: Sequence[Entry], seq: int) -> Kept:
    frame = Frame(session.id, journal[seq - 1], fold(journal[:seq]), bounds_of(agent))
    return Kept(agent, session, journal, points(journal), frame)


async def _find(agent: Agent, id: str) -> Kept:
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
    kept = _kept(agent, session, journal, seq)
    if not any(point.seq == seq and channel_of(point.address) == RESPONSES for point in kept.points):
        raise missing
    return kept


async def _whole(kept: Kept, headers: Mapping[str, str], *, is_repeatable: bool) -> Response:
    try:
        progress = await _until_over(kept)
    except Unavailable as error:
        more = {"retry-after": str(max(1, int(error.retry_after or 1)))}
        more |= {} if is_repeatable else {"x-should-retry": "false"}  # the turn goes on; again would be twice
        raise HttpError(503, str(error), "unavailable", {**headers, **more}) from error
    return _told(kept.frame.so_far(progress), headers)


def _told(response: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    done = answer(response)
    done.headers.update(headers)
    return done


async def _until_over(kept: Kept) -> Progress:
    progress = kept.frame.progress()
    async with aclosing(kept.agent.follow(kept.session, kept.frame.entry.seq)) as events:
        async for one in events:
            if isinstance(one, Entry):  # deltas say nothing that entries do not
                progress.take(one)
            if progress.is_over:
                break
    return progress


async def _events(request: Request, kept: Kept, telling: Telling) -> AsyncGenerator[bytes, None]:
    for one in telling.begin():
        yield one
    try:
        async with aclosing(kept.agent.follow(kept.session, kept.frame.entry.seq)) as events:
            async for happened in events:
                for one in telling.take(happened):
                    yield one
                if telling.is_over:
                    return
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        # Under the number of the last event: a client that takes the stream up from there misses nothing.
        told = {"type": "error", "sequence_number": telling.number, "code": "unavailable", "param": None}
        yield event(msgspec.json.encode({**told, "message": str(error)}), name="error")


async def retrieve(request: Request) -> Response:
    query = parse_query(request, RetrieveQuery)
    kept = await _find(reading(request), request.path_params["id"])
    if not is_ours(query.starting_after):
        raise HttpError(400, f"no event of this response has the number {query.starting_after}", "invalid_cursor")
    if query.stream:
        telling = Telling(kept.frame, is_live=False, after=query.starting_after)
        return EventStream(_events(request, kept, telling))
    return answer(kept.render())


async def cancel(request: Request) -> Response:
    """Stop the turn of a response that is not over; one that is stays as it is."""
    agent = agent_of(request)
    kept = await _find(agent, request.path_params["id"])
    if kept.is_open:
        _check_alone(kept)
        await agent.stop(kept.session, "cancelled by the client")
        with anyio.move_on_after(STOPPING):
            await _until_over(kept)
        journal = await _read_on(agent, kept.session, kept.journal)
        kept = _kept(agent, kept.session, journal, kept.frame.entry.seq)
    return answer(kept.render())


def _check_alone(kept: Kept) -> None:
    """Stopping ends all that is asked for in a session: refuse it when that is more than this response."""
    dealt = max((entry.body.saw for entry in kept.journal if isinstance(entry.body, Ended)), default=0)
    for point in kept.points:
        is_other = point.seq > dealt and point.seq != kept.frame.entry.seq
        if is_other and _kept(kept.agent, kept.session, kept.journal, point.seq).is_open:
            message = f"its session has more to do: stop all of it, at /v1/sessions/{kept.session.id}/stop"
            raise HttpError(409, message, "not_alone")


async def delete(request: Request) -> Response:
    """Delete a response with its session, when nothing else was asked for in there."""
    agent = agent_of(request)
    kept = await _find(agent, request.path_params["id"])
    if len(kept.points) > 1:
        message = f"other things were said in its session: delete that, at /v1/sessions/{kept.session.id}"
        raise HttpError(409, message, "not_alone")
    await agent.delete(kept.session)
    return answer({"id": kept.frame.id, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """What was handed in for a response: the words, or the results of calls."""
    query = parse_query(request, ItemsQuery)
    kept = await _find(reading(request), request.path_params["id"])
    items = kept.frame.input_items(kept.journal)
    items = items if query.order == "asc" else items[::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return answer({"object": "list", "data": items, "has_more": False, **ends})


_ONE = "/v1/responses/{id}"
ROUTES = (
    route(
        "/v1/responses",
        create,
        "POST",
        about=Operation(
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
        about=Operation(summary="A response as it is now, or as a stream.", query=RetrieveQuery, streams=True),
    ),
    route(_ONE, delete, "DELETE"),
    route(f"{_ONE}/cancel", cancel, "POST"),
    route(
        f"{_ONE}/input_items",
        input_items,
        "GET",
        about=Operation(summary="What was handed in for a response.", query=ItemsQuery),
    ),
)
