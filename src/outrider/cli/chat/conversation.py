"""The conversation at a terminal: which session is open, what is typed into it, what comes back."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from outrider.app.addresses import TERMINAL
from outrider.app.api import AgentApi
from outrider.app.runtimes import RuntimeChoice, apply_settings, can_steer, runtime_of
from outrider.app.slash_commands import ArgumentKind, InvalidCommand, PlainMessage, SlashCommand, parse_line
from outrider.cli.chat import slash
from outrider.cli.chat.background import BackgroundSessions
from outrider.cli.chat.display import Note, TypedCommand, parse_answer
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import ChatSessionView, StyledLine, recap
from outrider.cli.chat.status import StatusInfo, Suggestion, render_status, suggestions
from outrider.cli.chat.task_panel import TaskPanel
from outrider.cli.chat.ui import ChatUI
from outrider.cli.options import model_or_runtime_name
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked
from outrider.core.store_port import Session
from outrider.core.tasks import task_label

CHAT_ADDRESS = f"{TERMINAL}:chat"
"""Where what is said here is answered, now or when the chat is opened again."""
_MAX_RETRY_DELAY = 30.0
_POLL_INTERVAL = 0.5
"""Seconds between two looks for a session that was named and is not there yet."""


class ChatStart(Struct, frozen=True):
    """How the chat was opened."""

    workspace: Path | None = None
    """Where new sessions work; None gives each a folder of its own."""
    settings: Mapping[str, str] = {}
    """What the person asked for by flags, for the session that is open."""
    session_name: str = ""
    """What the first session is to be called, if it is new."""


class ChatConversation:
    """The `Talk` of a terminal. A session is made with the first words said in it: looking in leaves no trace."""

    def __init__(self, agent: AgentApi, ui: ChatUI, start: ChatStart, group: TaskGroup) -> None:
        self.agent = agent
        self.ui = ui
        self.start = start
        self.session: Session | None = None
        self.view = ChatSessionView()
        self._new_session_name = start.session_name
        self._group = group
        self._follow_scope = anyio.CancelScope()
        self.task_panel = TaskPanel(agent, ui, group)
        self.background = BackgroundSessions(agent, ui, group)
        self.question_when_typed: Asked | None = None
        """The question that was on the screen when the line that is being carried out was typed."""
        self._suggestions_by_kind: dict[ArgumentKind, Sequence[Suggestion]] = {}
        self._line_sender, self._line_receiver = anyio.create_memory_object_stream[tuple[str, Asked | None]](math.inf)
        self._input_drained = anyio.Event()
        self._open_lock = anyio.Lock()

    # What the terminal asks, at any moment.

    def submit(self, text: str) -> None:
        self._line_sender.send_nowait((text, self.view.open_question))

    def interrupt(self, *, is_empty: bool) -> bool:
        if self.task_panel.is_following:
            self.task_panel.stop_following()
        elif self.is_working:
            self._group.start_soon(self._stop)
        elif is_empty:
            self.ui.show([Note("nothing runs; Ctrl-D leaves")])
        else:
            return True
        return False

    def live_lines(self, width: int, height: int) -> Sequence[StyledLine]:
        following = self.task_panel.live_lines(width)
        return [*self.view.live_lines(width, height - len(following)), *following]

    def status(self, width: int) -> str:
        return render_status(self.status_info(), width)

    def suggestions(self, line: str) -> Iterable[Suggestion]:
        running = [(task.id, sanitize_line(task_label(task), 40)) for task in self.task_panel.tasks]
        listed = [known for known in self._suggestions_by_kind.get("task", ()) if known not in running]
        return suggestions(line, {**self._suggestions_by_kind, "task": [*running, *listed]})

    @property
    def is_working(self) -> bool:
        return self.view.is_open or self.view.state.has_unseen

    @property
    def model(self) -> str:
        return self._settings.get("model") or self.agent.default_model

    @property
    def runtime(self) -> RuntimeChoice:
        """What carries the turns of this session."""
        return runtime_of(self._settings, self.agent.default_runtime)

    @property
    def _settings(self) -> Mapping[str, str]:
        return {**self.start.settings, **self.view.state.settings}

    @property
    def workspace(self) -> str:
        if self.session:
            return self.session.workspace
        return str(self.start.workspace) if self.start.workspace else "a folder of its own"

    def status_info(self) -> StatusInfo:
        view = self.view
        return StatusInfo(
            model=self._answerer_name,
            workspace=self.workspace,
            session=self.session.name if self.session else self._new_session_name,
            tokens=view.usage.input + view.usage.output,
            cost=view.cost,
            seconds=max(0, int(time.time() - view.started_at / 1000)) if view.is_open else None,
            queued=len(view.queued),
            background_turns=self.background.working_count,
            tasks=self.task_panel.background_count,
            is_asking=view.open_question is not None,
        )

    # What goes on in the background, all of it owned by the task group.

    async def process_input(self) -> None:
        """Take every line that is typed, in order, until `hear_out`."""
        async for line, asked in self._line_receiver:
            self.question_when_typed = asked
            try:
                await self._handle_line(line)
            except (Refused, Unavailable) as error:
                self.ui.show([Note(f"✗ {error}", "bad")])
            self.ui.invalidate()
        self._input_drained.set()

    async def drain_input(self) -> None:
        """Wait until everything typed so far is dealt with; nothing more is taken."""
        self._line_sender.close()
        await self._input_drained.wait()

    async def resume_unfinished(self) -> None:
        """Take up what was left unfinished, here and in other sessions, and tell when those end."""
        await self.background.resume_unfinished()
        await self.load_session_names()

    async def watch_owner(self) -> None:
        """Tell when the home has another owner who asks another model, and take up what the last one left."""
        while True:
            before = self._answerer_name
            await self.agent.wait_owner_changed()
            if self._answerer_name != before:
                who = "this chat" if not self.agent.is_client else "another process"
                self.ui.show(
                    [Note(f"{who} carries the turns from now on, with {sanitize_line(self._answerer_name)}", "warn")]
                )
            self.ui.invalidate()
            try:
                await self.background.resume_unfinished()
            except (Refused, Unavailable) as error:
                self.ui.show([Note(f"✗ {error}", "bad")])

    @property
    def _answerer_name(self) -> str:
        return model_or_runtime_name(self.runtime, self.model)

    async def load_session_names(self) -> None:
        """Have the sessions that are there at hand when one is typed."""
        found = await self.agent.sessions(50)
        self.add_suggestions({"session": [(session.name, sanitize_line(session.title, 40)) for session in found]})

    def add_suggestions(self, words: Mapping[ArgumentKind, Sequence[Suggestion]]) -> None:
        """Suggest these when an argument of their kind is typed."""
        for kind, found in words.items():
            kept = (
                [known for known in self._suggestions_by_kind.get(kind, ()) if known not in found]
                if kind == "model"
                else []
            )
            self._suggestions_by_kind[kind] = [*kept, *found]

    async def _stop(self) -> None:
        try:
            if self.session:
                await self.agent.stop(self.session)
        except (Refused, Unavailable) as error:
            self.ui.show([Note(f"✗ {error}", "bad")])

    async def _handle_line(self, line: str) -> None:
        match parse_line(line):
            case PlainMessage(text=text):
                if self.question_when_typed and (answer := parse_answer(text, self.question_when_typed.choices)):
                    await self.answer(self.question_when_typed, answer)
                else:
                    await self._send_message(text, line)
            case SlashCommand() as given:
                self.ui.show([TypedCommand(line)])
                self.ui.show(await slash.run_command(self, given))
            case InvalidCommand(reason=reason):
                self.ui.show([TypedCommand(line), Note(reason, "warn")])

    async def _send_message(self, text: str, line: str) -> None:
        try:
            await self.agent.post(text, session=await self.ensure_session(), address=CHAT_ADDRESS)
        except (Refused, Unavailable):
            self.ui.restore_input(line)
            raise
        if self.view.open_question:
            self.ui.show([Note("this waits behind the question; /yes or /no answers it")])

    async def answer(self, asked: Asked, answer: str) -> None:
        """Answer this question. What it means is shown when it is in the journal."""
        if self.session is None or not await self.agent.answer(self.session, asked, answer):
            self.ui.show([Note("that question does not wait any more", "warn")])

    # Which session is open.

    async def ensure_session(self) -> Session:
        """The open session, made now if this is its beginning."""
        async with self._open_lock:
            if self.session is None:
                await self.open(await self.agent.session(self._new_session_name))
            assert self.session
            return self.session

    async def open_when_created(self, name: str) -> None:
        """Open the session of this name as soon as somebody else has begun it; until then, nothing is made."""
        while self.session is None and self._new_session_name == name:
            with suppress(Refused, Unavailable):  # Whoever speaks is told of the store's trouble.
                found = await self.agent.find(name)
                async with self._open_lock:
                    if self.session is None and self._new_session_name == name == found.name:
                        await self.open(found)
            await anyio.sleep(_POLL_INTERVAL)

    async def open(self, session: Session) -> None:
        """Go on with this session; the one that was open goes on in the background."""
        journal = await self.agent.journal(session)
        self._move_to_background()
        self.session, self.view = session, ChatSessionView(journal, can_steer)
        self.background.set_open_session(session)
        self.ui.show([*recap(journal, can_steer), *self.view.question_items()])
        if self.start.settings:
            await apply_settings(self.agent, session, self.start.settings)
        await self.task_panel.set_open_session(session, self.view)
        self._follow_scope = anyio.CancelScope()
        self._group.start_soon(self._follow, session, self.view, self._follow_scope)

    async def start_new_session(self, name: str = "") -> None:
        """Make room for a new session; it is made with the first words said in it."""
        self._move_to_background()
        self.session, self.view, self._new_session_name = None, ChatSessionView(), name
        await self.task_panel.set_open_session(None, self.view)
        self.start = ChatStart(self.start.workspace)
        if name:
            self._group.start_soon(self.open_when_created, name)

    def _move_to_background(self) -> None:
        self._follow_scope.cancel()
        self.background.set_open_session(None)
        if self.session and (self.is_working or self.task_panel.background_count):
            self.background.watch(self.session, self.view.head, is_working=self.is_working)

    async def _follow(self, session: Session, view: ChatSessionView, scope: anyio.CancelScope) -> None:
        pause, told = 1.0, ""
        with scope:
            while True:
                try:
                    async with aclosing(self.agent.follow(session, view.head)) as stream:
                        async for event in stream:
                            if shows := view.apply(event):
                                self.ui.show(shows)
                            await self.task_panel.handle_event(event)
                            self.ui.invalidate()
                            pause, told = 1.0, ""
                except (Refused, Unavailable) as error:
                    view.mark_stalled()
                    if str(error) != told:
                        self.ui.show([Note(f"✗ {error}. The turn stands still until your next message", "bad")])
                    told = str(error)
                await anyio.sleep(pause)
                pause = min(_MAX_RETRY_DELAY, pause * 2)
