"""`/v1/questions`: questions that wait for a person, and their answers."""

from outrider.channels.http.endpoints import ApiCall, endpoint, find_session
from outrider.channels.http.errors import HttpError
from outrider.channels.http.schemas import (
    AnswerReceipt,
    ListQuery,
    NewAnswer,
    QuestionList,
    QuestionView,
    render_question,
)
from outrider.core.events import short_question_id


@endpoint("GET", "/v1/questions", scope="read")
async def list_questions(call: ApiCall, query: ListQuery) -> QuestionList:
    """List the questions that wait for you, longest waiting first."""
    questions: list[QuestionView] = []
    for session in await call.agent.unfinished():
        if session.is_open and len(questions) < query.limit:
            questions += [render_question(session, asked) for asked in await call.agent.questions(session)]
    return QuestionList(questions[: query.limit])


@endpoint("POST", "/v1/sessions/{id}/questions/{question}")
async def answer_question(call: ApiCall, id: str, question: str, body: NewAnswer) -> AnswerReceipt:
    """Answer a question; its turn then continues by itself."""
    session = await find_session(call.agent, id)
    pending = await call.agent.questions(session)
    asked = next((one for one in pending if question in (one.ask, short_question_id(session.id, one))), None)
    if asked is None:
        raise HttpError(404, f"no question {question!r} waits in this session", "not_found")
    if not await call.agent.answer(session, asked, body.answer):
        raise HttpError(409, f"the question {question!r} has already been answered", "answered")
    return AnswerReceipt(asked.ask, body.answer)


ENDPOINTS = (list_questions, answer_question)
