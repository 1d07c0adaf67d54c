"""What every route stands on, and the one place where a request becomes an input."""

import time
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct, field
from msgspec.structs import replace
from starlette.requests import Request

from outrider.app.agent import Agent
from outrider.app.health import HealthMonitor
from outrider.app.runtimes import apply_settings, settings_of
from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.model_names import check_client_tools
from outrider.channels.http.rate_limits import spending_error
from outrider.channels.http.webhooks import Webhooks
from outrider.core.errors import NameTaken, Refused
from outrider.core.events import Body, Changed, Entry, Input, Result
from outrider.core.plan import State, fold
from outrider.core.store_port import Session, SpendLimit
from outrider.core.types import ToolSpec

CLIENT_MOVED_ON = "not run: the client went on"
"""The result of a call that its client never answered."""


class Caller(Struct, frozen=True):
    """Who sent a request: the person behind its key, and what that key may do."""

    person: str
    key: str
    """The key's id, never the key."""
    scopes: frozenset[str]
    spend: SpendLimit | None = None
    """What it may spend."""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class HttpContext(Struct, frozen=True):
    """An open home, as routes see it."""

    agent: Agent
    version: str
    health: HealthMonitor = field(default_factory=HealthMonitor)
    webhooks: Webhooks | None = None
    """None when nobody is to be told of what ends."""
    wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970."""
    session_locks: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary[str, anyio.Lock])

    def session_lock(self, session: str) -> anyio.Lock:
        """Held by whoever looks at a session's end and then writes there. It is one for as long as somebody has it."""
        return self.session_locks.setdefault(session, anyio.Lock())


class InputRequest(Struct, frozen=True, kw_only=True):
    """What a request wants said."""

    channel: str
    """Its address's channel: `chat`, `responses` or `sessions`. How words reach the caller later follows from it."""
    address_id: str
    """Where in that channel, e.g. the response's id."""
    text: str
    session: str = ""
    """The session's name or id; empty for a new one."""
    images: Sequence[bytes] = ()
    idempotency_key: str | None = None
    """An idempotency key, if the caller gave one."""
    tools: Sequence[ToolSpec] = ()
    """Tools of the caller's own."""
    results: Sequence[Result] = ()
    """Results of calls of such tools. Without a text, the turn that waits for them goes on."""
    history: Sequence[Body] = ()
    """What a session begins with when it is empty. Without a text, the turn that it leaves open goes on."""
    settings: Mapping[str, str] = {}
    """What to set for the session before."""

    @property
    def has_no_message(self) -> bool:
        return not self.text.strip() and not self.images


class AcceptedInput(Struct, frozen=True):
    """A request that has become part of a journal."""

    agent: Agent
    session: Session
    entry: Entry
    """Its input; or the last of the results or of the past it came with. What it asked for comes after this."""
    is_next: bool = True
    """Whether whatever the model says next is about this; not so while it still answers an earlier input."""

    async def state(self) -> State:
        """As of that entry."""
        return fold(await self.agent.journal(self.session, 0, self.entry.seq))


def caller(request: Request) -> Caller:
    """Who sent this request; the middleware has checked the key."""
    found = request.scope.get("state", {}).get("caller")
    if not isinstance(found, Caller):
        raise HttpError(401, "no key: send it as `Authorization: Bearer …`; `outrider key` shows how", "no_key")
    return found


def context(request: Request) -> HttpContext:
    return request.app.state.context


def agent_of(request: Request, scope: str = "chat") -> Agent:
    """The agent, acting for whoever sent this request. Raises 403 when the key does not have this scope."""
    who = caller(request)
    if not who.may(scope):
        raise HttpError(403, f"this key may not do that: it lacks the scope {scope!r}", "missing_scope")
    return context(request).agent.for_person(who.person, who.key)


async def open_session(request: Request, name: str = "") -> Session:
    """The session of this whole name or id. One is begun if there is none, unless the key cannot pay for its turn."""
    agent = agent_of(request)
    if error := await _find_spending_error(request):
        try:
            return await agent.find(name)
        except Refused:
            raise error from None
    return await agent.session(name)


async def accept_input(request: Request, input_request: InputRequest) -> AcceptedInput:
    """The one door of HTTP: every route that can start a turn goes through here. It fixes person, session and address.

    What was handed in is durable when this returns. Calls of the caller's tools that wait in the session and are given
    no result are told that the caller went on.
    """
    agent = agent_of(request)
    session = await agent.session(input_request.session)
    address = f"{input_request.channel}:{input_request.address_id}"
    await _check_spending(request, session, input_request, address)
    await _check_session_tools(agent, session, input_request)
    await apply_settings(agent, session, input_request.settings)
    if input_request.history and not session.head:
        await agent.seed(session, [_with_address(body, caller(request), address) for body in input_request.history])
    journal = await agent.journal(session) if session.is_open or input_request.idempotency_key else ()
    if input_request.has_no_message and (input_request.results or input_request.history):
        return await _resume_turn(agent, session, input_request, fold(journal))
    state = fold(journal)
    if not _was_sent_from(journal, address):
        await agent.record_results(session, _results_for_unanswered(state, input_request))
    await agent.record_results(session, input_request.results)
    try:
        entry = await agent.post(
            input_request.text,
            session=session,
            images=input_request.images,
            key=f"{input_request.channel}/{input_request.idempotency_key}"
            if input_request.idempotency_key
            else None,  # no caller may take a key of ours, e.g. a task's
            address=address,
            tools=input_request.tools,
        )
    except NameTaken as error:
        message = f"Idempotency-Key {input_request.idempotency_key!r} was given before, with other words; use another for these"
        raise HttpError(400, message, "idempotency_key") from error
    is_next = not session.has_work or _awaits_client_tools(state)
    return AcceptedInput(agent, session, entry, is_next)


async def _check_session_tools(agent: Agent, session: Session, input_request: InputRequest) -> None:
    """Tools of the caller are refused where whatever carries the session cannot use them."""
    if input_request.tools:
        begins = {body.name: body.value for body in input_request.history if isinstance(body, Changed)}
        known = settings_of(await agent.journal(session)) if session.head else begins
        check_client_tools({**known, **input_request.settings}, agent.default_runtime)


async def _resume_turn(agent: Agent, session: Session, input_request: InputRequest, state: State) -> AcceptedInput:
    """Without a new input: the turn goes on from the results, or from the end of the past."""
    given = {result.call for result in input_request.results}
    if any(call.id in given for call in state.calls):
        await agent.record_results(session, _results_for_unanswered(state, input_request))
    await agent.submit_results(session, input_request.results)
    journal = await agent.journal(session)
    known = [one for one in journal if isinstance(one.body, Result) and one.body.call in given]
    entry = known[-1] if known else journal[len(input_request.history) - 1]
    return AcceptedInput(agent, session, entry)


def _results_for_unanswered(state: State, input_request: InputRequest) -> list[Result]:
    """What is said to calls that wait for this caller and get nothing from it."""
    given = {result.call for result in input_request.results}
    waiting = state.calls if _awaits_client_tools(state) else ()
    return [Result(call.id, CLIENT_MOVED_ON, failed=True) for call in waiting if call.id not in given]


def _awaits_client_tools(state: State) -> bool:
    return bool(state.calls) and not state.questions and all(call.tool in state.client_tools for call in state.calls)


def _with_address(body: Body, who: Caller, address: str) -> Body:
    return replace(body, person=who.person, address=address, payer=who.key) if isinstance(body, Input) else body


async def _find_spending_error(request: Request) -> HttpError | None:
    who, here = caller(request), context(request)
    return await spending_error(here.agent.home.store, who.key, who.spend, here.wall_clock())


async def _check_spending(request: Request, session: Session, input_request: InputRequest, address: str) -> None:
    """A key that has spent what it may begins no turn. One under way goes on, and what was asked before is answered."""
    begins = not input_request.has_no_message or (input_request.history and not session.head)
    if begins and (error := await _find_spending_error(request)):
        is_one_request = input_request.idempotency_key and input_request.address_id != session.id
        if not is_one_request or not _was_sent_from(await agent_of(request).journal(session), address):
            raise error


def _was_sent_from(journal: Sequence[Entry], address: str) -> bool:
    """Whether something was handed in from this address before."""
    return any(isinstance(one.body, Input) and one.body.address == address for one in journal)


KEY_HEADER = "idempotency-key"
MAX_KEY_CHARS = 255


def idempotency_key(request: Request) -> str:
    """What the client calls this request, so that sending it again does it once; empty when it did not say."""
    key = request.headers.get(KEY_HEADER, "").strip()
    if len(key) > MAX_KEY_CHARS:
        raise HttpError(400, f"an Idempotency-Key has at most {MAX_KEY_CHARS} characters", "idempotency_key")
    return key
