"""The conversation at a terminal: which session is open, what is typed into it, what comes back."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from outrider.app.acting import AgentApi
from outrider.app.channels import TERMINAL
from outrider.app.commands import ArgumentKind, InvalidCommand, PlainMessage, SlashCommand, parse_line
from outrider.app.runtimes import RuntimeChoice, apply_settings, can_steer, runtime_of
from outrider.cli.chat import orders
from outrider.cli.chat.answers import meant
from outrider.cli.chat.clean import one_line
from outrider.cli.chat.complete import Suggestion, suggestions
from outrider.cli.chat.elsewhere import Elsewhere
from outrider.cli.chat.face import Face
from outrider.cli.chat.recall import recall
from outrider.cli.chat.running import Running
from outrider.cli.chat.shows import Note, Typed
from outrider.cli.chat.status import Standing, status_line
from outrider.cli.chat.view import Line, View
from outrider.cli.choosing import model_or_runtime_name
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked
from outrider.core.ports import Session
from outrider.core.tasks import task_label

CHAT = f"{TERMINAL}:chat"
"""Where what is said here is answered, now or when the chat is opened again."""
_SLOWEST = 30.0
_LOOK = 0.5
"""Seconds between two looks for a session that was named and is not there yet."""


class Opened(Struct, frozen=True):
    """How the chat was opened."""

    workspace: Path | None = None
    """Where new sessions work; None gives each a folder of its own."""
    settings: Mapping[str, str] = {}
    """What the person asked for by flags, for the session that is open."""
    name: str = ""
    """What the first session is to be called, if it is new."""


class Conversation:
    """The `Talk` of a terminal. A session is made with the first words said in it: looking in leaves no trace."""

    def __init__(self, agent: AgentApi, face: Face, opened: Opened, group: TaskGroup) -> None:
        self.agent = agent
        self.face = face
        self.opened = opened
        self.session: Session | None = None
        self.view = View()
        self._name = opened.name
        self._group = group
        self._following = anyio.CancelScope()
        self.running = Running(agent, face, group)
        self.elsewhere = Elsewhere(agent, face, group)
        self.asked: Asked | None = None
        """The question that was on the screen when the line that is being carried out was typed."""
        self._known: dict[ArgumentKind, Sequence[Suggestion]] = {}
        self._lines, self._typed = anyio.create_memory_object_stream[tuple[str, Asked | None]](math.inf)
        self._heard_all = anyio.Event()
        self._beginning = anyio.Lock()

    # What the terminal asks, at any moment.

    def typed(self, text: str) -> None:
        self._lines.send_nowait((text, self.view.asking))

    def interrupted(self, *, is_empty: bool) -> bool:
        if self.running.is_following:
            self.running.stop_following()
        elif self.is_working:
            self._group.start_soon(self._stop)
        elif is_empty:
            self.face.show([Note("nothing runs; Ctrl-D leaves")])
        else:
            return True
        return False

    def live(self, width: int, height: int) -> Sequence[Line]:
        following = self.running.live(width)
        return [*self.view.live(width, height - len(following)), *following]

    def status(self, width: int) -> str:
        return status_line(self.standing(), width)

    def suggestions(self, line: str) -> Iterable[Suggestion]:
        running = [(task.id, one_line(task_label(task), 40)) for task in self.running.tasks]
        listed = [known for known in self._known.get("task", ()) if known not in running]
        return suggestions(line, {**self._known, "task": [*running, *listed]})

    @property
    def is_working(self) -> bool:
        return self.view.is_open or self.view.state.has_unseen

    @property
    def model(self) -> str:
        return self._settings.get("model") or self.agent.default_model

    @property
    def carrier(self) -> RuntimeChoice:
        """What carries the turns of this session."""
        return runtime_of(self._settings, self.agent.default_runtime)

    @property
    def _settings(self) -> Mapping[str, str]:
        return {**self.opened.settings, **self.view.state.settings}

    @property
    def workspace(self) -> str:
        if self.session:
            return self.session.workspace
        return str(self.opened.workspace) if self.opened.workspace else "a folder of its own"

    def standing(self) -> Standing:
        view = self.view
        return Standing(
            model=self._answering,
            workspace=self.workspace,
            session=self.session.name if self.session else self._name,
            tokens=view.usage.input + view.usage.output,
            cost=view.cost,
            seconds=max(0, int(time.time() - view.began / 1000)) if view.is_open else None,
            queued=len(view.queued),
            elsewhere=self.elsewhere.working,
            tasks=self.running.count,
            is_asking=view.asking is not None,
        )

    # What goes on in the background, all of it owned by the task group.

    async def listen(self) -> None:
        """Take every line that is typed, in order, until `hear_out`."""
        async for line, asked in self._typed:
            self.asked = asked
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
        await self.elsewhere.take_up()
        await self.learn_names()

    async def watch_owner(self) -> None:
        """Tell when the home has another owner who asks another model, and take up what the last one left."""
        while True:
            before = self._answering
            await self.agent.wait_owner_changed()
            if self._answering != before:
                who = "this chat" if not self.agent.is_client else "another process"
                self.face.show([Note(f"{who} carries the turns from now on, with {one_line(self._answering)}", "warn")])
            self.face.touch()
            try:
                await self.elsewhere.take_up()
            except (Refused, Unavailable) as error:
                self.face.show([Note(f"✗ {error}", "bad")])

    @property
    def _answering(self) -> str:
        return model_or_runtime_name(self.carrier, self.model)

    async def learn_names(self) -> None:
        """Have the sessions that are there at hand when one is typed."""
        found = await self.agent.sessions(50)
        self.know({"session": [(session.name, one_line(session.title, 40)) for session in found]})

    def know(self, words: Mapping[ArgumentKind, Sequence[Suggestion]]) -> None:
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
            case PlainMessage(text=text):
                if self.asked and (answer := meant(text, self.asked.choices)):
                    await self.answer(self.asked, answer)
                else:
                    await self._say(text, line)
            case SlashCommand() as given:
                self.face.show([Typed(line)])
                self.face.show(await orders.carry_out(self, given))
            case InvalidCommand(reason=reason):
                self.face.show([Typed(line), Note(reason, "warn")])

    async def _say(self, text: str, line: str) -> None:
        try:
            await self.agent.post(text, session=await self.at_hand(), address=CHAT)
        except (Refused, Unavailable):
            self.face.put_back(line)
            raise
        if self.view.asking:
            self.face.show([Note("this waits behind the question; /yes or /no answers it")])

    async def answer(self, asked: Asked, answer: str) -> None:
        """Answer this question. What it means is shown when it is in the journal."""
        if self.session is None or not await self.agent.answer(self.session, asked, answer):
            self.face.show([Note("that question does not wait any more", "warn")])

    # Which session is open.

    async def at_hand(self) -> Session:
        """The open session, made now if this is its beginning."""
        async with self._beginning:
            if self.session is None:
                await self.open(await self.agent.session(self._name))
            assert self.session
            return self.session

    async def look_for(self, name: str) -> None:
        """Open the session of this name as soon as somebody else has begun it; until then, nothing is made."""
        while self.session is None and self._name == name:
            with suppress(Refused, Unavailable):  # Whoever speaks is told of the store's trouble.
                found = await self.agent.find(name)
                async with self._beginning:
                    if self.session is None and self._name == name == found.name:
                        await self.open(found)
            await anyio.sleep(_LOOK)

    async def open(self, session: Session) -> None:
        """Go on with this session; the one that was open goes on in the background."""
        journal = await self.agent.journal(session)
        self._set_aside()
        self.session, self.view = session, View(journal, can_steer)
        self.elsewhere.turn_to(session)
        self.face.show([*recall(journal, can_steer), *self.view.question()])
        if self.opened.settings:
            await apply_settings(self.agent, session, self.opened.settings)
        await self.running.turn_to(session, self.view)
        self._following = anyio.CancelScope()
        self._group.start_soon(self._follow, session, self.view, self._following)

    async def begin(self, name: str = "") -> None:
        """Make room for a new session; it is made with the first words said in it."""
        self._set_aside()
        self.session, self.view, self._name = None, View(), name
        await self.running.turn_to(None, self.view)
        self.opened = Opened(self.opened.workspace)
        if name:
            self._group.start_soon(self.look_for, name)

    def _set_aside(self) -> None:
        self._following.cancel()
        self.elsewhere.turn_to(None)
        if self.session and (self.is_working or self.running.count):
            self.elsewhere.watch(self.session, self.view.head, is_working=self.is_working)

    async def _follow(self, session: Session, view: View, scope: anyio.CancelScope) -> None:
        pause, told = 1.0, ""
        with scope:
            while True:
                try:
                    async with aclosing(self.agent.follow(session, view.head)) as stream:
                        async for event in stream:
                            if shows := view.take(event):
                                self.face.show(shows)
                            await self.running.take(event)
                            self.face.touch()
                            pause, told = 1.0, ""
                except (Refused, Unavailable) as error:
                    view.stand_still()
                    if str(error) != told:
                        self.face.show([Note(f"✗ {error}. The turn stands still until your next message", "bad")])
                    told = str(error)
                await anyio.sleep(pause)
                pause = min(_SLOWEST, pause * 2)
