"""The session that a request of OpenAI's APIs belongs to, and the input that the request becomes in it."""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from outrider.app.agent import Agent
from outrider.app.api import check_runtime_choice
from outrider.app.runtimes import changed_settings
from outrider.channels.http.endpoints import ApiCall, find_session
from outrider.channels.http.inputs import InputRequest, open_session
from outrider.channels.http.openai.conversation import ParsedConversation, UserTurn, invalid_request
from outrider.channels.http.openai.history import check_history, journal_from_history
from outrider.channels.http.openai.models import check_client_tools, settings_for_model
from outrider.channels.http.openai.response_object import find_response
from outrider.channels.http.openai.turn_output import parse_call_id
from outrider.core.errors import Refused
from outrider.core.events import Changed, Entry, Result
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.types import Image
from outrider.system.images import media_type


class SessionHint(Struct, frozen=True, kw_only=True):
    """What a request says about its session."""

    prefix: str
    """The name of a session that an idempotency key stands for begins with this."""
    name: str = ""
    """The session's name or id."""
    response: str = ""
    """The response to continue from."""
    must_exist: bool = False
    """Whether the request refers to calls that only the session has."""


class ResolvedSession(Struct, frozen=True):
    """The session a request belongs to."""

    session: Session
    public_name: str
    """What the client calls it."""
    takes_history: bool
    """Whether the session begins with the messages before the new ones."""
    journal: Sequence[Entry] = ()
    """The part of its journal that has been read."""


def check_conversation(conversation: ParsedConversation, *, empty: str, with_history: bool, is_open: bool) -> None:
    """Refuse what would be refused later, before a session is created for it.

    `empty` is the error message for a request with nothing new. With an open history, its last turn continues.
    """
    if conversation.has_no_message and not conversation.tool_outputs:
        raise invalid_request(empty)
    turns = conversation.items if with_history else conversation.new_items
    for image in (image for turn in turns if isinstance(turn, UserTurn) for image in turn.images):
        media_type(image)
    if with_history:
        check_history(conversation.history, is_open=is_open)


def requested_settings(agent: Agent, conversation: ParsedConversation, hint: SessionHint) -> Mapping[str, str]:
    """The session settings that the request asks for: its model or runtime, and its instructions.

    Raises 400 when the client has tools and what is chosen for a new session cannot use them.
    """
    settings = settings_for_model(agent.config, conversation.model)
    check_runtime_choice(settings, agent.default_runtime)
    is_new = not (hint.name or hint.response or conversation.last_call_ids)
    if conversation.tools and ("runtime" in settings or is_new):
        check_client_tools(settings, agent.default_runtime)
    return {**({"instructions": conversation.instructions} if conversation.instructions else {}), **settings}


async def resolve_session(
    call: ApiCall, conversation: ParsedConversation, hint: SessionHint, key: str
) -> ResolvedSession:
    """The session of the response, of the name, of calls that wait for this client, or of the key; else a new one."""
    if hint.response:
        stored = await find_response(call.agent, hint.response)
        return ResolvedSession(stored.session, stored.session.id, False, stored.journal)
    if hint.name and hint.must_exist:
        return ResolvedSession(await find_session(call.agent, hint.name), hint.name, False)
    if hint.name:
        session = await open_session(call, hint.name)
        return ResolvedSession(session, hint.name, not session.head)
    if session := await _find_waiting_session(call.agent, conversation):
        return ResolvedSession(session, session.id, False)
    session = await open_session(call, f"{hint.prefix} {_digest(key)}" if key else "")
    return ResolvedSession(session, session.id, True)


async def _find_waiting_session(agent: Agent, conversation: ParsedConversation) -> Session | None:
    """The session whose turn waits for the outputs of the conversation's last calls, or has continued with them."""
    calls = [parse_call_id(id) for id in conversation.last_call_ids]
    outputs = [parse_call_id(one.call) for one in conversation.tool_outputs]
    for name in {session for session, _ in calls if session}:
        try:
            session = await agent.find(name)
        except Refused:
            continue
        journal = await agent.journal(session)
        waiting = {call.id for call in fold(journal).calls}
        if any(name == session.id and call in waiting for name, call in calls):
            return session
        answered = {entry.body.call for entry in journal if isinstance(entry.body, Result)}
        is_repeated = all(name == session.id and call in answered for name, call in outputs)
        if outputs and conversation.has_no_message and is_repeated:
            return session
    return None


def input_request(
    agent: Agent,
    conversation: ParsedConversation,
    resolved: ResolvedSession,
    settings: Mapping[str, str],
    *,
    channel: str,
    address_id: str,
    key: str,
) -> InputRequest:
    """The input: with the history for a session that begins with it, else with tool outputs and changed settings."""
    message = conversation.new_message
    request = InputRequest(
        channel=channel,
        address_id=address_id,
        text=message.text,
        images=message.images,
        session=resolved.session.id,
        idempotency_key=key,
        tools=conversation.tools,
    )
    if not resolved.takes_history:
        results = [Result(parse_call_id(one.call)[1], one.text) for one in conversation.tool_outputs]
        return replace(request, results=results, settings=settings)

    def store_image(image: bytes) -> Image:
        return Image(agent.home.blobs.put(image), media_type(image))

    changes = [Changed(name, value) for name, value in changed_settings(settings, {}, agent.default_runtime).items()]
    open_tools = conversation.tools if conversation.has_no_message else None
    return replace(request, history=journal_from_history(changes, conversation.history, store_image, open_tools))


def address_token(session: Session, key: str) -> str:
    """What tells this request's address from others of its session: the same for the same idempotency key."""
    return _digest(session.id, key) if key else secrets.token_hex(16)


def _digest(*words: str) -> str:
    return blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).hexdigest()
