"""Waiting for what a session asks. Whoever calls this bounds it."""

from outrider.app.agent import Agent
from outrider.core.events import Asked, Entry
from outrider.core.store_port import Session

DENIED = "not run: the person did not allow it. Do not work around this: continue without it, or ask what to do"
"""What a model reads after a person's no."""


async def asked(agent: Agent, session: Session, count: int = 1) -> Asked:
    """The so-many-th question of this session, once it is asked."""
    async for event in agent.follow(session):
        if isinstance(event, Entry) and isinstance(event.body, Asked):
            count -= 1
            if not count:
                return event.body
    raise AssertionError("never asked")
