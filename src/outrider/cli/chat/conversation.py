"""The conversation at a terminal: the open session, the lines typed into it, and the events that come back."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from outrider.app.addresses import TERMINAL
from outrider.app.api import AgentApi
from outrider.app.runtimes import RuntimeChoice, apply_settings, can_steer, runtime_of
from outrider.app.slash_commands import ArgumentKind, InvalidCommand, PlainMessage, SlashCommand, parse_line
from outrider.cli.chat.background import BackgroundSessions
from outrider.cli.chat.display import (
    DisplayItem,
    Note,
    QuestionText,
    TypedCommand,
    answer_hint,
    is_unoffered_answer,
    is_view_request,
    parse_answer,
)
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import ChatSessionView, StyledLine, recap
from outrider.cli.chat.slash import run_command
from outrider.cli.chat.status import StatusInfo, Suggestion, render_status, suggestions
from outrider.cli.chat.task_panel import TaskPanel
from outrider.cli.chat.ui import ChatUI
from outrider.cli.options import model_or_runtime_name
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked
from outrider.core.store_port import Session
from outrider.core.tasks import task_label

CHAT_ADDRESS = f"{TERMINAL}:chat"
"""The address of messages from the chat: replies appear here, now or when the chat is opened again."""
_MAX_RETRY_DELAY = 30.0
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether a named session exists yet."""


class ChatConversation:
    """The `ChatController` of a terminal. A session is created with its first message, not when the chat is opened."""

    def __init__(
        self,
        agent: AgentApi,
        ui: ChatUI,
        group: TaskGroup,
        *,
        root: Path | None = None,
        settings: Mapping[str, str] | None = None,
        session_name: str = "",
    ) -> None:
        """`root` is the workspace of new sessions (None: a folder of its own for each); `settings` come from flags and
        are for the first session, whose name is `session_name` if it is new."""
        self.agent = agent
        self.ui = ui
        self.session: Session | None = None
        self.view = ChatSessionView()
        self._root = root
        self._flag_settings = settings or {}
        self._new_session_name = session_name
        self._group = group
        self._follow_scope = anyio.CancelScope()
        self.task_panel = TaskPanel(agent, ui, group)
        self.background = BackgroundSessions(agent, ui, group)
        self._suggestions_by_kind: dict[ArgumentKind, Sequence[Suggestion]] = {}
        self._line_sender, self._line_receiver = anyio.create_memory_object_stream[tuple[str, Asked | None]](math.inf)
        self._input_drained = anyio.Event()
        self._open_lock = anyio.Lock()

    # ChatController: called by the terminal at any moment.

    def submit(self, text: str) -> None:
        self._line_sender.send_nowait((text, self.view.open_question))

    def interrupt(self, *, is_empty: bool) -> bool:
        if self.task_panel.is_following:
            self.task_panel.stop_following()
        elif self.is_working:
            self._group.start_soon(self._stop)
        elif is_empty:
            self.ui.show([Note("Nothing is running. Press Ctrl-D to leave.")])
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
        others = [each for each in self._suggestions_by_kind.get("task", ()) if each not in running]
        return suggestions(line, {**self._suggestions_by_kind, "task": [*running, *others]})

    @property
    def is_working(self) -> bool:
        return self.view.is_open or self.view.state.has_unseen

    @property
    def model(self) -> str:
        return self._settings.get("model") or self.agent.default_model

    @property
    def runtime(self) -> RuntimeChoice:
        return runtime_of(self._settings, self.agent.default_runtime)

    @property
    def _settings(self) -> Mapping[str, str]:
        return {**self._flag_settings, **self.view.state.settings}

    @property
    def workspace(self) -> str:
        if self.session:
            return self.session.workspace
        return str(self._root) if self._root else "a folder of its own"

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
            is_unconfined=self.agent.config.sandbox.mode == "off",
        )

    # Background work, all of it in the task group.

    async def process_input(self) -> None:
        """Handle the lines that are typed, in order, until `drain_input`."""
        async for line, question in self._line_receiver:
            try:
                await self._handle_line(line, question)
            except (Refused, Unavailable) as error:
                self.ui.show([Note(f"✗ {error}", "bad")])
            self.ui.invalidate()
        self._input_drained.set()

    async def drain_input(self) -> None:
        """Accept no more lines, and wait until those typed so far are handled."""
        self._line_sender.close()
        await self._input_drained.wait()

    async def resume_unfinished(self) -> None:
        """Resume unfinished turns in this and other sessions."""
        await self.background.resume_unfinished()
        await self.load_session_names()

    async def watch_owner(self) -> None:
        """Report when another process takes over the home with another model, and resume what the last one left."""
        while True:
            before = self._answerer_name
            await self.agent.wait_owner_changed()
            if self._answerer_name != before:
                owner = "Another process" if self.agent.is_client else "This chat"
                self.ui.show([Note(f"{owner} now runs the turns, with {sanitize_line(self._answerer_name)}", "warn")])
            self.ui.invalidate()
            try:
                await self.background.resume_unfinished()
            except (Refused, Unavailable) as error:
                self.ui.show([Note(f"✗ {error}", "bad")])

    @property
    def _answerer_name(self) -> str:
        return model_or_runtime_name(self.runtime, self.model)

    async def load_session_names(self) -> None:
        """Suggest recent sessions when the name of one is typed."""
        sessions = await self.agent.sessions(50)
        self.add_suggestions({"session": [(session.name, sanitize_line(session.title, 40)) for session in sessions]})

    def add_suggestions(self, by_kind: Mapping[ArgumentKind, Sequence[Suggestion]]) -> None:
        """Suggest these when an argument of their kind is typed; models are added to those suggested before."""
        for kind, words in by_kind.items():
            before = self._suggestions_by_kind.get(kind, ()) if kind == "model" else ()
            self._suggestions_by_kind[kind] = [*(word for word in before if word not in words), *words]

    async def _stop(self) -> None:
        try:
            if self.session:
                await self.agent.stop(self.session)
        except (Refused, Unavailable) as error:
            self.ui.show([Note(f"✗ {error}", "bad")])

    async def _handle_line(self, line: str, question: Asked | None) -> None:
        """`question` was pending when the line was typed: the line may answer that one, and no later one."""
        match parse_line(line):
            case PlainMessage(text=text):
                if question and (answer := parse_answer(text, question.choices)):
                    await self.answer(question, answer)
                elif question and question.request and is_view_request(text, question.choices):
                    shown = QuestionText(question.ask, question.question, question.choices, question.request)
                    self.ui.show([replace(shown, is_whole=True)])
                elif question and is_unoffered_answer(text, question.choices):
                    typed, offered = sanitize_line(text.strip()), answer_hint(question.choices)
                    self.ui.show([Note(f"This question does not offer {typed!r}. Answer {offered}", "warn")])
                else:
                    await self._send_message(text, line)
            case SlashCommand() as command:
                self.ui.show([TypedCommand(line)])
                self.ui.show(await run_command(self, command, question))
            case InvalidCommand(reason=reason):
                self.ui.show([TypedCommand(line), Note(reason, "warn")])

    async def _send_message(self, text: str, line: str) -> None:
        try:
            await self.agent.post(text, session=await self.ensure_session(), address=CHAT_ADDRESS)
        except (Refused, Unavailable):
            self.ui.restore_input(line)
            raise
        if self.view.open_question:
            self.ui.show([Note("This message waits until the question is answered (/yes or /no)")])

    async def answer(self, question: Asked, answer: str) -> None:
        """Answer a question. The outcome is shown when it is in the journal."""
        if self.session is None or not await self.agent.answer(self.session, question, answer):
            self.ui.show([Note("That question is no longer pending", "warn")])

    # The open session.

    async def ensure_session(self) -> Session:
        """The open session, created now if it is new."""
        async with self._open_lock:
            if self.session is None:
                await self.open(await self.agent.session(self._new_session_name))
            assert self.session
            return self.session

    async def open_when_created(self, name: str) -> None:
        """Open the session of this name as soon as another process has created it."""
        while self.session is None and self._new_session_name == name:
            with suppress(Refused, Unavailable):  # An error of the store is shown when a message is sent.
                session = await self.agent.find(name)
                async with self._open_lock:
                    if self.session is None and self._new_session_name == name == session.name:
                        await self.open(session)
            await anyio.sleep(_POLL_INTERVAL)

    async def open(self, session: Session, *heading: DisplayItem) -> None:
        """Show this session below the heading; the last one continues in the background."""
        journal = await self.agent.journal(session)
        self._move_to_background()
        self.session, self.view = session, ChatSessionView(journal, can_steer)
        self.background.set_open_session(session)
        self.ui.show([*heading, *recap(journal, can_steer), *self.view.question_items()])
        if self._flag_settings:
            await apply_settings(self.agent, session, self._flag_settings)
        await self.task_panel.set_open_session(session, self.view)
        self._follow_scope = anyio.CancelScope()
        self._group.start_soon(self._follow, session, self.view, self._follow_scope)

    async def start_new_session(self, name: str = "") -> None:
        """Show an empty session; it is created with its first message."""
        self._move_to_background()
        self.session, self.view, self._new_session_name = None, ChatSessionView(), name
        await self.task_panel.set_open_session(None, self.view)
        self._flag_settings = {}
        if name:
            self._group.start_soon(self.open_when_created, name)

    def _move_to_background(self) -> None:
        self._follow_scope.cancel()
        self.background.set_open_session(None)
        if self.session and (self.is_working or self.task_panel.background_count):
            self.background.watch(self.session, self.view.head, is_working=self.is_working)

    async def _follow(self, session: Session, view: ChatSessionView, scope: anyio.CancelScope) -> None:
        delay, last_error = 1.0, ""
        with scope:
            while True:
                try:
                    async with aclosing(self.agent.follow(session, view.head)) as stream:
                        async for event in stream:
                            if items := view.apply(event):
                                self.ui.show(items)
                            await self.task_panel.handle_event(event)
                            self.ui.invalidate()
                            delay, last_error = 1.0, ""
                except (Refused, Unavailable) as error:
                    view.mark_stalled()
                    if str(error) != last_error:
                        self.ui.show([Note(f"✗ {error}. The turn is stalled until your next message.", "bad")])
                    last_error = str(error)
                await anyio.sleep(delay)
                delay = min(_MAX_RETRY_DELAY, delay * 2)
