"""What every route stands on, and the one place where a request becomes an input."""

from collections.abc import Sequence

from msgspec import Struct, field
from starlette.requests import Request

from outrider.app.agent import Agent
from outrider.channels.http.failures import HttpError
from outrider.channels.http.pulse import Pulse
from outrider.core.events import Entry
from outrider.core.ports import Session
from outrider.core.traits import ToolSpec


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


class Entered(Struct, frozen=True):
    """A request that has become an input."""

    agent: Agent
    session: Session
    entry: Entry


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

    The input is durable when this returns.
    """
    agent = agent_of(request)
    session = await agent.session(wish.session)
    entry = await agent.post(
        wish.text,
        session=session,
        images=wish.images,
        key=f"{wish.channel}/{wish.key}" if wish.key else None,  # no caller may take a key of ours, e.g. a task's
        address=f"{wish.channel}:{wish.place}",
        tools=wish.tools,
    )
    return Entered(agent, session, entry)
