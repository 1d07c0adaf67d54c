"""Background sessions: sessions with work that are not open in the chat. Their events take a line each."""

from collections.abc import Sequence
from contextlib import aclosing, suppress

import anyio
from anyio.abc import TaskGroup

from outrider.app.api import DEFAULT_PERSON, AgentApi
from outrider.cli.chat.display import Note
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import background_task_note
from outrider.cli.chat.ui import ChatUI
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked, Ended, Entry, Input, Started
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult, turn_result

_QUESTIONS_INTERVAL = 3.0
"""Seconds between two checks for questions of other people."""


async def child_session_ids(agent: AgentApi) -> set[str]:
    """Child sessions, which run as tasks: their progress is shown in the session that started the task."""
    return {task.child for task in await agent.tasks() if task.child}


class BackgroundSessions:
    """Follows background sessions until they are idle, or opened in the chat."""

    def __init__(self, agent: AgentApi, ui: ChatUI, group: TaskGroup) -> None:
        self._agent = agent
        self._ui = ui
        self._group = group
        self._open_session_id = ""
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._working: set[str] = set()

    @property
    def working_count(self) -> int:
        """The number of sessions with a running turn."""
        return len(self._working)

    async def resume_unfinished(self) -> None:
        """Resume unfinished turns, also of the open session, and report what happens in the others."""
        # Tasks first: one that ends before the next line gives its session work.
        running = await self._agent.tasks(open_only=True)
        unfinished = await self._agent.resume_all()
        hidden = await child_session_ids(self._agent)
        for session in unfinished:
            if session.id not in {*hidden, self._open_session_id}:
                await self._resume_session(session)
        for task in running:
            if task.session not in {*hidden, *self._scopes, self._open_session_id}:
                await self._wait_for_tasks(task.session)

    async def watch_other_people(self) -> None:
        """Report the questions of other people's sessions: only the owner can answer them."""
        seen: set[str] = set()
        while True:
            with suppress(Refused, Unavailable):  # An error of the store is shown when a message is sent.
                for question in await self._agent.pending_questions():
                    if question.session.person != DEFAULT_PERSON and question.id not in seen:
                        seen.add(question.id)
                        name, person = sanitize_line(question.session.name), sanitize_line(question.session.person)
                        text = f"? Session {name} of {person} is waiting for your answer  (/questions {question.id})"
                        self._ui.show([Note(text, "warn")])
            await anyio.sleep(_QUESTIONS_INTERVAL)

    async def _resume_session(self, session: Session) -> None:
        journal = await self._agent.journal(session)
        state = fold(journal)
        unseen = [entry.body for entry in journal if entry.seq > state.saw and isinstance(entry.body, Input)]
        if not state.questions and (state.is_open or any(body.source == "person" for body in unseen)):
            self._ui.show([Note(f"Resuming the unfinished turn of session {sanitize_line(session.name)}")])
        self.watch(session, state.saw, is_working=True)

    async def _wait_for_tasks(self, name: str) -> None:
        try:
            session = await self._agent.find(name)
        except Refused:  # It was deleted together with its tasks.
            return
        if session.has_work:
            await self._resume_session(session)
        else:
            self.watch(session, session.head, is_working=False)

    def watch(self, session: Session, after: int, *, is_working: bool) -> None:
        """Report what happens in this session after an entry."""
        if session.id == self._open_session_id or session.id in self._scopes:
            return
        scope = self._scopes[session.id] = anyio.CancelScope()
        if is_working:
            self._working.add(session.id)
        self._group.start_soon(self._follow, session, after, scope)

    def set_open_session(self, session: Session | None) -> None:
        """Stop following the session that is now open in the chat."""
        self._open_session_id = session.id if session else ""
        if scope := self._scopes.get(self._open_session_id):
            scope.cancel()
            self._forget(self._open_session_id)

    def _forget(self, session: str) -> None:
        del self._scopes[session]
        self._working.discard(session)

    async def _follow(self, session: Session, after: int, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._report_events(session, after)
            except (Refused, Unavailable) as error:
                self._ui.show([Note(f"✗ session {sanitize_line(session.name)}: {error}", "bad")])
        if self._scopes.get(session.id) is scope:
            self._forget(session.id)
        self._ui.invalidate()

    async def _report_events(self, session: Session, after: int) -> None:
        turn: list[Entry] = []
        async with aclosing(self._agent.follow(session, after)) as stream:
            async for event in stream:
                if not isinstance(event, Entry):
                    continue
                turn.append(event)
                match event.body:
                    case Input(source="task", text=text):
                        self._ui.show([background_task_note(text, session.name)])
                    case Started():
                        self._working.add(session.id)
                    case Asked(ask=ask) if ask in [asked.ask for asked in await self._agent.questions(session)]:
                        name = sanitize_line(session.name)
                        text = f"? Session {name} is waiting for your answer  (/switch {name})"
                        self._ui.show([Note(text, "warn")])
                    case Ended():
                        self._working.discard(session.id)
                        self._ui.show([_turn_end_note(session, turn_result(session.id, turn))])
                        turn = []
                        if await self._is_idle(session):
                            return
                    case _:
                        pass
                self._ui.invalidate()

    async def _is_idle(self, session: Session) -> bool:
        running: Sequence[object] = await self._agent.tasks(session, open_only=True)
        return not running and not (await self._agent.find(session.id)).has_work


def _turn_end_note(session: Session, turn: TurnResult) -> Note:
    name = sanitize_line(session.name)
    match turn:
        case TurnResult(outcome="done", text=text):
            reply = f": {sanitize_line(text, 100)}" if text else ""
            return Note(f"● Session {name} is done{reply}  (/switch {name})", "good")
        case TurnResult(outcome="interrupted"):
            return Note(f"● Session {name} was stopped", "warn")
        case TurnResult(error=error):
            return Note(f"● Session {name} failed: {sanitize_line(error, 160)}  (/switch {name})", "bad")
