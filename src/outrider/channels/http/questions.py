"""`/v1/questions`: questions that wait for a person, and their answers."""

from outrider.channels.http.endpoints import ApiCall, endpoint
from outrider.channels.http.errors import HttpError
from outrider.channels.http.schemas import (
    AnswerReceipt,
    ListQuery,
    NewAnswer,
    QuestionList,
    render_pending_question,
)


@endpoint("GET", "/v1/questions", scope="read")
async def list_questions(call: ApiCall, query: ListQuery) -> QuestionList:
    """List your pending questions, and for the owner those of everyone, longest waiting first."""
    pending, can_answer = await call.agent.pending_questions(), call.caller.may("approve")
    return QuestionList([render_pending_question(one, can_answer=can_answer) for one in pending[: query.limit]])


@endpoint("POST", "/v1/sessions/{id}/questions/{question}", scope="approve")
async def answer_question(call: ApiCall, id: str, question: str, body: NewAnswer) -> AnswerReceipt:
    """Answer a question; its turn then continues by itself."""
    pending = await call.agent.pending_questions()
    # A name is unique for one person only.
    own = {one.session.name: one.session.id for one in pending if one.session.person == call.caller.person}
    session = own.get(id, id)
    matches = (one for one in pending if one.session.id == session and question in (one.asked.ask, one.id))
    match = next(matches, None)
    if match is None:
        raise HttpError(404, f"no question {question!r} waits in this session", "not_found")
    if not await call.agent.answer(match.session, match.asked, body.answer):
        raise HttpError(409, f"the question {question!r} has already been answered", "answered")
    return AnswerReceipt(match.asked.ask, body.answer)


ENDPOINTS = (list_questions, answer_question)
