"""Questions that wait for a person, and their answers."""

from starlette.requests import Request
from starlette.responses import Response

from outrider.channels.http.endpoints import (
    EndpointSpec,
    json_response,
    parse_body,
    parse_query,
    reader_agent,
    route,
    session_from_path,
)
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import agent_of
from outrider.channels.http.schemas import (
    AnswerReceipt,
    ListQuery,
    NewAnswer,
    QuestionList,
    QuestionView,
    render_question,
)


async def list_questions(request: Request) -> Response:
    agent = reader_agent(request)
    query = parse_query(request, ListQuery)
    found: list[QuestionView] = []
    for session in await agent.unfinished():
        if session.is_open and len(found) < query.limit:
            found += [render_question(session, asked) for asked in await agent.questions(session)]
    return json_response(QuestionList(found[: query.limit]))


async def answer_question(request: Request) -> Response:
    agent = agent_of(request)
    session = await session_from_path(request, agent)
    wish = await parse_body(request, NewAnswer)
    name: str = request.path_params["question"]
    asked = next((asked for asked in await agent.questions(session) if asked.ask == name), None)
    if asked is None:
        raise HttpError(404, f"no question {name!r} waits in this session", "not_found")
    if not await agent.answer(session, asked, wish.answer):
        raise HttpError(409, f"the question {name!r} has been answered meanwhile", "answered")
    return json_response(AnswerReceipt(asked.ask, wish.answer))


ROUTES = (
    route(
        "/v1/questions",
        list_questions,
        "GET",
        about=EndpointSpec(
            summary="The questions that wait for you, longest waiting first", query=ListQuery, answer=QuestionList
        ),
    ),
    route(
        "/v1/sessions/{id}/questions/{question}",
        answer_question,
        "POST",
        about=EndpointSpec(
            summary="Answer a question; its turn goes on by itself", body=NewAnswer, answer=AnswerReceipt
        ),
    ),
)
