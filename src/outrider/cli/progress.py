"""What a person at a terminal sees on stderr while a turn goes on: calls as they run, and that something moves."""

import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from outrider.app.compose import only
from outrider.cli.plain import one_line, printable
from outrider.core.events import Compacted, Delta, Entry, Event, Reply, Result, Resumed
from outrider.core.parts import Call

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress:
    """Draws one moving line, and leaves the finished ones above it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._doing = "thinking"
        self._drawn = 0
        self._frame = 0
        self._calls: dict[str, Call] = {}

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
                self._doing = "writing"
            case "call":
                self._doing = f"calling {one_line(delta.text)}"
            case "reasoning":
                self._doing = "thinking"

    def _show_entry(self, entry: Entry) -> None:
        body = entry.body
        if isinstance(body, Reply) and body.calls:
            self._calls |= {call.id: call for call in body.calls}
            self._doing = "running " + ", ".join(one_line(call.tool) for call in body.calls)
            if body.text:
                self._print(printable(body.text))
        elif isinstance(body, Result):
            self._print(result_line(self._calls.get(body.call), body))
            self._doing = "thinking"
        elif isinstance(body, Resumed):
            self._print("… taking up the unfinished turn")
        elif isinstance(body, Compacted):
            self._print("… the earlier part of the session was summarised")

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[None, None]:
        """Keep the line moving while the block runs; nothing of it is left afterwards."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._move)
                yield
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise only(several) from several
        finally:
            self._wipe()

    async def _move(self) -> None:
        while True:
            seconds = int(time.monotonic() - self._began)
            self._frame += 1
            line = f"{_FRAMES[self._frame % len(_FRAMES)]} {self._doing} {seconds} s"
            self._wipe()
            self._drawn = len(line)
            sys.stderr.write(line[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
            await anyio.sleep(0.12)

    def _wipe(self) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * min(self._drawn, shutil.get_terminal_size().columns - 1) + "\r")
            self._drawn = 0

    def _print(self, line: str) -> None:
        self._wipe()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def call_line(call: Call, longest: int = 100) -> str:
    """A call in one line: its tool and the beginning of its arguments."""
    args = call.broken or " ".join(f"{name}={value!r}" for name, value in call.args.items())
    return one_line(f"{call.tool} {args}", longest)


def result_line(call: Call | None, result: Result, longest: int = 100) -> str:
    """A call and what came of it, in one line."""
    what = call_line(call, longest) if call else "a call"
    told = result.details or (result.text if result.failed else "")
    return f"{'✗' if result.failed else '✓'} {what}" + (f" — {one_line(told, longest)}" if told else "")
