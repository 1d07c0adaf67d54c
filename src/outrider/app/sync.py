"""The Python API for scripts without an event loop: the same calls, waiting for their results."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from outrider.app.agent import Agent
from outrider.app.open import open_agent
from outrider.core.events import Entry, Event
from outrider.core.ports import Model, Tool
from outrider.core.store_port import SearchHit, Session
from outrider.core.turn_result import TurnResult
from outrider.tools.define import ToolFunction


class BlockingAgent:
    """An open Outrider home, for scripts."""

    def __init__(self, agent: Agent, portal: BlockingPortal) -> None:
        self._agent = agent
        self._portal = portal

    def say(self, text: str, *, session: str = "", images: Sequence[bytes] = (), key: str | None = None) -> TurnResult:
        """Say something and wait for the end of its turn."""

        async def call() -> TurnResult:
            return await self._agent.say(text, session=session, images=images, key=key)

        return self._portal.call(call)

    def events(self, text: str, *, session: str = "", key: str | None = None) -> Iterator[Event]:
        """Say something and watch what happens, to the end of its turn."""
        stream = self._agent.events(text, session=session, key=key)

        async def step() -> Event | None:
            return await anext(stream, None)

        while (event := self._portal.call(step)) is not None:
            yield event

    def session(self, name: str = "") -> Session:
        """The session of this name, begun now if there is none."""
        return self._portal.call(self._agent.session, name)

    def sessions(self, limit: int = 100) -> Sequence[Session]:
        """Latest first."""
        return self._portal.call(self._agent.sessions, limit)

    def journal(self, session: Session) -> Sequence[Entry]:
        """Every entry of a session."""
        return self._portal.call(self._agent.journal, session)

    def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]:
        """Where these words were said."""
        return self._portal.call(self._agent.search, words, limit)

    def stop(self, session: Session) -> bool:
        """Stop the session's turn."""
        return self._portal.call(self._agent.stop, session)

    def change(self, session: Session, settings: Mapping[str, str]) -> None:
        """Set something for this session, e.g. `{"runtime": "codex"}`."""
        self._portal.call(self._agent.change, session, settings)

    def delete(self, session: Session) -> bool:
        """Delete a session and its journal."""
        return self._portal.call(self._agent.delete, session)


@contextmanager
def open_blocking(
    home: str | Path | None = None,
    *,
    model: str | Model | None = None,
    tools: Sequence[Tool | ToolFunction] = (),
    workspace: str | Path | None = None,
) -> Generator[BlockingAgent, None, None]:
    """The blocking twin of `outrider.open`."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(open_agent(home, model=model, tools=tools, workspace=workspace)) as agent,
    ):
        yield BlockingAgent(agent, portal)
