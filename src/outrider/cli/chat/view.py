"""One session as a person sees it: takes the events that follow gives, says what to print and what is under way. Pure.

Deltas only hurry things along. What is printed ends as the entries say, whatever deltas were lost or came late.
"""

from collections.abc import Iterable, Sequence

from outrider.cli.chat.blocks import Blocks, split
from outrider.cli.chat.clean import clean, one_line, wrap
from outrider.cli.chat.shows import Block, Note, Person, Ran, Show, call_line, ran
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Bound,
    Changed,
    Compacted,
    Delta,
    Ended,
    Entry,
    Event,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.parts import Call, Usage
from outrider.core.plan import State, fold

Line = tuple[str, str]
"""A style and a line of text."""


class View:
    """What has happened in a session so far, and what of it is still under way."""

    def __init__(self, journal: Iterable[Entry] = ()) -> None:
        self.state = State()
        self.usage = Usage()
        """Tokens of the whole session."""
        self.cost: float | None = None
        """Dollars of the whole session, None when no price is known."""
        self.model = ""
        """What the last reply says it came from."""
        self.began = 0
        """When the open turn started, in milliseconds since 1970."""
        self.queued: list[str] = []
        """Inputs the model has not seen and that wait for its next step."""
        self.activity = ""
        self._calls: dict[str, Call] = {}
        self._is_asked = False
        """The model has its prompt already: an input that comes now waits for the step after."""
        self._blocks = Blocks()
        self._printed = ""
        self._owed = ""
        """Deltas of a reply that is already printed; they may still come."""
        self._is_held = False
        """Deltas of this turn were missed: from now on each reply is printed when it is there, whole."""
        for entry in journal:
            self._take_entry(entry)
        self._is_held = self.state.is_open

    @property
    def head(self) -> int:
        return self.state.head

    @property
    def is_open(self) -> bool:
        return self.state.is_open

    def take(self, event: Event) -> Sequence[Show]:
        """What to print now that this has happened."""
        return self._take_entry(event) if isinstance(event, Entry) else self._take_delta(event)

    def live(self, width: int, height: int) -> list[Line]:
        """What is under way, for the lines above the prompt: at most so many, none wider than that."""
        lines: list[Line] = [("class:call", f"⚙ {call_line(call, width - 6)} …") for call in self._calls.values()]
        if self.is_open and self.activity and not self._calls:
            lines.append(("class:dim", one_line(self.activity, width - 1)))
        lines += [("class:queued", one_line(f"› {text}", width - 10) + "  (queued)") for text in self.queued]
        lines = lines[-height:]
        left = height - len(lines)
        rest = self._blocks.rest[-(width * (left + 1)) :] if left > 0 else ""
        written = [("", line) for line in wrap(clean(rest).strip("\n"), width)][-left:] if rest.strip() else []
        return [*written, *lines]

    def stand_still(self) -> None:
        """The turn cannot go on for now, and no entry will tell."""
        self._blocks, self._is_held = Blocks(), True
        self.activity = "standing still"

    def _take_delta(self, delta: Delta) -> Sequence[Show]:
        if not self.is_open:
            return []  # It was on its way when the turn ended.
        match delta.kind:
            case "text":
                return self._take_text(delta.text)
            case "reasoning":
                self.activity = "thinking …"
            case "call":
                self.activity = f"about to {delta.text} …"
            case "note":
                self.activity = delta.text
            case "reset":
                self._blocks, self._owed, self._is_held = Blocks(), "", True
                self.activity = "writing …"
        return []

    def _take_text(self, text: str) -> Sequence[Show]:
        if self._owed.startswith(text):
            self._owed = self._owed[len(text) :]
            return []
        self._owed = ""
        self.activity = "writing …" if self._is_held else ""
        done = self._blocks.feed(text)
        if self._is_held:
            return []
        self._printed += "".join(done)
        return _blocks(done)

    def _take_entry(self, entry: Entry) -> Sequence[Show]:
        self.state = fold([entry], self.state)
        match entry.body:
            case Input(text=text):
                return self._take_input(text)
            case Started():
                self.began = entry.at
                self._ask_anew()
            case Resumed(crashed=crashed):
                self._ask_anew()
                return [*self._next_step(is_asked=True), Note(f"taken up again{' after a crash' if crashed else ''}")]
            case Reply():
                return self._take_reply(entry.body)
            case Result():
                return self._take_result(entry.body)
            case Asked(question=question):
                return [Note(f"asks: {question}", "warn")]
            case Compacted(usage=usage, cost=cost):
                self._spend(usage, cost)
                return [Note("the earlier part of the session was summarised")]
            case Ended():
                return self._end(entry.body)
            case Bound() | Begun() | Answered() | Changed():
                pass
        return []

    def _ask_anew(self) -> None:
        self._blocks, self._printed, self._owed, self._is_held = Blocks(), "", "", False
        self._is_asked, self.activity = True, "waiting for the model …"

    def _take_input(self, text: str) -> Sequence[Show]:
        if self._is_asked:
            self.queued.append(text)
            return []
        self._is_asked = self.is_open
        return [Person(text)]

    def _take_reply(self, reply: Reply) -> Sequence[Show]:
        self._spend(reply.usage, reply.cost)
        self.model = reply.model or self.model
        shows = self._settle(reply.text)
        if reply.cut:
            shows.append(Note(f"the provider ended this reply early: {reply.cut}", "warn"))
        self._calls = {call.id: call for call in reply.calls}
        self.activity = ""
        return [*shows, *([] if self._calls else self._next_step())]

    def _take_result(self, result: Result) -> Sequence[Show]:
        line: Ran = ran(self._calls.pop(result.call, None), result)
        if self._calls:
            return [line]
        self.activity = "waiting for the model …"
        return [line, *self._next_step(is_asked=True)]

    def _end(self, ended: Ended) -> Sequence[Show]:
        shows = self._settle(ended.partial) if ended.outcome == "interrupted" and ended.partial else []
        self._blocks, self._printed, self._is_held = Blocks(), "", False
        self._calls, self.activity = {}, ""
        shows += self._next_step()
        self._is_asked = False
        match ended.outcome:
            case "done":
                pass
            case "failed":
                shows.append(Note(f"✗ {ended.reason or 'the turn failed'}", "bad"))
            case "interrupted":
                shows.append(Note(f"■ {ended.reason or 'stopped'}", "warn"))
        return shows

    def _settle(self, text: str) -> list[Show]:
        """Print what is not printed yet of words that are now known whole."""
        shows: list[Show] = []
        heard, printed = self._printed + self._blocks.rest, self._printed
        self._owed = text[len(heard) :] if not self._is_held and text.startswith(heard) else ""
        self._blocks, self._printed = Blocks(), ""
        if not text.startswith(printed):
            shows.append(Note("the reply was begun anew:"))
            printed = ""
        return [*shows, *_blocks(split(text[len(printed) :]))]

    def _next_step(self, *, is_asked: bool = False) -> list[Show]:
        """The model reads everything so far next: what was queued is part of it now."""
        shows: list[Show] = [Person(text) for text in self.queued]
        self._is_asked = is_asked or bool(self.queued)
        if self.queued:
            self.activity = "waiting for the model …"
        self.queued = []
        return shows

    def _spend(self, usage: Usage, cost: float | None) -> None:
        self.usage += usage
        self.cost = self.cost if cost is None else (self.cost or 0.0) + cost


def _blocks(texts: Iterable[str]) -> list[Show]:
    return [Block(text) for text in texts if text.strip()]
