"""Chat UI for a terminal that cannot move its cursor (`TERM=dumb`): reads lines and prints lines."""

import os
import signal
import sys
from collections.abc import Iterable

import anyio

from outrider.cli.chat.display import DisplayItem, TypedCommand, UserText
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.ui import ChatController

_MAX_READ_BYTES = 65_536


class DumbTerminalUI:
    """A `ChatUI` that leaves echo and editing to the terminal."""

    def __init__(self, renderer: TerminalRenderer) -> None:
        self._renderer = renderer
        self._run_scope = anyio.CancelScope()

    def show(self, items: Iterable[DisplayItem]) -> None:
        # The terminal has already echoed what the user typed.
        text = self._renderer.render([item for item in items if not isinstance(item, UserText | TypedCommand)], 80)
        sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
        sys.stdout.flush()

    def restore_input(self, text: str) -> None:
        sys.stdout.write(f"(not sent: {text})\n")
        sys.stdout.flush()

    def invalidate(self) -> None:
        """Nothing to do: there are no live lines."""

    def exit(self) -> None:
        self._run_scope.cancel()

    async def run(self, controller: ChatController) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_interrupts, controller)
            with self._run_scope:
                await self._read(controller)
            group.cancel_scope.cancel()

    async def _read(self, controller: ChatController) -> None:
        descriptor = sys.stdin.fileno()
        while True:
            await anyio.wait_readable(descriptor)
            line = os.read(descriptor, _MAX_READ_BYTES)
            if not line:
                return
            if text := line.decode("utf-8", "replace").strip("\r\n"):
                controller.submit(text)

    async def _watch_interrupts(self, controller: ChatController) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                controller.interrupt(is_empty=True)
