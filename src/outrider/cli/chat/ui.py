"""What the chat needs from a terminal, and what a terminal needs from the chat."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from outrider.cli.chat.display import DisplayItem
from outrider.cli.chat.session_view import StyledLine


class ChatUI(Protocol):
    """Where the chat is seen and typed. Nothing here waits."""

    def show(self, shows: Iterable[DisplayItem]) -> None:
        """Print above the prompt, without disturbing what is being typed."""
        ...

    def restore_input(self, text: str) -> None:
        """Give back what was typed and could not be taken."""
        ...

    def invalidate(self) -> None:
        """What is under way changed: show it soon."""
        ...

    def exit(self) -> None:
        """End `run`."""
        ...

    async def run(self, controller: "ChatController") -> None:
        """Let the person type until they leave."""
        ...


class ChatController(Protocol):
    """What the person at the terminal may do, and what they are shown meanwhile. Nothing here waits either."""

    def submit(self, text: str) -> None:
        """Something was typed and sent off."""
        ...

    def interrupt(self, *, is_empty: bool) -> bool:
        """Ctrl-C was pressed, on an empty line or not. True when the line should be cleared."""
        ...

    def live_lines(self, width: int, height: int) -> Sequence[StyledLine]:
        """What is under way."""
        ...

    def status(self, width: int) -> str: ...

    @property
    def is_working(self) -> bool: ...

    def suggestions(self, line: str) -> Iterable[tuple[str, str]]:
        """How the word at the end of this line may go on, each with a description."""
        ...
