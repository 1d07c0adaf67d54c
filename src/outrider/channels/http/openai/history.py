"""A conversation that was held elsewhere as the journal it would have left here. Pure."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from outrider.channels.http.openai.conversation import (
    AssistantTurn,
    ConversationItem,
    ToolOutput,
    UserTurn,
    invalid_request,
)
from outrider.core.events import Body, Ended, Input, Reply, Result, Started
from outrider.core.types import Image, ToolSpec, call_id


def journal_from_history(
    settings: Sequence[Body],
    items: Sequence[ConversationItem],
    keep: Callable[[bytes], Image],
    client_tools: tuple[ToolSpec, ...] | None = None,
) -> tuple[Body, ...]:
    """The journal of a session that was lived elsewhere, after these settings. Every exchange is closed.

    With `lent`, the last one stays open, its calls answered by whoever has those tools: its turn goes on here.
    """
    past = HistoryWriter(settings, keep)
    for one in items:
        match one:
            case UserTurn():
                past.add_user_turn(one)
            case AssistantTurn():
                past.add_assistant_turn(one)
            case ToolOutput():
                past.add_tool_output(one)
    if client_tools is None:
        past.close()
        return tuple(past.bodies)
    for at in reversed(range(len(past.bodies))):
        if isinstance(body := past.bodies[at], Input):
            past.bodies[at] = replace(body, tools=client_tools)
            return tuple(past.bodies)
    raise invalid_request("messages holds no user's words to answer")


class HistoryWriter:
    """A journal while it is written: an entry's number is its place here."""

    def __init__(self, settings: Sequence[Body], keep: Callable[[bytes], Image]) -> None:
        self.bodies: list[Body] = list(settings)
        self._store_image = keep
        self._saw: int | None = None
        self._calls: dict[str, str] = {}

    def add_user_turn(self, words: UserTurn) -> None:
        if words.text.strip() or words.images:
            self.close()
            self.bodies.append(Input(words.text, images=tuple(self._store_image(image) for image in words.images)))

    def add_assistant_turn(self, answer: AssistantTurn) -> None:
        if not answer.text and not answer.calls:
            return
        if self._saw is None:
            self.bodies.append(Started())
        self._saw = saw = len(self.bodies)
        self._calls = {wire: call_id(saw, n) for n, (wire, _) in enumerate(answer.calls)}
        calls = tuple(replace(call, id=self._calls[wire]) for wire, call in answer.calls)
        self.bodies.append(Reply(answer.text, saw, calls))

    def add_tool_output(self, outcome: ToolOutput) -> None:
        if outcome.call not in self._calls:
            raise invalid_request(f"no assistant message before it has a tool call {outcome.call[:80]!r}")
        self.bodies.append(Result(self._calls[outcome.call], outcome.text))

    def close(self) -> None:
        if self._saw is not None:
            self.bodies.append(Ended("done", self._saw))
            self._saw = None
