"""Questions that wait for a person, and their answers."""

from starlette.requests import Request
from starlette.responses import Response

from outrider.channels.http.app import route
from outrider.channels.http.context import agent_of
from outrider.channels.http.failures import HttpError
from outrider.channels.http.openapi import Operation
from outrider.channels.http.reading import answer, parse_body, parse_query, reading, session_of
from outrider.channels.http.shapes import Answered, AskList, AskView, ListQuery, NewAnswer, render_ask


async def list_asks(request: Request) -> Response:
    agent = reading(request)
    query = parse_query(request, ListQuery)
    found: list[AskView] = []
    for session in await agent.unfinished():
        if session.is_open and len(found) < query.limit:
            found += [render_ask(session, asked) for asked in await agent.questions(session)]
    return answer(AskList(found[: query.limit]))


async def give(request: Request) -> Response:
    agent = agent_of(request)
    session = await session_of(request, agent)
    wish = await parse_body(request, NewAnswer)
    name: str = request.path_params["ask"]
    asked = next((asked for asked in await agent.questions(session) if asked.ask == name), None)
    if asked is None:
        raise HttpError(404, f"no question {name!r} waits in this session", "not_found")
    if not await agent.answer(session, asked, wish.answer):
        raise HttpError(409, f"the question {name!r} has been answered meanwhile", "answered")
    return answer(Answered(asked.ask, wish.answer))


ROUTES = (
    route(
        "/v1/asks",
        list_asks,
        "GET",
        about=Operation(
            summary="The questions that wait for you, longest waiting first", query=ListQuery, answer=AskList
        ),
    ),
    route(
        "/v1/sessions/{id}/asks/{ask}",
        give,
        "POST",
        about=Operation(summary="Answer a question; its turn goes on by itself", body=NewAnswer, answer=Answered),
    ),
)
