"""Inputs over HTTP: `accept_input` is the one place where a request becomes an input of a session.

Every endpoint that can start or continue a turn calls it. It determines person, session and address, checks what the
key may spend, and returns when the input is durable.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from outrider.app.addresses import REQUEST, SESSIONS
from outrider.app.agent import Agent
from outrider.app.runtimes import apply_settings, settings_of
from outrider.channels.http.endpoints import ApiCall, Caller
from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.models import check_client_tools
from outrider.channels.http.rate_limits import spending_error
from outrider.core.errors import NameTaken, Refused
from outrider.core.events import Body, Changed, Entry, Input, Result
from outrider.core.plan import State, fold
from outrider.core.store_port import Session
from outrider.core.types import ToolSpec

CLIENT_MOVED_ON = "not run: the client continued without a result"
"""The result of a call that its client never answered."""
KEY_HEADER = "Idempotency-Key"
_MAX_KEY_CHARS = 255


class InputRequest(Struct, frozen=True, kw_only=True):
    """What a request adds to a session."""

    channel: str
    """The channel of its address. It decides how later messages reach the caller."""
    address_id: str
    """The rest of the address, e.g. the id of the response."""
    text: str
    session: str
    """The session's id."""
    images: Sequence[bytes] = ()
    idempotency_key: str = ""
    tools: Sequence[ToolSpec] = ()
    """Tools that the caller runs itself."""
    results: Sequence[Result] = ()
    """Results of calls of such tools. Without a text, the turn that waits for them continues."""
    history: Sequence[Body] = ()
    """What an empty session begins with. Without a text, the turn that it leaves open continues."""
    settings: Mapping[str, str] = {}
    """Settings of the session to change first."""

    @property
    def stored_key(self) -> str | None:
        """The key in the journal. Its prefix keeps callers from taking a key of ours, such as a task's."""
        # A request to the sessions API that is repeated with another delivery is the same request.
        prefix = SESSIONS if self.channel == REQUEST else self.channel
        return f"{prefix}/{self.idempotency_key}" if self.idempotency_key else None

    @property
    def has_no_message(self) -> bool:
        return not self.text.strip() and not self.images


class AcceptedInput(Struct, frozen=True):
    """A request that has become part of a journal."""

    session: Session
    entry: Entry
    """The input; or the last of the results or of the history it came with. Its turn comes after this entry."""
    is_next: bool = True
    """Whether the model's next words answer this; not so while it still answers an earlier input."""


def idempotency_key(call: ApiCall) -> str:
    """The key under which the client may repeat this request without running it twice; empty when it has none."""
    key = call.request.headers.get(KEY_HEADER)
    if key is None:
        return ""
    if not key.strip() or len(key) > _MAX_KEY_CHARS or not key.isprintable():
        message = f"an {KEY_HEADER} must have 1 to {_MAX_KEY_CHARS} printable characters"
        raise HttpError(400, message, "idempotency_key")
    return key.strip()


async def open_session(call: ApiCall, name: str = "") -> Session:
    """The session of this whole name or id, created if there is none and the key may still pay for a turn."""
    if error := await _find_spending_error(call):
        try:
            return await call.agent.find(name)
        except Refused:
            raise error from None
    return await call.agent.session(name)


async def accept_input(call: ApiCall, input_request: InputRequest) -> AcceptedInput:
    """Add an input, or results of the caller's tools, to a session. Durable when this returns.

    Calls of the caller's tools that wait in the session and get no result are answered as not run.
    """
    agent = call.agent
    session = await agent.session(input_request.session)
    address = f"{input_request.channel}:{input_request.address_id}"
    await _check_spending(call, session, input_request, address)
    await _check_session_tools(agent, session, input_request)
    await apply_settings(agent, session, input_request.settings)
    if input_request.history and not session.head:
        await agent.seed(session, [_with_address(body, call.caller, address) for body in input_request.history])
    key = input_request.idempotency_key
    journal = await agent.journal(session) if session.is_open or key else ()
    state = fold(journal)
    if input_request.has_no_message and (input_request.results or input_request.history):
        return await _resume_turn(agent, session, input_request, state)
    if not _was_sent_from(journal, address):
        await agent.record_results(session, _results_for_unanswered(state, input_request))
    await agent.record_results(session, input_request.results)
    try:
        entry = await agent.post(
            input_request.text,
            session=session,
            images=input_request.images,
            key=input_request.stored_key,
            address=address,
            tools=input_request.tools,
        )
    except NameTaken as error:
        message = f"{KEY_HEADER} {key!r} was used before with a different message; use a new one"
        raise HttpError(400, message, "idempotency_key") from error
    return AcceptedInput(session, entry, is_next=not session.has_work or _awaits_client_tools(state))


async def _check_session_tools(agent: Agent, session: Session, input_request: InputRequest) -> None:
    """Refuse the caller's tools where the session's runtime cannot use them."""
    if input_request.tools:
        initial = {body.name: body.value for body in input_request.history if isinstance(body, Changed)}
        settings = settings_of(await agent.journal(session)) if session.head else initial
        check_client_tools({**settings, **input_request.settings}, agent.default_runtime)


async def _resume_turn(agent: Agent, session: Session, input_request: InputRequest, state: State) -> AcceptedInput:
    """Continue the turn from the results, or from the end of the history, without a new input."""
    calls = {result.call for result in input_request.results}
    if any(call.id in calls for call in state.calls):
        await agent.record_results(session, _results_for_unanswered(state, input_request))
    await agent.submit_results(session, input_request.results)
    journal = await agent.journal(session)
    recorded = [one for one in journal if isinstance(one.body, Result) and one.body.call in calls]
    return AcceptedInput(session, recorded[-1] if recorded else journal[len(input_request.history) - 1])


def _results_for_unanswered(state: State, input_request: InputRequest) -> list[Result]:
    """Results for the calls that wait for this caller and get none from it."""
    answered = {result.call for result in input_request.results}
    waiting = state.calls if _awaits_client_tools(state) else ()
    return [Result(call.id, CLIENT_MOVED_ON, failed=True) for call in waiting if call.id not in answered]


def _awaits_client_tools(state: State) -> bool:
    return bool(state.calls) and not state.questions and all(call.tool in state.client_tools for call in state.calls)


def _with_address(body: Body, caller: Caller, address: str) -> Body:
    if not isinstance(body, Input):
        return body
    return replace(body, person=caller.person, address=address, payer=caller.key)


async def _find_spending_error(call: ApiCall) -> HttpError | None:
    caller, context = call.caller, call.context
    return await spending_error(context.agent.home.store, caller.key, caller.spend, context.wall_clock())


async def _check_spending(call: ApiCall, session: Session, input_request: InputRequest, address: str) -> None:
    """A key that has reached its limit starts no turn. A running turn continues; a repeated request is answered."""
    starts_turn = not input_request.has_no_message or (input_request.history and not session.head)
    if starts_turn and (error := await _find_spending_error(call)):
        is_repeatable = input_request.idempotency_key and input_request.address_id != session.id
        if not is_repeatable or not _was_sent_from(await call.agent.journal(session), address):
            raise error


def _was_sent_from(journal: Sequence[Entry], address: str) -> bool:
    return any(isinstance(one.body, Input) and one.body.address == address for one in journal)
