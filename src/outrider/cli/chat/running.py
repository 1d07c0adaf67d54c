"""The tasks of the session that is open: how many run, what they write, and following one of them."""

from collections.abc import Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from outrider.app.acting import AgentApi
from outrider.cli.chat.calls import SHELL, last_lines
from outrider.cli.chat.clean import one_line
from outrider.cli.chat.face import Face
from outrider.cli.chat.shows import Note, Output
from outrider.cli.chat.view import Line, View
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Begun, Ended, Event, Input, Result
from outrider.core.ports import Session
from outrider.core.tasks import Task, duration

_LOOK = 0.4
"""Seconds between two looks at what a command writes, while somebody sees it."""
_TAIL = 2_000
_AT_ONCE = 64 * 1024
"""Bytes of output read between two looks; of more, only the end."""
_MOST_LINES = 100
"""Lines of those that are printed, the last ones."""
_LINES = 3


class Running:
    """Looks only while something runs; at rest it costs nothing."""

    def __init__(self, agent: AgentApi, face: Face, group: TaskGroup) -> None:
        self._agent = agent
        self._face = face
        self._group = group
        self._session: Session | None = None
        self._view = View()
        self.tasks: Sequence[Task] = ()
        """Those that run, whether or not the turn waits for them."""
        self._awaited: set[str] = set()
        self._begun = anyio.Event()
        self._following: anyio.CancelScope | None = None
        self._followed = ""

    @property
    def count(self) -> int:
        """Tasks in the background."""
        return sum(not task.spec.is_awaited for task in self.tasks)

    @property
    def is_following(self) -> bool:
        return self._following is not None

    def live(self, width: int) -> Sequence[Line]:
        """What to say of the task that is being followed."""
        if not self.is_following:
            return ()
        return [("class:call", one_line(f"following {self._followed} · Ctrl-C ends this, not the task", width))]

    async def turn_to(self, session: Session | None, view: View) -> None:
        """Another session is open now."""
        self._session, self._view, self.tasks = session, view, ()
        self._begun.set()
        await self.look()

    async def take(self, event: Event) -> None:
        """Something happened in the session: it may have begun or ended a task."""
        match getattr(event, "body", None):
            case Begun():
                self._begun.set()
            case Result() | Ended() | Input(source="task"):
                await self.look()
            case _:
                pass

    async def look(self) -> None:
        """Find out which tasks run, and be there when they end."""
        session = self._session
        with suppress(Refused, Unavailable):  # A figure in the status line is not worth a word.
            found = await self._agent.tasks(session, open_only=True) if session else ()
            if session is not self._session:
                return
            self.tasks = found
            for task in found:
                if task.id not in self._awaited:
                    self._awaited.add(task.id)
                    self._group.start_soon(self._until_ended, task)
        self._face.touch()

    async def _until_ended(self, task: Task) -> None:
        with suppress(Refused, Unavailable):
            ended = await self._agent.wait_task(task)
            if ended.is_open:  # It is only about to start.
                await anyio.sleep(_LOOK)
        self._awaited.discard(task.id)
        await self.look()

    # What a command writes while the turn waits for it.

    async def watch_calls(self) -> None:
        """Keep the last lines of running commands in the view, as long as there are any."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            while calls := [call.id for call in self._view.running if call.tool == SHELL]:
                await anyio.sleep(_LOOK)
                with suppress(Refused, Unavailable):  # The turn itself tells of the store's trouble.
                    await self._read_tails(calls)

    async def _read_tails(self, calls: Sequence[str]) -> None:
        view = self._view
        if any(call not in {task.spec.call for task in self.tasks} for call in calls):
            await self.look()
        tails = {
            task.spec.call: last_lines(await read_tail(self._agent, task), _LINES)
            for task in self.tasks
            if task.spec.call in calls
        }
        if tails != view.tails:
            view.tails = tails
            self._face.touch()

    # Following one task.

    def follow(self, task: Task) -> None:
        """Print what this task writes, until it ends or `stop_following`."""
        self.stop_following()
        self._following, self._followed = anyio.CancelScope(), task.id
        self._group.start_soon(self._follow, task, self._following)
        self._face.touch()

    def stop_following(self) -> None:
        if self._following:
            self._following.cancel()
            self._following = None
            self._face.touch()

    async def _follow(self, task: Task, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                task = await self._print(task)
                if not task.is_delivered:
                    self._face.show([Note(f"{task.id} {state_words(task)}")])
            except (Refused, Unavailable) as error:
                self._face.show([Note(f"✗ {error}", "bad")])
        if self._following is scope:
            self._following = None
        self._face.touch()

    async def _print(self, task: Task) -> Task:
        commands = self._agent.commands
        size = await run_sync(commands.size, task)
        at = max(0, size - _TAIL)
        if at:  # From the beginning of a line.
            at += (await run_sync(commands.read, task, at, _TAIL)).find(b"\n") + 1
        while True:
            task = await self._agent.wait_task(task, _LOOK)
            size = await run_sync(commands.size, task)
            if size - at > _AT_ONCE:
                self._face.show([Note(f"… {size - at - _AT_ONCE:,} bytes left out")])
                at = size - _AT_ONCE
            content = await run_sync(commands.read, task, at, _AT_ONCE)
            end = content.rfind(b"\n") + 1
            is_endless = not end and len(content) > _TAIL  # A line that is written over again and again.
            whole = content[:end] if task.is_open and not is_endless else content
            self._print_lines(last_lines(whole.decode("utf-8", "replace"), _AT_ONCE))
            at += len(whole)
            if not task.is_open:
                return task

    def _print_lines(self, lines: tuple[str, ...]) -> None:
        if len(lines) > _MOST_LINES:
            self._face.show([Note(f"… {len(lines) - _MOST_LINES:,} lines left out")])
        if lines:
            self._face.show([Output(lines[-_MOST_LINES:])])


async def read_tail(agent: AgentApi, task: Task) -> str:
    """The end of what a command wrote; nothing for a child session."""
    if task.spec.kind == "session":
        return ""
    return (await run_sync(agent.commands.read, task, -_TAIL, _TAIL)).decode("utf-8", "replace")


def state_words(task: Task) -> str:
    """How a task stands, in a few words, e.g. `succeeded, exit 0, 3.2 s`."""
    code = "" if task.exit_code is None else f"exit {task.exit_code}"
    spent = duration(task.ended - task.created) if task.ended else ""
    return ", ".join(part for part in (task.state.replace("_", " "), code, spent) if part)
