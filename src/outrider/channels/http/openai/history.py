"""A client's message history as the journal that the same conversation would have left here. Pure."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from outrider.channels.http.openai.conversation import (
    AssistantTurn,
    ConversationItem,
    ToolOutput,
    UserTurn,
    invalid_request,
    output_without_call,
)
from outrider.core.events import Body, Ended, Input, Reply, Result, Started
from outrider.core.types import Image, ToolSpec, call_id


def check_history(items: Sequence[ConversationItem], *, is_open: bool) -> None:
    """Raise 400 for a history that is no journal: every output follows its call; an open turn has a user message."""
    calls: set[str] = set()
    for item in items:
        if isinstance(item, AssistantTurn) and (item.text or item.calls):
            calls = {id for id, _ in item.calls}
        elif isinstance(item, ToolOutput) and item.call not in calls:
            raise output_without_call(item)
    if is_open and not any(isinstance(item, UserTurn) and not item.is_empty for item in items):
        raise invalid_request("there is no user message to answer")


def journal_from_history(
    settings: Sequence[Body],
    items: Sequence[ConversationItem],
    store_image: Callable[[bytes], Image],
    client_tools: tuple[ToolSpec, ...] | None = None,
) -> tuple[Body, ...]:
    """The journal of this history, after these settings. Every turn in it has ended. Raises 400.

    With `client_tools`, the last turn stays open, with these tools and the outputs of their calls, and continues here.
    """
    check_history(items, is_open=client_tools is not None)
    writer = HistoryWriter(settings, store_image)
    for item in items:
        match item:
            case UserTurn():
                writer.add_user_turn(item)
            case AssistantTurn():
                writer.add_assistant_turn(item)
            case ToolOutput():
                writer.add_tool_output(item)
    if client_tools is None:
        writer.end_turn()
        return tuple(writer.bodies)
    last = max(at for at, body in enumerate(writer.bodies) if isinstance(body, Input))
    return tuple(replace(body, tools=client_tools) if at == last else body for at, body in enumerate(writer.bodies))


class HistoryWriter:
    """A journal under construction: the number of an entry is its position."""

    def __init__(self, settings: Sequence[Body], store_image: Callable[[bytes], Image]) -> None:
        self.bodies: list[Body] = list(settings)
        self._store_image = store_image
        self._saw: int | None = None
        self._calls: dict[str, str] = {}
        """Ids of the last reply's calls, by their ids on the wire."""

    def add_user_turn(self, turn: UserTurn) -> None:
        if not turn.is_empty:
            self.end_turn()
            self.bodies.append(Input(turn.text, images=tuple(self._store_image(image) for image in turn.images)))

    def add_assistant_turn(self, turn: AssistantTurn) -> None:
        if not turn.text and not turn.calls:
            return
        if self._saw is None:
            self.bodies.append(Started())
        self._saw = saw = len(self.bodies)
        self._calls = {wire_id: call_id(saw, n) for n, (wire_id, _) in enumerate(turn.calls)}
        calls = tuple(replace(call, id=self._calls[wire_id]) for wire_id, call in turn.calls)
        self.bodies.append(Reply(turn.text, saw, calls))

    def add_tool_output(self, output: ToolOutput) -> None:
        self.bodies.append(Result(self._calls[output.call], output.text))

    def end_turn(self) -> None:
        if self._saw is not None:
            self.bodies.append(Ended("done", self._saw))
            self._saw = None
