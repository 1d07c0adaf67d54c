"""One session as a person sees it: takes the events that follow gives, says what to print and what is under way. Pure.

Deltas only hurry things along. What is printed ends as the entries say, whatever deltas were lost or came late.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from outrider.cli.chat import answers
from outrider.cli.chat.blocks import Blocks, split
from outrider.cli.chat.calls import call_line, cut_off, denied, mark_of, ran
from outrider.cli.chat.clean import clean, one_line, wrap
from outrider.cli.chat.notices import bound, told
from outrider.cli.chat.shows import Block, Note, Person, Question, Show
from outrider.core.approve import NO
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

    def __init__(self, journal: Iterable[Entry] = (), steers: Callable[[str], bool] = lambda runtime: False) -> None:
        """`steers`: whether what is said in the midst of a turn reaches the runtime of this name at once."""
        self._steers = steers
        self._runtime = ""
        """What carries the turn."""
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
        self.tails: Mapping[str, Sequence[str]] = {}
        """The last lines of output of calls that run, by call; whoever can read them puts them here."""
        self._ended = 0
        """Where the last turn ended."""
        self._calls: dict[str, Call] = {}
        self._is_asked = False
        """The model has its prompt already: an input that comes now waits for the step after."""
        self._blocks = Blocks()
        self._printed = ""
        self._before = ""
        """What was printed of the reply before the person's last words, which it may leave behind or go on with."""
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

    @property
    def asking(self) -> Asked | None:
        """The question that a person is to answer next."""
        return next(iter(self.state.questions.values()), None)

    @property
    def running(self) -> Sequence[Call]:
        """Calls that run now; those that wait for an answer do not."""
        waiting = {asked.call for asked in self.state.questions.values()}
        return [call for call in self._calls.values() if call.id not in waiting]

    def take(self, event: Event) -> Sequence[Show]:
        """What to print now that this has happened."""
        return self._take_entry(event) if isinstance(event, Entry) else self._take_delta(event)

    def live(self, width: int, height: int) -> list[Line]:
        """What is under way, for the lines above the prompt: at most so many, none wider than that."""
        lines: list[Line] = [line for call in self.running for line in self._call_lines(call, width)]
        if self.is_open and self.activity and not self._calls:
            lines.append(("class:dim", one_line(self.activity, width - 1)))
        if self.asking:
            lines.append(("class:ask", one_line(f"? your answer: {answers.offer(self.asking.choices)}", width)))
        lines += [("class:queued", one_line(f"› {text}", width - 10) + "  (queued)") for text in self.queued]
        lines = lines[-height:]
        left = height - len(lines)
        rest = self._blocks.rest[-(width * (left + 1)) :] if left > 0 else ""
        written = [("", line) for line in wrap(clean(rest).strip("\n"), width)][-left:] if rest.strip() else []
        return [*written, *lines]

    def _call_lines(self, call: Call, width: int) -> Iterable[Line]:
        yield "class:call", f"{mark_of(call)} {call_line(call, width - 6)} …"
        for line in self.tails.get(call.id, ()):
            yield "class:dim", f"  │ {one_line(line, width - 4)}"

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

    def _take_entry(self, entry: Entry) -> Sequence[Show]:  # noqa: C901 (one arm for each kind of entry)
        before, self.state = self.state, fold([entry], self.state)
        asks = before.questions
        match entry.body:
            case Input():
                return self._take_input(entry.body)
            case Started(runtime=runtime):
                self.began, self._runtime = entry.at, runtime
                self._ask_anew()
            case Resumed(crashed=crashed):
                self._ask_anew()
                if self.asking:
                    return []  # Nothing is taken up before there is an answer.
                return [*self._next_step(is_asked=True), Note(f"taken up again{' after a crash' if crashed else ''}")]
            case Reply():
                return self._take_reply(entry.body)
            case Result():
                return self._take_result(entry.body)
            case Asked():
                return [] if asks else self.question()
            case Answered(ask=ask, answer=answer, person=person) if ask in asks:
                note = answers.given(answer, person)
                return [note, *self.question()] if ask == next(iter(asks)) else [note]
            case Compacted(usage=usage, cost=cost):
                self._spend(usage, cost)
                return [Note("the earlier part of the session was summarised")]
            case Ended():
                self._ended = entry.seq
                return self._end(entry.body, before.begun)
            case Bound():
                return bound(before.threads.get(entry.body.runtime), entry.body, self._ended)
            case Begun() | Answered() | Changed():
                pass
        return []

    def _ask_anew(self) -> None:
        self._blocks, self._printed, self._owed, self._is_held = Blocks(), "", "", False
        self._before = ""
        self._is_asked, self.activity = True, "waiting for the model …"

    def question(self) -> Sequence[Show]:
        """The question that is to be answered next, if there is one."""
        asked = self.asking
        return [Question(asked.ask, asked.question, asked.choices)] if asked else []

    def _take_input(self, body: Input) -> Sequence[Show]:
        if body.source == "task":
            self._is_asked = self._is_asked or self.is_open
            return told(body.text)  # Told at once, whether or not the model has time for it.
        if self._is_asked and self._steers(self._runtime):
            return [*self._break_off(), Person(body.text)]
        if self._is_asked:
            self.queued.append(body.text)
            return []
        self._is_asked = self.is_open
        return [Person(body.text)]

    def _break_off(self) -> Sequence[Show]:
        """Print what was said up to here: what comes next may be its end, or begin with an answer to something else."""
        if self._is_held:
            return []
        rest = self._blocks.rest
        self._before += self._printed + rest
        self._blocks, self._printed = Blocks(), ""
        return _blocks(split(rest))

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
        call = self._calls.pop(result.call, None)
        lines = denied(call) if self.state.answers.get(result.call) == NO else ran(call, result)
        if self._calls:
            return lines
        self.activity = "waiting for the model …"
        return [*lines, *self._next_step(is_asked=True)]

    def _end(self, ended: Ended, begun: Collection[str]) -> Sequence[Show]:
        shows = self._settle(ended.partial) if ended.outcome == "interrupted" and ended.partial else []
        self._blocks, self._printed, self._before, self._is_held = Blocks(), "", "", False
        for call in self._calls.values():
            shows += cut_off(call) if call.id in begun else ()
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
        if self._before and text.startswith(self._before + heard):
            heard, printed = self._before + heard, self._before + printed
        self._before = ""
        self._owed = text[len(heard) :] if not self._is_held and text.startswith(heard) else ""
        self._blocks, self._printed = Blocks(), ""
        if not text.startswith(printed):
            shows.append(Note("the reply was begun anew:"))
            printed = ""
        return [*shows, *_blocks(split(text[len(printed) :]))]

    def _next_step(self, *, is_asked: bool = False) -> list[Show]:
        """The model reads everything so far next: what was queued is part of it now."""
        shows: list[Show] = [Person(text) for text in self.queued]
        self._is_asked = is_asked or self.state.has_unseen
        if self._is_asked:
            self.activity = "waiting for the model …"
        self.queued = []
        return shows

    def _spend(self, usage: Usage, cost: float | None) -> None:
        self.usage += usage
        self.cost = self.cost if cost is None else (self.cost or 0.0) + cost


def _blocks(texts: Iterable[str]) -> list[Show]:
    return [Block(text) for text in texts if text.strip()]
