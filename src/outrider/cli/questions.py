"""Questions to the person outside the chat: shown, put at a terminal, or left for later where a turn waits for one."""

import os
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress

import anyio
from msgspec import Struct

from outrider.app.acting import AgentApi
from outrider.app.channels import CHANNELS
from outrider.app.groups import unwrap_single
from outrider.cli.chat.answers import answer_hint, parse_answer
from outrider.cli.plain import printable, warn
from outrider.core.approve import NO
from outrider.core.events import Asked, Entry, Event
from outrider.core.outcome import TurnResult
from outrider.core.plan import AwaitAnswer, State, decide, fold
from outrider.core.ports import Session
from outrider.core.route import channel_of

_MAX_QUEUED = 1_000


class PendingQuestion(Struct, frozen=True):
    """A question that a session waits to have answered."""

    session: Session
    asked: Asked

    @property
    def name(self) -> str:
        """What people call it: the beginning of its session's id, and of which call it is."""
        call = self.asked.call.removeprefix("c").lstrip("0")
        return f"{self.session.id[:8]}.{call or self.asked.ask}"


def answer_command(waiting: PendingQuestion) -> str:
    """In one line."""
    return f"outrider asks answer {waiting.name} {'|'.join(waiting.asked.choices)}"


def print_pending(session: Session, asks: Sequence[Asked]) -> None:
    """Say on stderr what a turn waits for, and how to go on."""
    for asked in asks:
        sys.stderr.write(f"{printable(asked.question)}\n")
        warn(f"session {session.name} waits for an answer: {answer_command(PendingQuestion(session, asked))}")


def is_interactive() -> bool:
    """Whether someone sits here who can be shown a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class QuestionPrompter:
    """Puts the questions of a turn to whoever sits at this terminal, one after the other."""

    def __init__(
        self, agent: AgentApi, session: Session, hold: Callable[[], AbstractContextManager[None]] | None
    ) -> None:
        self._agent = agent
        self._session = session
        self._pause_progress = hold or nullcontext
        """Keeps everything else off the terminal's last line."""
        self._send, self._questions = anyio.create_memory_object_stream[Asked](_MAX_QUEUED)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Entry) and isinstance(event.body, Asked):
            self._send.send_nowait(event.body)

    @asynccontextmanager
    async def prompting(self) -> AsyncGenerator[None]:
        """While the block runs, questions are put: those that wait already, and those that are heard."""
        with self._send, self._questions:
            for asked in await self._agent.questions(self._session):
                self._send.send_nowait(asked)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._run)
                    yield
                    group.cancel_scope.cancel()
            except BaseExceptionGroup as several:
                raise unwrap_single(several) from several

    async def _run(self) -> None:
        async for asked in self._questions:
            with self._pause_progress():
                answer = await _prompt_for_answer(asked)
            await self._agent.answer(self._session, asked, answer)


async def _prompt_for_answer(asked: Asked) -> str:
    sys.stderr.write(f"\n{printable(asked.question)}\n")
    with suppress(termios.error):
        # What was typed before the question was seen is no answer to it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    while True:
        sys.stderr.write(f"{answer_hint(asked.choices)}? ")
        sys.stderr.flush()
        typed = await _read_line()
        if not typed:  # Ctrl-D: whoever goes away has not agreed
            sys.stderr.write("\n")
            return NO
        if answer := parse_answer(typed, asked.choices):
            return answer


async def _read_line() -> str:
    """A line typed at the terminal; empty at its end. May be cancelled while nobody types."""
    heard = b""
    while not heard.endswith(b"\n"):
        await anyio.wait_readable(sys.stdin.fileno())
        piece = os.read(sys.stdin.fileno(), 4096)
        if not piece:
            break
        heard += piece
    return heard.decode("utf-8", "replace")


async def wait_or_suspend(agent: AgentApi, session: Session) -> TurnResult | Sequence[Asked] | None:
    """Wait until nothing is left to do in this session, or until it waits for a person.

    `session` as it was before it was taken up. None when there was nothing to do.
    """
    found: list[TurnResult | Sequence[Asked] | None] = []

    async def wait() -> None:
        found.append(await agent.wait(session))
        group.cancel_scope.cancel()

    async def watch() -> None:
        found.append(await _wait_until_suspended(agent, session))
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(watch)
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    return found[0]


async def _wait_until_suspended(agent: AgentApi, session: Session) -> Sequence[Asked]:
    """The questions that have brought the session to rest, once some have."""
    state = State()
    async with aclosing(agent.follow(session)) as stream:
        async for event in stream:
            if isinstance(event, Entry):
                state = fold([event], state)
                if event.seq > session.head and is_suspended(state):
                    return tuple(state.questions.values())
    raise AssertionError("a follower never ends by itself")


def is_suspended(state: State) -> bool:
    """Whether nothing happens until a person answers. Where nobody can, the answer is no and the turn goes on."""
    return isinstance(decide(state, {}), AwaitAnswer) and _can_answer(state.address)


async def deny_unanswerable(agent: AgentApi, session: Session, address: str = "") -> int:
    """Say no to what a session still asks when its turn goes on where nobody can answer; how many those were."""
    state = fold(await agent.journal(session))
    if _can_answer(address or state.address):
        return 0
    for asked in state.questions.values():
        await agent.answer(session, asked, NO)
    return len(state.questions)


def _can_answer(address: str) -> bool:
    traits = CHANNELS.get(channel_of(address))
    return bool(traits and traits.can_answer)
