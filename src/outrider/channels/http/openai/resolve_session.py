"""What both of OpenAI's APIs do with a request before it is an input."""

from hashlib import blake2b

from msgspec import Struct
from starlette.requests import Request

from outrider.app.agent import Agent
from outrider.channels.http.inputs import open_session
from outrider.channels.http.openai.conversation import ParsedConversation
from outrider.channels.http.openai.turn_output import parse_call_id
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.plan import fold
from outrider.core.store_port import Session


def digest(*words: str) -> str:
    """A name for these words that tells nothing of them."""
    return blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).hexdigest()


SESSION_HEADERS = ("x-session-id", "x-outrider-session-id", "x-hermes-session-id")


class ResolvedSession(Struct, frozen=True):
    """The session a request is about, before anything of it is in there."""

    session: Session
    public_name: str
    """How the client is told to name it."""
    takes_history: bool
    """Whether the messages before the new ones are its past."""


def session_header(request: Request) -> str:
    """The session that a header names, if one does."""
    return next((name for header in SESSION_HEADERS if (name := request.headers.get(header, "").strip())), "")


async def resolve_chat_session(agent: Agent, request: Request, order: ParsedConversation, key: str) -> ResolvedSession:
    """By the header, or by the calls that wait for this client, or by the key; else a new one."""
    if named := session_header(request):
        session = await open_session(request, named)
        return ResolvedSession(session, named, not session.head)
    if session := await find_waiting_session(agent, order):
        return ResolvedSession(session, session.id, False)
    session = await open_session(request, f"chat {digest(key)}" if key else "")
    return ResolvedSession(session, session.id, True)


async def find_waiting_session(agent: Agent, order: ParsedConversation) -> Session | None:
    """The session whose turn waits for the results of this conversation's last calls, or has gone on with them."""
    calls = [parse_call_id(id) for id in order.last_call_ids]
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
        given = [parse_call_id(one.call) for one in order.tool_outputs]
        if given and order.has_no_message and all(s == found.id and call in answered for s, call in given):
            return found
    return None
