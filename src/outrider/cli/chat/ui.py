"""The two sides of the chat: `ChatUI`, a terminal that prints and reads, and `ChatController`, which handles input."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from outrider.cli.chat.display import DisplayItem
from outrider.cli.chat.session_view import StyledLine


class ChatUI(Protocol):
    """A terminal for the chat. Except for `run`, no method waits."""

    def show(self, items: Iterable[DisplayItem]) -> None:
        """Print above the prompt without disturbing the input line."""
        ...

    def restore_input(self, text: str) -> None:
        """Put back input that could not be accepted."""
        ...

    def invalidate(self) -> None:
        """Schedule a redraw of the live lines and the status."""
        ...

    def exit(self) -> None:
        """End `run`."""
        ...

    async def run(self, controller: "ChatController") -> None:
        """Read input until the user leaves."""
        ...


class ChatController(Protocol):
    """The source of what a `ChatUI` shows, and the receiver of its input. No method waits."""

    def submit(self, text: str) -> None:
        """Handle a line that was sent."""
        ...

    def interrupt(self, *, is_empty: bool) -> bool:
        """Handle Ctrl-C, on an empty input line or not. True when the line should be cleared."""
        ...

    def live_lines(self, width: int, height: int) -> Sequence[StyledLine]:
        """The lines above the prompt: running calls, the partial reply, queued messages."""
        ...

    def status(self, width: int) -> str: ...

    @property
    def is_working(self) -> bool: ...

    def suggestions(self, line: str) -> Iterable[tuple[str, str]]:
        """Completions of the last word of a line, each with a description."""
        ...
