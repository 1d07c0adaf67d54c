"""The tasks of the open session: how many are running, the end of their output, and following one of them."""

from collections.abc import Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from outrider.app.api import AgentApi
from outrider.cli.chat.display import Note, OutputLines
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import SHELL, ChatSessionView, StyledLine, last_lines
from outrider.cli.chat.ui import ChatUI
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Begun, Ended, Event, Input, Result
from outrider.core.store_port import Session
from outrider.core.tasks import Task
from outrider.core.text import duration

_POLL_INTERVAL = 0.4
"""Seconds between two reads of the output of a running command."""
_TAIL_BYTES = 2_000
_MAX_READ_BYTES = 64 * 1024
"""Bytes of output read at once; of more, only the end is shown."""
_MAX_PRINTED_LINES = 100
_TAIL_LINES = 3


class TaskPanel:
    """Keeps track of tasks while some are running; otherwise it is idle."""

    def __init__(self, agent: AgentApi, ui: ChatUI, group: TaskGroup) -> None:
        self._agent = agent
        self._ui = ui
        self._group = group
        self._session: Session | None = None
        self._view = ChatSessionView()
        self.tasks: Sequence[Task] = ()
        """The running tasks, whether or not the turn waits for them."""
        self._awaited: set[str] = set()
        self._call_started = anyio.Event()
        self._follow_scope: anyio.CancelScope | None = None
        self._followed_task = ""

    @property
    def background_count(self) -> int:
        return sum(not task.spec.is_awaited for task in self.tasks)

    @property
    def is_following(self) -> bool:
        return self._follow_scope is not None

    def live_lines(self, width: int) -> Sequence[StyledLine]:
        """A line about the task that is being followed."""
        if not self.is_following:
            return ()
        return [
            (
                "class:call",
                sanitize_line(f"following {self._followed_task} · Ctrl-C stops following; the task continues", width),
            )
        ]

    async def set_open_session(self, session: Session | None, view: ChatSessionView) -> None:
        self._session, self._view, self.tasks = session, view, ()
        self._call_started.set()
        await self.refresh()

    async def handle_event(self, event: Event) -> None:
        """Refresh the tasks when an event of the session may have started or ended one."""
        match getattr(event, "body", None):
            case Begun():
                self._call_started.set()
            case Result() | Ended() | Input(source="task"):
                await self.refresh()
            case _:
                pass

    async def refresh(self) -> None:
        """Look up the running tasks, and again when one of them ends."""
        session = self._session
        with suppress(Refused, Unavailable):  # A number in the status line is not worth an error.
            tasks = await self._agent.tasks(session, open_only=True) if session else ()
            if session is not self._session:
                return
            self.tasks = tasks
            for task in tasks:
                if task.id not in self._awaited:
                    self._awaited.add(task.id)
                    self._group.start_soon(self._refresh_when_ended, task)
        self._ui.invalidate()

    async def _refresh_when_ended(self, task: Task) -> None:
        with suppress(Refused, Unavailable):
            ended = await self._agent.wait_task(task)
            if ended.is_open:  # It is about to start.
                await anyio.sleep(_POLL_INTERVAL)
        self._awaited.discard(task.id)
        await self.refresh()

    # Output of the commands that the turn waits for.

    async def watch_calls(self) -> None:
        """Show the last lines of output of running commands."""
        while True:
            await self._call_started.wait()
            self._call_started = anyio.Event()
            while calls := [call.id for call in self._view.running_calls if call.tool == SHELL]:
                await anyio.sleep(_POLL_INTERVAL)
                with suppress(Refused, Unavailable):  # The turn itself reports errors of the store.
                    await self._read_tails(calls)

    async def _read_tails(self, calls: Sequence[str]) -> None:
        view = self._view
        if any(call not in {task.spec.call for task in self.tasks} for call in calls):
            await self.refresh()
        tails = {
            task.spec.call: last_lines(await read_tail(self._agent, task), _TAIL_LINES)
            for task in self.tasks
            if task.spec.call in calls
        }
        if view.set_output_tails(tails):
            self._ui.invalidate()

    # Following one task.

    def follow(self, task: Task) -> None:
        """Print the output of this task until it ends or `stop_following` is called."""
        self.stop_following()
        self._follow_scope, self._followed_task = anyio.CancelScope(), task.id
        self._group.start_soon(self._follow, task, self._follow_scope)
        self._ui.invalidate()

    def stop_following(self) -> None:
        if self._follow_scope:
            self._follow_scope.cancel()
            self._follow_scope = None
            self._ui.invalidate()

    async def _follow(self, task: Task, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                task = await self._print_output(task)
                if not task.is_delivered:
                    self._ui.show([Note(f"{task.id} {describe_state(task)}")])
            except (Refused, Unavailable) as error:
                self._ui.show([Note(f"✗ {error}", "bad")])
        if self._follow_scope is scope:
            self._follow_scope = None
        self._ui.invalidate()

    async def _print_output(self, task: Task) -> Task:
        commands = self._agent.commands
        size = await run_sync(commands.size, task)
        at = max(0, size - _TAIL_BYTES)
        if at:  # Start at the beginning of a line.
            at += (await run_sync(commands.read, task, at, _TAIL_BYTES)).find(b"\n") + 1
        while True:
            task = await self._agent.wait_task(task, _POLL_INTERVAL)
            size = await run_sync(commands.size, task)
            if size - at > _MAX_READ_BYTES:
                self._ui.show([Note(f"… {size - at - _MAX_READ_BYTES:,} bytes omitted")])
                at = size - _MAX_READ_BYTES
            content = await run_sync(commands.read, task, at, _MAX_READ_BYTES)
            end = content.rfind(b"\n") + 1
            is_endless = not end and len(content) > _TAIL_BYTES  # For example, a progress bar.
            printed = content[:end] if task.is_open and not is_endless else content
            self._print_lines(last_lines(printed.decode("utf-8", "replace"), _MAX_READ_BYTES))
            at += len(printed)
            if not task.is_open:
                return task

    def _print_lines(self, lines: tuple[str, ...]) -> None:
        if len(lines) > _MAX_PRINTED_LINES:
            self._ui.show([Note(f"… {len(lines) - _MAX_PRINTED_LINES:,} lines omitted")])
        if lines:
            self._ui.show([OutputLines(lines[-_MAX_PRINTED_LINES:])])


async def read_tail(agent: AgentApi, task: Task) -> str:
    """The end of a command's output; empty for a child session."""
    if task.spec.kind == "session":
        return ""
    return (await run_sync(agent.commands.read, task, -_TAIL_BYTES, _TAIL_BYTES)).decode("utf-8", "replace")


def describe_state(task: Task) -> str:
    """The state of a task in a few words, e.g. `succeeded, exit 0, 3.2 s`."""
    exit_code = "" if task.exit_code is None else f"exit {task.exit_code}"
    elapsed = duration(task.ended - task.created) if task.ended else ""
    return ", ".join(part for part in (task.state.replace("_", " "), exit_code, elapsed) if part)
