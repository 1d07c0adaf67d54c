"""The prompt: a session's journal as messages for a model.

Until a compaction, each prompt extends the one before it, so that provider caches keep working: inputs that arrive
while the model writes come after the results of that reply. Every call has a result, wherever the journal ends.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from outrider.core.events import Begun, Compacted, Ended, Entry, Input, Reply, Result, Source, completed_call
from outrider.core.types import Call, Image, Reasoning, ToolSpec

UNKNOWN = "interrupted: this may or may not have happened; check before trying again"
NOT_RUN = "not run: the turn ended before this call started"
STOPPED = "[The person stopped this turn here.]"
SUMMARY = "[The earlier part of this session, summarised:]\n\n"


class UserMessage(Struct, frozen=True):
    """A message from a person, or a notice."""

    text: str
    source: Source = "person"
    images: tuple[Image, ...] = ()


class AssistantMessage(Struct, frozen=True):
    """One earlier reply."""

    text: str
    calls: tuple[Call, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()


class ToolMessage(Struct, frozen=True):
    """The results of all calls of the reply before it, in the order of the calls."""

    results: tuple[Result, ...]


Message = UserMessage | AssistantMessage | ToolMessage


class Prompt(Struct, frozen=True):
    """A complete request to a model."""

    system: str
    messages: Sequence[Message]
    """Append-only between two compactions. A message stays the same object, so that its rendering can be cached."""
    tools: tuple[ToolSpec, ...] = ()
    saw: int = 0
    tail: str = ""
    """Text for this step only, e.g. the running tasks: shown last, and never part of a later prompt."""


class Transcript:
    """The messages of one session, extended entry by entry. Only a compaction replaces earlier messages."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._inputs: list[tuple[int, UserMessage]] = []
        self._open: Reply | None = None
        self._results: dict[str, Result] = {}
        self._begun: set[str] = set()
        self._marks: list[tuple[int, int]] = []

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            match entry.body:
                case Input(text=text, source=source, images=images):
                    self._inputs.append((entry.seq, UserMessage(text, source, images)))
                case Reply():
                    self._add_reply(entry.seq, entry.body)
                case Begun(call=call):
                    self._begun.add(call)
                case Result():
                    self._results[entry.body.call] = entry.body
                    self._complete_call(entry.body)
                    if self._open and all(call.id in self._results for call in self._open.calls):
                        self._close()
                case Ended():
                    self._end(entry.seq, entry.body)
                case Compacted(upto=upto, summary=summary):
                    self._compact(upto, summary)
                case _:
                    pass

    def messages(self) -> Sequence[Message]:
        """The messages for a model now. Every call has a result; unseen inputs come last."""
        return [*self._messages, *self._closing(), *(message for _, message in self._inputs)]

    def unseen(self) -> Sequence[tuple[int, UserMessage]]:
        """Inputs that no reply has seen, each with its number."""
        return tuple(self._inputs)

    def _add_reply(self, seq: int, reply: Reply) -> None:
        self._close()
        self._take_inputs(reply.saw)
        if reply.text or reply.calls or reply.reasoning:
            self._marks.append((seq, len(self._messages)))
            self._messages.append(AssistantMessage(reply.text, reply.calls, reply.reasoning))
        self._open = reply if reply.calls else None

    def _complete_call(self, result: Result) -> None:
        """Replace arguments that were not known yet. An external program made the call: no prompt has shown it."""
        last = self._messages[-1] if self._messages else None
        if result.args is not None and isinstance(last, AssistantMessage):
            calls = tuple(completed_call(call, result) if call.id == result.call else call for call in last.calls)
            self._messages[-1] = AssistantMessage(last.text, calls, last.reasoning)

    def _take_inputs(self, saw: int) -> None:
        for seq, message in self._inputs:
            if seq <= saw:
                self._marks.append((seq, len(self._messages)))
                self._messages.append(message)
        self._inputs = [(seq, message) for seq, message in self._inputs if seq > saw]

    def _close(self) -> None:
        self._messages += self._closing()
        self._open = None
        self._results.clear()
        self._begun.clear()

    def _closing(self) -> list[Message]:
        if not self._open:
            return []
        return [ToolMessage(tuple(self._results.get(call.id) or self._unfinished(call) for call in self._open.calls))]

    def _unfinished(self, call: Call) -> Result:
        return Result(call.id, UNKNOWN if call.id in self._begun else NOT_RUN, failed=True)

    def _end(self, seq: int, ended: Ended) -> None:
        self._close()
        self._take_inputs(ended.saw)
        if ended.outcome == "interrupted":
            text = f"{ended.partial}\n\n{STOPPED}" if ended.partial else STOPPED
            self._marks.append((seq, len(self._messages)))
            self._messages.append(AssistantMessage(text))

    def after(self, upto: int) -> Sequence[Message]:
        """The messages after this entry, without unseen inputs."""
        return self._messages[self._keep(upto) :]

    def before(self, upto: int) -> Sequence[Message]:
        """The messages that a compaction up to this entry replaces."""
        return self._messages[: self._keep(upto)]

    def cuts(self) -> Sequence[tuple[int, int]]:
        """Where a compaction may cut: `(upto, how many messages go)`, oldest first."""
        cuts: list[tuple[int, int]] = []
        newest = 0
        for seq, index in self._marks:
            if index and (not cuts or cuts[-1][1] < index):
                cuts.append((newest, index))
            newest = max(newest, seq)
        return [(upto, index) for upto, index in cuts if self._keep(upto) == index]

    def _keep(self, upto: int) -> int:
        return next((index for seq, index in self._marks if seq > upto), len(self._messages))

    def _compact(self, upto: int, summary: str) -> None:
        self._close()
        keep = self._keep(upto)
        self._messages = [UserMessage(SUMMARY + summary), *self._messages[keep:]]
        self._marks = [(seq, index - keep + 1) for seq, index in self._marks if seq > upto]
        self._marks.insert(0, (upto, 0))


def transcript(journal: Iterable[Entry]) -> Sequence[Message]:
    """The messages of a complete journal."""
    messages = Transcript()
    messages.add(journal)
    return messages.messages()
