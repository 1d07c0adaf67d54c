"""One session as a person sees it: takes the events that follow gives, says what to print and what is under way. Pure.

Deltas only hurry things along. What is printed ends as the entries say, whatever deltas were lost or came late.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from outrider.cli.chat import answers
from outrider.cli.chat.blocks import MarkdownSplitter, split_blocks
from outrider.cli.chat.calls import call_line, call_symbol, cut_off_items, denied_items, result_items
from outrider.cli.chat.clean import sanitize, sanitize_line, wrap
from outrider.cli.chat.notices import history_sent_items, task_notice_items
from outrider.cli.chat.shows import DisplayItem, Note, QuestionText, ReplyBlock, UserText
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

StyledLine = tuple[str, str]
"""A style and a line of text."""


class ChatSessionView:
    """What has happened in a session so far, and what of it is still under way."""

    def __init__(self, journal: Iterable[Entry] = (), steers: Callable[[str], bool] = lambda runtime: False) -> None:
        """`steers`: whether what is said in the midst of a turn reaches the runtime of this name at once."""
        self._can_steer = steers
        self._runtime = ""
        """What carries the turn."""
        self.state = State()
        self.usage = Usage()
        """Tokens of the whole session."""
        self.cost: float | None = None
        """Dollars of the whole session, None when no price is known."""
        self.model = ""
        """What the last reply says it came from."""
        self.started_at = 0
        """When the open turn started, in milliseconds since 1970."""
        self.queued: list[str] = []
        """Inputs the model has not seen and that wait for its next step."""
        self.activity = ""
        self.output_tails: Mapping[str, Sequence[str]] = {}
        """The last lines of output of calls that run, by call; whoever can read them puts them here."""
        self._last_turn_end = 0
        """Where the last turn ended."""
        self._calls: dict[str, Call] = {}
        self._is_prompt_sent = False
        """The model has its prompt already: an input that comes now waits for the step after."""
        self._splitter = MarkdownSplitter()
        self._printed = ""
        self._printed_before_input = ""
        """What was printed of the reply before the person's last words, which it may leave behind or go on with."""
        self._late_text = ""
        """Deltas of a reply that is already printed; they may still come."""
        self._prints_whole_replies = False
        """Deltas of this turn were missed: from now on each reply is printed when it is there, whole."""
        for entry in journal:
            self._apply_entry(entry)
        self._prints_whole_replies = self.state.is_open

    @property
    def head(self) -> int:
        return self.state.head

    @property
    def is_open(self) -> bool:
        return self.state.is_open

    @property
    def open_question(self) -> Asked | None:
        """The question that a person is to answer next."""
        return next(iter(self.state.questions.values()), None)

    @property
    def running_calls(self) -> Sequence[Call]:
        """Calls that run now; those that wait for an answer do not."""
        waiting = {asked.call for asked in self.state.questions.values()}
        return [call for call in self._calls.values() if call.id not in waiting]

    def apply(self, event: Event) -> Sequence[DisplayItem]:
        """What to print now that this has happened."""
        return self._apply_entry(event) if isinstance(event, Entry) else self._apply_delta(event)

    def live_lines(self, width: int, height: int) -> list[StyledLine]:
        """What is under way, for the lines above the prompt: at most so many, none wider than that."""
        lines: list[StyledLine] = [line for call in self.running_calls for line in self._call_lines(call, width)]
        if self.is_open and self.activity and not self._calls:
            lines.append(("class:dim", sanitize_line(self.activity, width - 1)))
        if self.open_question:
            lines.append(
                ("class:ask", sanitize_line(f"? your answer: {answers.answer_hint(self.open_question.choices)}", width))
            )
        lines += [("class:queued", sanitize_line(f"› {text}", width - 10) + "  (queued)") for text in self.queued]
        lines = lines[-height:]
        left = height - len(lines)
        rest = self._splitter.pending_text[-(width * (left + 1)) :] if left > 0 else ""
        written = [("", line) for line in wrap(sanitize(rest).strip("\n"), width)][-left:] if rest.strip() else []
        return [*written, *lines]

    def _call_lines(self, call: Call, width: int) -> Iterable[StyledLine]:
        yield "class:call", f"{call_symbol(call)} {call_line(call, width - 6)} …"
        for line in self.output_tails.get(call.id, ()):
            yield "class:dim", f"  │ {sanitize_line(line, width - 4)}"

    def mark_stalled(self) -> None:
        """The turn cannot go on for now, and no entry will tell."""
        self._splitter, self._prints_whole_replies = MarkdownSplitter(), True
        self.activity = "standing still"

    def _apply_delta(self, delta: Delta) -> Sequence[DisplayItem]:
        if not self.is_open:
            return []  # It was on its way when the turn ended.
        match delta.kind:
            case "text":
                return self._apply_text(delta.text)
            case "reasoning":
                self.activity = "thinking …"
            case "call":
                self.activity = f"about to {delta.text} …"
            case "note":
                self.activity = delta.text
            case "reset":
                self._splitter, self._late_text, self._prints_whole_replies = MarkdownSplitter(), "", True
                self.activity = "writing …"
        return []

    def _apply_text(self, text: str) -> Sequence[DisplayItem]:
        if self._late_text.startswith(text):
            self._late_text = self._late_text[len(text) :]
            return []
        self._late_text = ""
        self.activity = "writing …" if self._prints_whole_replies else ""
        done = self._splitter.feed(text)
        if self._prints_whole_replies:
            return []
        self._printed += "".join(done)
        return _reply_blocks(done)

    def _apply_entry(self, entry: Entry) -> Sequence[DisplayItem]:  # noqa: C901 (one arm for each kind of entry)
        before, self.state = self.state, fold([entry], self.state)
        asks = before.questions
        match entry.body:
            case Input():
                return self._apply_input(entry.body)
            case Started(runtime=runtime):
                self.started_at, self._runtime = entry.at, runtime
                self._reset_reply()
            case Resumed(crashed=crashed):
                self._reset_reply()
                if self.open_question:
                    return []  # Nothing is taken up before there is an answer.
                return [
                    *self._release_queued(is_asked=True),
                    Note(f"taken up again{' after a crash' if crashed else ''}"),
                ]
            case Reply():
                return self._apply_reply(entry.body)
            case Result():
                return self._apply_result(entry.body)
            case Asked():
                return [] if asks else self.question_items()
            case Answered(ask=ask, answer=answer, person=person) if ask in asks:
                note = answers.answer_note(answer, person)
                return [note, *self.question_items()] if ask == next(iter(asks)) else [note]
            case Compacted(usage=usage, cost=cost):
                self._add_usage(usage, cost)
                return [Note("the earlier part of the session was summarised")]
            case Ended():
                self._last_turn_end = entry.seq
                return self._apply_end(entry.body, before.begun)
            case Bound():
                return history_sent_items(before.threads.get(entry.body.runtime), entry.body, self._last_turn_end)
            case Begun() | Answered() | Changed():
                pass
        return []

    def _reset_reply(self) -> None:
        self._splitter, self._printed, self._late_text, self._prints_whole_replies = MarkdownSplitter(), "", "", False
        self._printed_before_input = ""
        self._is_prompt_sent, self.activity = True, "waiting for the model …"

    def question_items(self) -> Sequence[DisplayItem]:
        """The question that is to be answered next, if there is one."""
        asked = self.open_question
        return [QuestionText(asked.ask, asked.question, asked.choices)] if asked else []

    def _apply_input(self, body: Input) -> Sequence[DisplayItem]:
        if body.source == "task":
            self._is_prompt_sent = self._is_prompt_sent or self.is_open
            return task_notice_items(body.text)  # Told at once, whether or not the model has time for it.
        if self._is_prompt_sent and self._can_steer(self._runtime):
            return [*self._flush_partial_reply(), UserText(body.text)]
        if self._is_prompt_sent:
            self.queued.append(body.text)
            return []
        self._is_prompt_sent = self.is_open
        return [UserText(body.text)]

    def _flush_partial_reply(self) -> Sequence[DisplayItem]:
        """Print what was said up to here: what comes next may be its end, or begin with an answer to something else."""
        if self._prints_whole_replies:
            return []
        rest = self._splitter.pending_text
        self._printed_before_input += self._printed + rest
        self._splitter, self._printed = MarkdownSplitter(), ""
        return _reply_blocks(split_blocks(rest))

    def _apply_reply(self, reply: Reply) -> Sequence[DisplayItem]:
        self._add_usage(reply.usage, reply.cost)
        self.model = reply.model or self.model
        shows = self._finish_reply(reply.text)
        if reply.cut:
            shows.append(Note(f"the provider ended this reply early: {reply.cut}", "warn"))
        self._calls = {call.id: call for call in reply.calls}
        self.activity = ""
        return [*shows, *([] if self._calls else self._release_queued())]

    def _apply_result(self, result: Result) -> Sequence[DisplayItem]:
        call = self._calls.pop(result.call, None)
        lines = denied_items(call) if self.state.answers.get(result.call) == NO else result_items(call, result)
        if self._calls:
            return lines
        self.activity = "waiting for the model …"
        return [*lines, *self._release_queued(is_asked=True)]

    def _apply_end(self, ended: Ended, begun: Collection[str]) -> Sequence[DisplayItem]:
        shows = self._finish_reply(ended.partial) if ended.outcome == "interrupted" and ended.partial else []
        self._splitter, self._printed, self._printed_before_input, self._prints_whole_replies = (
            MarkdownSplitter(),
            "",
            "",
            False,
        )
        for call in self._calls.values():
            shows += cut_off_items(call) if call.id in begun else ()
        self._calls, self.activity = {}, ""
        shows += self._release_queued()
        self._is_prompt_sent = False
        match ended.outcome:
            case "done":
                pass
            case "failed":
                shows.append(Note(f"✗ {ended.reason or 'the turn failed'}", "bad"))
            case "interrupted":
                shows.append(Note(f"■ {ended.reason or 'stopped'}", "warn"))
        return shows

    def _finish_reply(self, text: str) -> list[DisplayItem]:
        """Print what is not printed yet of words that are now known whole."""
        shows: list[DisplayItem] = []
        heard, printed = self._printed + self._splitter.pending_text, self._printed
        if self._printed_before_input and text.startswith(self._printed_before_input + heard):
            heard, printed = self._printed_before_input + heard, self._printed_before_input + printed
        self._printed_before_input = ""
        self._late_text = text[len(heard) :] if not self._prints_whole_replies and text.startswith(heard) else ""
        self._splitter, self._printed = MarkdownSplitter(), ""
        if not text.startswith(printed):
            shows.append(Note("the reply was begun anew:"))
            printed = ""
        return [*shows, *_reply_blocks(split_blocks(text[len(printed) :]))]

    def _release_queued(self, *, is_asked: bool = False) -> list[DisplayItem]:
        """The model reads everything so far next: what was queued is part of it now."""
        shows: list[DisplayItem] = [UserText(text) for text in self.queued]
        self._is_prompt_sent = is_asked or self.state.has_unseen
        if self._is_prompt_sent:
            self.activity = "waiting for the model …"
        self.queued = []
        return shows

    def _add_usage(self, usage: Usage, cost: float | None) -> None:
        self.usage += usage
        self.cost = self.cost if cost is None else (self.cost or 0.0) + cost


def _reply_blocks(texts: Iterable[str]) -> list[DisplayItem]:
    return [ReplyBlock(text) for text in texts if text.strip()]
