"""The conversation at a terminal: which session is open, what is typed into it, what comes back."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from outrider.app.agent import Agent
from outrider.app.commands import Given, Mistaken, Takes, Words, parse_line
from outrider.cli.chat import orders
from outrider.cli.chat.clean import one_line
from outrider.cli.chat.complete import Suggestion, suggestions
from outrider.cli.chat.face import Face
from outrider.cli.chat.recall import recall
from outrider.cli.chat.shows import Note, Typed
from outrider.cli.chat.status import Standing, status_line
from outrider.cli.chat.view import Line, View
from outrider.config.choose import choose
from outrider.core.errors import Refused, Unavailable
from outrider.core.outcome import Finished
from outrider.core.ports import Session

_SLOWEST = 30.0


class Opened(Struct, frozen=True):
    """How the chat was opened."""

    workspace: Path | None = None
    """Where new sessions work; None gives each a folder of its own."""
    model: str = ""
    """What the person asked for by a flag, for the session that is open."""
    name: str = ""
    """What the first session is to be called, if it is new."""


class Conversation:
    """The `Talk` of a terminal. A session is made with the first words said in it: looking in leaves no trace."""

    def __init__(self, agent: Agent, face: Face, opened: Opened, group: TaskGroup) -> None:
        self.agent = agent
        self.face = face
        self.opened = opened
        self.session: Session | None = None
        self.view = View()
        self._name = opened.name
        self._group = group
        self._following = anyio.CancelScope()
        self._elsewhere: set[str] = set()
        self._known: dict[Takes, Sequence[Suggestion]] = {}
        self._lines, self._typed = anyio.create_memory_object_stream[str](math.inf)
        self._heard_all = anyio.Event()
        self._default = choose(agent.config)[0].name

    # What the terminal asks, at any moment.

    def typed(self, text: str) -> None:
        self._lines.send_nowait(text)

    def interrupted(self, *, is_empty: bool) -> bool:
        if self.is_working:
            self._group.start_soon(self._stop)
        elif is_empty:
            self.face.show([Note("nothing runs; Ctrl-D leaves")])
        else:
            return True
        return False

    def live(self, width: int, height: int) -> Sequence[Line]:
        return self.view.live(width, height)

    def status(self, width: int) -> str:
        return status_line(self.standing(), width)

    def suggestions(self, line: str) -> Iterable[Suggestion]:
        return suggestions(line, self._known)

    @property
    def is_working(self) -> bool:
        return self.view.is_open or self.view.state.has_unseen

    @property
    def model(self) -> str:
        return self.view.state.settings.get("model") or self.opened.model or self._default

    @property
    def workspace(self) -> str:
        if self.session:
            return self.session.workspace
        return str(self.opened.workspace) if self.opened.workspace else "a folder of its own"

    def standing(self) -> Standing:
        view = self.view
        return Standing(
            model=self.model,
            workspace=self.workspace,
            session=self.session.name if self.session else self._name,
            tokens=view.usage.input + view.usage.output,
            cost=view.cost,
            seconds=max(0, int(time.time() - view.began / 1000)) if view.is_open else None,
            queued=len(view.queued),
            elsewhere=len(self._elsewhere - {self.session.id if self.session else ""}),
        )

    # What goes on in the background, all of it owned by the task group.

    async def listen(self) -> None:
        """Take every line that is typed, in order, until `hear_out`."""
        async for line in self._typed:
            try:
                await self._take(line)
            except (Refused, Unavailable) as error:
                self.face.show([Note(f"✗ {error}", "bad")])
            self.face.touch()
        self._heard_all.set()

    async def hear_out(self) -> None:
        """Wait until everything typed so far is dealt with; nothing more is taken."""
        self._lines.close()
        await self._heard_all.wait()

    async def take_up(self) -> None:
        """Take up what was left unfinished, here and in other sessions, and tell when those end."""
        for session in await self.agent.finish():
            if self.session is None or session.id != self.session.id:
                self.face.show([Note(f"taking up the unfinished turn of session {one_line(session.name)}")])
                self._wait_elsewhere(session)
        await self.learn_names()

    async def learn_names(self) -> None:
        """Have the sessions that are there at hand when one is typed."""
        found = await self.agent.sessions(50)
        self.know({"session": [(session.name, one_line(session.title, 40)) for session in found]})

    def know(self, words: Mapping[Takes, Sequence[Suggestion]]) -> None:
        """Suggest these when an argument of their kind is typed."""
        for kind, found in words.items():
            kept = [known for known in self._known.get(kind, ()) if known not in found] if kind == "model" else []
            self._known[kind] = [*kept, *found]

    async def _stop(self) -> None:
        try:
            if self.session:
                await self.agent.stop(self.session)
        except (Refused, Unavailable) as error:
            self.face.show([Note(f"✗ {error}", "bad")])

    async def _take(self, line: str) -> None:
        match parse_line(line):
            case Words(text=text):
                try:
                    await self.agent.post(text, session=await self.at_hand())
                except (Refused, Unavailable):
                    self.face.put_back(line)
                    raise
            case Given() as given:
                self.face.show([Typed(line)])
                self.face.show(await orders.carry_out(self, given))
            case Mistaken(reason=reason):
                self.face.show([Typed(line), Note(reason, "warn")])

    # Which session is open.

    async def at_hand(self) -> Session:
        """The open session, made now if this is its beginning."""
        if self.session is None:
            session = await self.agent.session(self._name)
            await self.open(session, is_quiet=True)
            return session
        return self.session

    async def open(self, session: Session, *, is_quiet: bool = False) -> None:
        """Go on with this session; the one that was open goes on in the background."""
        journal = await self.agent.journal(session)
        self._set_aside()
        self.session, self.view = session, View(journal)
        if not is_quiet:
            self.face.show(recall(journal))
        if self.opened.model and self.view.state.settings.get("model") != self.opened.model:
            await self.agent.change(session, {"model": self.opened.model})
        self._following = anyio.CancelScope()
        self._group.start_soon(self._follow, session, self.view, self._following)

    def begin(self, name: str = "") -> None:
        """Make room for a new session; it is made with the first words said in it."""
        self._set_aside()
        self.session, self.view, self._name = None, View(), name
        self.opened = Opened(self.opened.workspace)

    def _set_aside(self) -> None:
        self._following.cancel()
        if self.session and self.is_working:
            self._wait_elsewhere(self.session)

    async def _follow(self, session: Session, view: View, scope: anyio.CancelScope) -> None:
        pause = 1.0
        with scope:
            while True:
                try:
                    async with aclosing(self.agent.follow(session, view.head)) as stream:
                        async for event in stream:
                            if shows := view.take(event):
                                self.face.show(shows)
                            self.face.touch()
                            pause = 1.0
                except (Refused, Unavailable) as error:
                    view.stand_still()
                    self.face.show([Note(f"✗ {error}. The turn stands still until your next message", "bad")])
                await anyio.sleep(pause)
                pause = min(_SLOWEST, pause * 2)

    def _wait_elsewhere(self, session: Session) -> None:
        if session.id not in self._elsewhere:
            self._elsewhere.add(session.id)
            self._group.start_soon(self._tell_when_ended, session)

    async def _tell_when_ended(self, session: Session) -> None:
        try:
            told = _ending(session, await self.agent.wait(await self.agent.find(session.id)))
        except (Refused, Unavailable) as error:
            told = Note(f"✗ session {one_line(session.name)}: {error}", "bad")
        self._elsewhere.discard(session.id)
        if self.session is None or self.session.id != session.id:
            self.face.show([told])
        self.face.touch()


def _ending(session: Session, turn: Finished | None) -> Note:
    name = one_line(session.name)
    match turn:
        case Finished(outcome="done", text=text):
            return Note(f"● session {name} is done: {one_line(text, 100)}  (/switch {name})", "good")
        case Finished(outcome="interrupted"):
            return Note(f"● session {name} was stopped", "warn")
        case Finished(error=error):
            return Note(f"● session {name} failed: {one_line(error, 160)}  (/switch {name})", "bad")
        case None:
            return Note(f"● session {name} is done  (/switch {name})", "good")
