"""How a call and its result read in a line or two. Pure.

What happened to a task, as a person reads it: made from its notice by code, without any model. Pure.

One session as a person sees it: takes the events that follow gives, says what to print and what is under way. Pure.

Deltas only hurry things along. What is printed ends as the entries say, whatever deltas were lost or came late.

The end of an earlier session in a few lines, for whoever comes back to it. Pure.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from outrider.cli.chat import display
from outrider.cli.chat.display import DisplayItem, Note, OutputLines, QuestionText, ReplyBlock, Tone, ToolLine, UserText
from outrider.cli.chat.markdown_blocks import MarkdownSplitter, split_blocks
from outrider.cli.chat.sanitize import sanitize, sanitize_line, wrap
from outrider.cli.render import CommandResult, parse_command_result
from outrider.core.approvals import NO
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
from outrider.core.plan import State, fold
from outrider.core.types import Call, Usage

SHELL = "shell"
_MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "url", "name")
"""Which argument says best what a call is about."""
_FAILED_OUTPUT_LINES = 3
"""Lines of output shown of a command that failed."""


def call_symbol(call: Call | None) -> str:
    """What stands before a call's line."""
    return "$" if call and call.tool == SHELL and not call.broken else "⚙"


def call_line(call: Call, longest: int = 60) -> str:
    """A call in a few words, e.g. `read README.md`; of a command, the command alone."""
    if call.tool == "tasks":
        return sanitize_line(f"tasks {call.args.get('action', '')} {call.args.get('task', '')}", longest)
    telling = [call.args[name] for name in _MAIN_ARGUMENTS if name in call.args] or list(call.args.values())
    words = next((value for value in telling if isinstance(value, str | int | float) and str(value).strip()), "")
    return sanitize_line(str(words) if call_symbol(call) == "$" else f"{call.tool} {words}", longest)


def result_items(call: Call | None, result: Result) -> Sequence[DisplayItem]:
    """A call's line, once its result is known; of a command that failed, also the end of its output."""
    what, mark = call_line(call) if call else "a call", call_symbol(call)
    if result.failed:
        return [ToolLine(what, sanitize_line(result.details or result.text or "failed", 160), failed=True, symbol=mark)]
    outcome = parse_command_result(result) if call and call.tool in (SHELL, "delegate") else CommandResult()
    match outcome.status:
        case "background_started":
            return [ToolLine(what, f"runs as {sanitize_line(outcome.task)}", symbol=mark)]
        case "auto_backgrounded":
            return [ToolLine(what, f"goes on as {sanitize_line(outcome.task)}", symbol=mark)]
        case _:
            line = ToolLine(what, sanitize_line(result.details, 80), symbol=mark)
            tail = last_lines(outcome.output or "", _FAILED_OUTPUT_LINES) if outcome.exit_code else ()
            return [line, OutputLines(tail)] if tail else [line]


def denied_items(call: Call | None) -> Sequence[DisplayItem]:
    """The line of a call that a person did not allow."""
    return [ToolLine(call_line(call) if call else "a call", "not run", failed=True, symbol=call_symbol(call))]


def cut_off_items(call: Call) -> Sequence[DisplayItem]:
    """The line of a call whose turn ended before it did."""
    return [ToolLine(call_line(call), "cut off", failed=True, symbol=call_symbol(call))]


def last_lines(output: str, most: int, longest: int = 200) -> tuple[str, ...]:
    """The last lines of an output that hold something, each cleaned and cut."""
    # What a carriage return has written over is not seen in a terminal either.
    ends = [line.rstrip("\r").rpartition("\r")[2] for line in output[-most * 2_000 :].split("\n")]
    lines = [sanitize_line(line, longest) for line in ends]
    return tuple([line for line in lines if line][-most:])


_NOTICE_HEAD = re.compile(r"\[Task (\S+) (.+?)(?:: (.*))?\]")
_NOTICE_OUTPUT = re.compile(r"\| |no output$|last output")
_STATE_TONES: dict[str, Tone] = {"succeeded": "good", "failed": "bad", "was lost": "bad"}
_TONE_SYMBOLS: dict[Tone, str] = {"good": "✓", "bad": "✗"}
_NOTICE_OUTPUT_LINES = 5
"""Lines of output that are shown."""


def task_notice_items(notice: str) -> Sequence[DisplayItem]:
    """A line on the task, and the end of its output."""
    quoted = [line[2:] for line in notice.split("\n") if line.startswith("| ")]
    lines = [sanitize_line(line, 200) for line in quoted[-_NOTICE_OUTPUT_LINES:] if line.strip()]
    head = Note(*_render_notice_head(notice))
    return [head, OutputLines(tuple(lines))] if lines else [head]


def background_task_note(notice: str, session: str) -> Note:
    """The same in one line, for a task of another session."""
    text, tone = _render_notice_head(notice)
    name = sanitize_line(session)
    return Note(f"{text}  (session {name}; /switch {name})", tone)


def history_sent_items(before: Bound | None, now: Bound, ended: int) -> Sequence[DisplayItem]:
    """A line when another runtime is given what happened without it. `ended` is where the last turn ended."""
    known = before.saw if before and before.thread == now.thread else 0
    # One that knows no more than before was only written down again.
    if not known < ended <= now.saw:
        return []
    return [Note(f"{sanitize_line(now.runtime, 40)} was given what it had not seen of this session, up to #{ended}")]


def _render_notice_head(notice: str) -> tuple[str, Tone]:
    first, *rest = notice.split("\n")
    found = _NOTICE_HEAD.fullmatch(first)
    if found is None:
        return f"● {sanitize_line(first, 160)}", "plain"
    task, happened, about = found[1], found[2], found[3] or ""
    fields = _parse_notice_fields(rest)
    tone: Tone = _STATE_TONES.get(happened, "warn")
    code = fields.get("exit code", "")
    figures = ", ".join(part for part in (f"exit {code}" if code else "", fields.get("duration", "")) if part)
    what = fields.get("description") or fields.get("command", "")
    parts = [f"{task} {happened}", about, what, figures, fields.get("reason", "")]
    if happened.startswith("seems to wait"):
        parts.append(f"/write {task} TEXT answers it")
    told = " · ".join(sanitize_line(part, 80) for part in parts if part)
    return f"{_TONE_SYMBOLS.get(tone, '●')} {told}", tone


def _parse_notice_fields(lines: Sequence[str]) -> dict[str, str]:
    """What our own lines say. They stand before the output, which is somebody else's."""
    fields: dict[str, str] = {}
    for line in lines:
        if _NOTICE_OUTPUT.match(line):
            break
        name, mark, value = line.partition(": ")
        if mark:
            fields[name] = value
    return fields


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
                ("class:ask", sanitize_line(f"? your answer: {display.answer_hint(self.open_question.choices)}", width))
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

    def _apply_entry(self, entry: Entry) -> Sequence[DisplayItem]:
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
                note = display.answer_note(answer, person)
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


_RECAP_EXCHANGES = 2
_MAX_RECAP_BLOCK_CHARS = 1_200
"""Characters of one block."""
_MAX_RECAP_ITEMS = 12
"""Things shown in all."""


def recap(journal: Iterable[Entry], steers: Callable[[str], bool] = lambda runtime: False) -> Sequence[DisplayItem]:
    """What was said last, the calls left out, and so is a question that waits: whoever opens a session shows that.

    `steers` as in `View`.
    """
    view, shows = ChatSessionView(steers=steers), list[DisplayItem]()
    for entry in journal:
        shows += view.apply(entry)
    said = [
        _shorten(show)
        for show in _without_calls(shows)
        if not (isinstance(show, QuestionText) and show.question_id in view.state.questions)
    ]
    begins = [index for index, show in enumerate(said) if isinstance(show, UserText)]
    if not begins:
        return []
    start = begins[-_RECAP_EXCHANGES] if len(begins) >= _RECAP_EXCHANGES else begins[0]
    last = said[start:]
    if len(last) > _MAX_RECAP_ITEMS:
        last = [last[0], Note("…"), *last[-(_MAX_RECAP_ITEMS - 2) :]]
    return [Note("earlier in this session:"), *last] if start else last


def _without_calls(shows: Iterable[DisplayItem]) -> Iterable[DisplayItem]:
    is_of_call = False
    for show in shows:
        is_of_call = isinstance(show, ToolLine) or (is_of_call and isinstance(show, OutputLines))
        if not is_of_call:
            yield show


def _shorten(show: DisplayItem) -> DisplayItem:
    match show:
        case ReplyBlock(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return Note(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …", "plain")
        case UserText(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return UserText(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …")
        case _:
            return show
