"""What the chat needs from a terminal, and what a terminal needs from the chat."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from outrider.cli.chat.shows import Show
from outrider.cli.chat.view import Line


class Face(Protocol):
    """Where the chat is seen and typed. Nothing here waits."""

    def show(self, shows: Iterable[Show]) -> None:
        """Print above the prompt, without disturbing what is being typed."""
        ...

    def put_back(self, text: str) -> None:
        """Give back what was typed and could not be taken."""
        ...

    def touch(self) -> None:
        """What is under way changed: show it soon."""
        ...

    def leave(self) -> None:
        """End `run`."""
        ...

    async def run(self, talk: "Talk") -> None:
        """Let the person type until they leave."""
        ...


class Talk(Protocol):
    """What the person at the terminal may do, and what they are shown meanwhile. Nothing here waits either."""

    def typed(self, text: str) -> None:
        """Something was typed and sent off."""
        ...

    def interrupted(self, *, is_empty: bool) -> bool:
        """Ctrl-C was pressed, on an empty line or not. True when the line should be cleared."""
        ...

    def live(self, width: int, height: int) -> Sequence[Line]:
        """What is under way."""
        ...

    def status(self, width: int) -> str: ...

    @property
    def is_working(self) -> bool: ...

    def suggestions(self, line: str) -> Iterable[tuple[str, str]]:
        """How the word at the end of this line may go on, each with a description."""
        ...
