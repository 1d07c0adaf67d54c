"""The journal as the model sees it.

Each prompt extends the one before it until a compaction, so provider caches keep working: inputs that arrive while the
model writes come after that reply's results. Every call is closed, wherever the journal was cut.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from outrider.core.events import Begun, Compacted, Ended, Entry, Input, Reply, Result, Source
from outrider.core.types import Call, Image, Reasoning, ToolSpec

UNKNOWN = "interrupted: this may or may not have happened; check before trying again"
NOT_RUN = "not run: the turn ended before this call began"
STOPPED = "[The person stopped this turn here.]"
SUMMARY = "[The earlier part of this session, summarised:]\n\n"


class UserMessage(Struct, frozen=True):
    """Words from outside: a person's, or a notice's."""

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
    """All that a model is asked with."""

    system: str
    messages: Sequence[Message]
    """Append-only between two compactions; the same message stays the same object, so its rendering can be kept."""
    tools: tuple[ToolSpec, ...] = ()
    saw: int = 0
    tail: str = ""
    """Words for this step only (say, which tasks run): shown last, never part of a later prompt."""


class Transcript:
    """The messages of one session, grown entry by entry. The past is only ever replaced by a compaction."""

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
                    self._close_when_complete()
                case Ended():
                    self._end(entry.seq, entry.body)
                case Compacted(upto=upto, summary=summary):
                    self._compact(upto, summary)
                case _:
                    pass

    def messages(self) -> Sequence[Message]:
        """What a model asked now would read. All calls are closed; unseen inputs come last."""
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

    def _take_inputs(self, saw: int) -> None:
        for seq, message in self._inputs:
            if seq <= saw:
                self._marks.append((seq, len(self._messages)))
                self._messages.append(message)
        self._inputs = [(seq, message) for seq, message in self._inputs if seq > saw]

    def _close_when_complete(self) -> None:
        if self._open and all(call.id in self._results for call in self._open.calls):
            self._close()

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
            said = f"{ended.partial}\n\n{STOPPED}" if ended.partial else STOPPED
            self._marks.append((seq, len(self._messages)))
            self._messages.append(AssistantMessage(said))

    def after(self, upto: int) -> Sequence[Message]:
        """What was said and done after this entry; inputs that nobody has seen are not among it."""
        return self._messages[self._keep(upto) :]

    def before(self, upto: int) -> Sequence[Message]:
        """The messages that a compaction up to this entry replaces."""
        return self._messages[: self._keep(upto)]

    def cuts(self) -> Sequence[tuple[int, int]]:
        """Where a compaction may cut: `(upto, how many messages go)`, oldest first."""
        found: list[tuple[int, int]] = []
        newest = 0
        for seq, index in self._marks:
            if index and (not found or found[-1][1] < index):
                found.append((newest, index))
            newest = max(newest, seq)
        return [(upto, index) for upto, index in found if self._keep(upto) == index]

    def _keep(self, upto: int) -> int:
        return next((index for seq, index in self._marks if seq > upto), len(self._messages))

    def _compact(self, upto: int, summary: str) -> None:
        self._close()
        keep = self._keep(upto)
        self._messages = [UserMessage(SUMMARY + summary), *self._messages[keep:]]
        self._marks = [(seq, index - keep + 1) for seq, index in self._marks if seq > upto]
        self._marks.insert(0, (upto, 0))


def transcript(journal: Iterable[Entry]) -> Sequence[Message]:
    """The messages of a whole journal."""
    whole = Transcript()
    whole.add(journal)
    return whole.messages()
