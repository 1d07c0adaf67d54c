"""What a person at a terminal sees on stderr while a turn goes on: calls as they run, and that something moves."""

import shutil
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import msgspec
from msgspec import Struct

from outrider.app.groups import unwrap_single
from outrider.cli.plain import one_line, printable
from outrider.core.approve import NO
from outrider.core.events import Answered, Asked, Compacted, Delta, Entry, Event, Input, Reply, Result, Resumed
from outrider.core.parts import Call

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class ProgressLine:
    """Draws one moving line, and leaves the finished ones above it."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._activity = "thinking"
        self._drawn_width = 0
        self._frame = 0
        self._calls: dict[str, Call] = {}
        self._questions: dict[str, Asked] = {}
        self._is_paused = False

    def show(self, event: Event) -> None:
        match event:
            case Delta():
                self._show_delta(event)
            case Entry():
                self._show_entry(event)

    def _show_delta(self, delta: Delta) -> None:
        match delta.kind:
            case "note" | "reset":
                if delta.text:
                    self._print(f"… {one_line(delta.text)}")
            case "text":
                self._activity = "writing"
            case "call":
                self._activity = f"calling {one_line(delta.text)}"
            case "reasoning":
                self._activity = "thinking"

    def _show_entry(self, entry: Entry) -> None:
        match entry.body:
            case Reply(calls=calls, text=text) if calls:
                self._calls |= {call.id: call for call in calls}
                self._activity = "running " + ", ".join(one_line(call.tool) for call in calls)
                if text:
                    self._print(printable(text))
            case Result(call=call):
                self._print(result_line(self._calls.get(call), entry.body))
                self._activity = "thinking"
            case Asked(ask=ask):
                self._questions[ask] = entry.body
                self._activity = "waiting for an answer"
            case Answered(ask=ask):
                self._print(answer_line(self._questions.get(ask), entry.body))
                self._activity = "thinking"
            case Input(text=text, source="task"):
                self._print(f"● {one_line(text, 100)}")
            case Resumed():
                self._print("… taking up the unfinished turn")
            case Compacted():
                self._print("… the earlier part of the session was summarised")
            case _:
                pass

    @contextmanager
    def paused(self) -> Generator[None]:
        """While the block runs, the last line belongs to somebody else."""
        self._clear_line()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    @asynccontextmanager
    async def animated(self) -> AsyncGenerator[None, None]:
        """Keep the line moving while the block runs; nothing of it is left afterwards."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._animate)
                yield
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise unwrap_single(several) from several
        finally:
            self._clear_line()

    async def _animate(self) -> None:
        while True:
            seconds = int(time.monotonic() - self._started_at)
            self._frame += 1
            line = f"{_FRAMES[self._frame % len(_FRAMES)]} {self._activity} {seconds} s"
            if not self._is_paused:
                self._clear_line()
                self._drawn_width = len(line)
                sys.stderr.write(line[: shutil.get_terminal_size().columns - 1])
                sys.stderr.flush()
            await anyio.sleep(0.12)

    def _clear_line(self) -> None:
        if self._drawn_width:
            sys.stderr.write("\r" + " " * min(self._drawn_width, shutil.get_terminal_size().columns - 1) + "\r")
            self._drawn_width = 0

    def _print(self, line: str) -> None:
        self._clear_line()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def call_line(call: Call, longest: int = 100) -> str:
    """A call in one line: its tool and the beginning of its arguments."""
    args = call.broken or " ".join(f"{name}={value!r}" for name, value in call.args.items())
    return one_line(f"{call.tool} {args}", longest)


def result_line(call: Call | None, result: Result, longest: int = 100) -> str:
    """A call and what came of it, in one line; with its task where that goes on."""
    what = call_line(call, longest) if call else "a call"
    told = result.details or (result.text if result.failed else "")
    if task := _background_task(result):
        told = f"{told} as task {task}"
    return f"{'✗' if result.failed else '✓'} {what}" + (f" — {one_line(told, longest)}" if told else "")


class _StartedTask(Struct, frozen=True):
    """What a result says of a task."""

    status: str = ""
    task: str = ""


def _background_task(result: Result) -> str:
    """The task that this call left running, or nothing."""
    if '"background_started"' not in result.text and '"auto_backgrounded"' not in result.text:
        return ""
    try:
        begun = msgspec.json.decode(result.text, type=_StartedTask)
    except ValueError:  # another tool's words
        return ""
    return one_line(begun.task) if begun.status in ("background_started", "auto_backgrounded") else ""


def answer_line(asked: Asked | None, answered: Answered, longest: int = 160) -> str:
    """A question and its answer, in one line."""
    what = one_line(asked.question, longest) if asked else "a question"
    if answered.answer == NO:
        return f"✗ {what} — " + ("no" if answered.person else "no, since nobody answered")
    return f"✓ {what} — {one_line(answered.answer)}"
