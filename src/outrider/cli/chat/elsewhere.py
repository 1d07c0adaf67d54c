"""Sessions that are not open here but have something to do: tells in a line what happens in them."""

from collections.abc import Sequence
from contextlib import aclosing

import anyio
from anyio.abc import TaskGroup

from outrider.app.acting import AgentApi
from outrider.cli.chat.clean import one_line
from outrider.cli.chat.face import Face
from outrider.cli.chat.notices import told_elsewhere
from outrider.cli.chat.shows import Note
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked, Ended, Entry, Input, Started
from outrider.core.outcome import TurnResult, turn_result
from outrider.core.plan import fold
from outrider.core.ports import Session


async def children(agent: AgentApi) -> set[str]:
    """The sessions that are bodies of tasks: what they do is told where the task was begun."""
    return {task.child for task in await agent.tasks() if task.child}


class Elsewhere:
    """Follows such sessions until they rest, or until one is opened here."""

    def __init__(self, agent: AgentApi, face: Face, group: TaskGroup) -> None:
        self._agent = agent
        self._face = face
        self._group = group
        self._here = ""
        """The session that is open."""
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._working: set[str] = set()

    @property
    def working(self) -> int:
        """In how many of them a turn goes on."""
        return len(self._working)

    async def take_up(self) -> None:
        """Take up what was left unfinished, here too, and tell what comes of it in the others."""
        # Tasks first: one that ends before the next line has left its session something to do.
        running = await self._agent.tasks(open_only=True)
        unfinished = await self._agent.resume_all()
        hidden = await children(self._agent)
        for session in unfinished:
            if session.id not in {*hidden, self._here}:
                await self._take_up(session)
        for task in running:
            if task.session not in {*hidden, *self._scopes, self._here}:
                await self._wait_for_tasks(task.session)

    async def _take_up(self, session: Session) -> None:
        journal = await self._agent.journal(session)
        state = fold(journal)
        unseen = [entry.body for entry in journal if entry.seq > state.saw and isinstance(entry.body, Input)]
        if not state.questions and (state.is_open or any(body.source == "person" for body in unseen)):
            self._face.show([Note(f"taking up the unfinished turn of session {one_line(session.name)}")])
        self.watch(session, state.saw, is_working=True)

    async def _wait_for_tasks(self, name: str) -> None:
        try:
            session = await self._agent.find(name)
        except Refused:  # It was deleted, and its tasks with it.
            return
        if session.has_work:
            await self._take_up(session)
        else:
            self.watch(session, session.head, is_working=False)

    def watch(self, session: Session, after: int, *, is_working: bool) -> None:
        """Tell what happens in this session after that entry."""
        if session.id == self._here or session.id in self._scopes:
            return
        scope = self._scopes[session.id] = anyio.CancelScope()
        if is_working:
            self._working.add(session.id)
        self._group.start_soon(self._follow, session, after, scope)

    def turn_to(self, session: Session | None) -> None:
        """This session is open from now on, and no other."""
        self._here = session.id if session else ""
        if scope := self._scopes.get(self._here):
            scope.cancel()
            self._forget(self._here)

    def _forget(self, session: str) -> None:
        del self._scopes[session]
        self._working.discard(session)

    async def _follow(self, session: Session, after: int, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._tell(session, after)
            except (Refused, Unavailable) as error:
                self._face.show([Note(f"✗ session {one_line(session.name)}: {error}", "bad")])
        if self._scopes.get(session.id) is scope:
            self._forget(session.id)
        self._face.touch()

    async def _tell(self, session: Session, after: int) -> None:
        turn: list[Entry] = []
        async with aclosing(self._agent.follow(session, after)) as stream:
            async for event in stream:
                if not isinstance(event, Entry):
                    continue
                turn.append(event)
                match event.body:
                    case Input(source="task", text=text):
                        self._face.show([told_elsewhere(text, session.name)])
                    case Started():
                        self._working.add(session.id)
                    case Asked(ask=ask) if ask in [asked.ask for asked in await self._agent.questions(session)]:
                        self._face.show([_asking(session)])
                    case Ended():
                        self._working.discard(session.id)
                        self._face.show([_ending(session, turn_result(session.id, turn))])
                        turn = []
                        if await self._is_at_rest(session):
                            return
                    case _:
                        pass
                self._face.touch()

    async def _is_at_rest(self, session: Session) -> bool:
        running: Sequence[object] = await self._agent.tasks(session, open_only=True)
        return not running and not (await self._agent.find(session.id)).has_work


def _asking(session: Session) -> Note:
    name = one_line(session.name)
    return Note(f"? session {name} waits for your answer  (/switch {name})", "warn")


def _ending(session: Session, turn: TurnResult) -> Note:
    name = one_line(session.name)
    match turn:
        case TurnResult(outcome="done", text=text):
            said = f": {one_line(text, 100)}" if text else ""
            return Note(f"● session {name} is done{said}  (/switch {name})", "good")
        case TurnResult(outcome="interrupted"):
            return Note(f"● session {name} was stopped", "warn")
        case TurnResult(error=error):
            return Note(f"● session {name} failed: {one_line(error, 160)}  (/switch {name})", "bad")
