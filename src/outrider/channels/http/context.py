"""What every route stands on, and the one place where a request becomes an input."""

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from starlette.requests import Request

from outrider.app.agent import Agent
from outrider.channels.http.failures import HttpError
from outrider.channels.http.pulse import Pulse
from outrider.core.events import Body, Entry, Input, Result
from outrider.core.plan import State, fold
from outrider.core.ports import Session
from outrider.core.traits import ToolSpec

WENT_ON = "not run: the client went on"
"""The result of a call that its client never answered."""


class Caller(Struct, frozen=True):
    """Who sent a request: the person behind its key, and what that key may do."""

    person: str
    key: str
    """The key's id, never the key."""
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class Context(Struct, frozen=True):
    """An open home, as routes see it."""

    agent: Agent
    version: str
    pulse: Pulse = field(default_factory=Pulse)


class Wish(Struct, frozen=True, kw_only=True):
    """What a request wants said."""

    channel: str
    """Its address's channel: `chat`, `responses` or `sessions`. How words reach the caller later follows from it."""
    place: str
    """Where in that channel, e.g. the response's id."""
    text: str
    session: str = ""
    """The session's name or id; empty for a new one."""
    images: Sequence[bytes] = ()
    key: str | None = None
    """An idempotency key, if the caller gave one."""
    tools: Sequence[ToolSpec] = ()
    """Tools of the caller's own."""
    results: Sequence[Result] = ()
    """Results of calls of such tools. Without a text, the turn that waits for them goes on."""
    past: Sequence[Body] = ()
    """What a session begins with when it is empty. Without a text, the turn that it leaves open goes on."""


class Entered(Struct, frozen=True):
    """A request that has become part of a journal."""

    agent: Agent
    session: Session
    entry: Entry
    """Its input; or the last of the results or of the past it came with. What it asked for comes after this."""
    state: State = State()
    """As of that entry."""
    is_next: bool = True
    """Whether whatever the model says next is about this; not so while it still answers an earlier input."""


def caller(request: Request) -> Caller:
    """Who sent this request; the middleware has checked the key."""
    found = request.scope.get("state", {}).get("caller")
    if not isinstance(found, Caller):
        raise HttpError(401, "no key: send it as `Authorization: Bearer …`; `outrider key` shows how", "no_key")
    return found


def context(request: Request) -> Context:
    return request.app.state.context


def agent_of(request: Request, scope: str = "chat") -> Agent:
    """The agent, acting for whoever sent this request. Raises 403 when the key does not have this scope."""
    who = caller(request)
    if not who.may(scope):
        raise HttpError(403, f"this key may not do that: it lacks the scope {scope!r}", "missing_scope")
    return context(request).agent.acting_for(who.person)


async def enter(request: Request, wish: Wish) -> Entered:
    """The one door of HTTP: every route that can start a turn goes through here. It fixes person, session and address.

    What was handed in is durable when this returns. Calls of the caller's tools that wait in the session and are given
    no result are told that the caller went on.
    """
    agent = agent_of(request)
    session = await agent.session(wish.session)
    address = f"{wish.channel}:{wish.place}"
    if wish.past and not session.head:
        await agent.seed(session, [_addressed(body, session.person, address) for body in wish.past])
    journal = await agent.journal(session) if session.is_open or wish.key else ()
    if not wish.text.strip() and not wish.images and (wish.results or wish.past):
        return await _go_on(agent, session, wish, fold(journal))
    state = fold(journal)
    if not any(isinstance(one.body, Input) and one.body.address == address for one in journal):  # not told before
        await agent.settle(session, _left(state, wish))
    await agent.settle(session, wish.results)
    entry = await agent.post(
        wish.text,
        session=session,
        images=wish.images,
        key=f"{wish.channel}/{wish.key}" if wish.key else None,  # no caller may take a key of ours, e.g. a task's
        address=address,
        tools=wish.tools,
    )
    is_next = not session.has_work or _is_parked(state)
    is_first = entry.seq > session.head and not session.is_open
    state = fold([entry] if is_first else (await agent.journal(session))[: entry.seq])
    return Entered(agent, session, entry, state, is_next)


async def _go_on(agent: Agent, session: Session, wish: Wish, state: State) -> Entered:
    """Without a new input: the turn goes on from the results, or from the end of the past."""
    given = {result.call for result in wish.results}
    if any(call.id in given for call in state.calls):
        await agent.settle(session, _left(state, wish))
    await agent.supply(session, wish.results)
    journal = await agent.journal(session)
    known = [one for one in journal if isinstance(one.body, Result) and one.body.call in given]
    entry = known[-1] if known else journal[len(wish.past) - 1]
    return Entered(agent, session, entry, fold(journal[: entry.seq]))


def _left(state: State, wish: Wish) -> list[Result]:
    """What is said to calls that wait for this caller and get nothing from it."""
    given = {result.call for result in wish.results}
    waiting = state.calls if _is_parked(state) else ()
    return [Result(call.id, WENT_ON, failed=True) for call in waiting if call.id not in given]


def _is_parked(state: State) -> bool:
    return bool(state.calls) and not state.asks and all(call.tool in state.lent for call in state.calls)


def _addressed(body: Body, person: str, address: str) -> Body:
    return replace(body, person=person, address=address) if isinstance(body, Input) else body
