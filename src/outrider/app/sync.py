"""The Python API for programs without an event loop: the operations of `AgentApi`, each waiting for its result."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal

from outrider.app.api import AgentApi
from outrider.core.events import Event

P = ParamSpec("P")
R = TypeVar("R")


class _BlockingMethod(Generic[P, R]):
    """A method of `AgentApi` with the same signature, which blocks."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self.__doc__ = method.__doc__
        self.__wrapped__ = method
        self._name = method.__name__

    @overload
    def __get__(self, agent: None, owner: type) -> Self: ...
    @overload
    def __get__(self, agent: "BlockingAgent", owner: type) -> Callable[P, R]: ...
    def __get__(self, agent: "BlockingAgent | None", owner: type) -> "Self | Callable[P, R]":
        if agent is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return agent.call(self._name, args, kwargs)

        return call


class BlockingAgent:
    """An open home, for programs without an event loop."""

    say = _BlockingMethod(AgentApi.say)
    post = _BlockingMethod(AgentApi.post)
    wait = _BlockingMethod(AgentApi.wait)
    stop = _BlockingMethod(AgentApi.stop)
    questions = _BlockingMethod(AgentApi.questions)
    pending_questions = _BlockingMethod(AgentApi.pending_questions)
    answer = _BlockingMethod(AgentApi.answer)
    session = _BlockingMethod(AgentApi.session)
    sessions = _BlockingMethod(AgentApi.sessions)
    find = _BlockingMethod(AgentApi.find)
    journal = _BlockingMethod(AgentApi.journal)
    search = _BlockingMethod(AgentApi.search)
    rename = _BlockingMethod(AgentApi.rename)
    move = _BlockingMethod(AgentApi.move)
    change = _BlockingMethod(AgentApi.change)
    delete = _BlockingMethod(AgentApi.delete)
    tasks = _BlockingMethod(AgentApi.tasks)
    refresh_task = _BlockingMethod(AgentApi.refresh_task)
    kill_task = _BlockingMethod(AgentApi.kill_task)
    wait_task = _BlockingMethod(AgentApi.wait_task)

    def __init__(self, agent: AgentApi, portal: BlockingPortal) -> None:
        self._agent = agent
        self._portal = portal

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of the agent in its event loop and wait for the result."""

        async def run() -> Any:
            return await getattr(self._agent, name)(*args, **kwargs)

        return self._portal.call(run)

    def events(
        self, text: str, *, session: str = "", images: Sequence[bytes] = (), key: str | None = None
    ) -> Iterator[Event]:
        """Say something and yield every entry and delta, from the input to the `Ended` that answers it."""
        stream = self._agent.events(text, session=session, images=images, key=key)

        async def step() -> Event | None:
            return await anext(stream, None)

        try:
            while (event := self._portal.call(step)) is not None:
                yield event
        finally:
            with suppress(RuntimeError):  # the caller closed the home before it dropped this generator
                self._portal.call(stream.aclose)
