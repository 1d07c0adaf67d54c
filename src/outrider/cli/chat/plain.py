"""The chat on a terminal that cannot move its cursor (`TERM=dumb`): a line is read, what happens is printed."""

import os
import signal
import sys
from collections.abc import Iterable

import anyio

from outrider.cli.chat.face import Talk
from outrider.cli.chat.paint import Painter
from outrider.cli.chat.shows import Person, Show, Typed

_LONGEST_READ = 65_536


class PlainLines:
    """The `Face` of such a terminal. The terminal itself echoes and edits."""

    def __init__(self, painter: Painter) -> None:
        self._painter = painter
        self._ending = anyio.CancelScope()

    def show(self, shows: Iterable[Show]) -> None:
        """What the person said is on the screen already, as they typed it."""
        text = self._painter.paint([show for show in shows if not isinstance(show, Person | Typed)], 80)
        sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
        sys.stdout.flush()

    def put_back(self, text: str) -> None:
        sys.stdout.write(f"(not sent: {text})\n")
        sys.stdout.flush()

    def touch(self) -> None:
        """There is no place for what is under way."""

    def leave(self) -> None:
        self._ending.cancel()

    async def run(self, talk: Talk) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._interrupts, talk)
            with self._ending:
                await self._read(talk)
            group.cancel_scope.cancel()

    async def _read(self, talk: Talk) -> None:
        descriptor = sys.stdin.fileno()
        while True:
            await anyio.wait_readable(descriptor)
            line = os.read(descriptor, _LONGEST_READ)
            if not line:
                return
            if text := line.decode("utf-8", "replace").strip("\r\n"):
                talk.typed(text)

    async def _interrupts(self, talk: Talk) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                talk.interrupted(is_empty=True)
