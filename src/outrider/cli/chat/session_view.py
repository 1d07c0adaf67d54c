"""One session as the user sees it: turns events into display items and live lines. Pure.

Deltas only make text appear sooner. What is printed in the end is what the entries say, whatever deltas were lost or
late. Calls, results and notices of tasks take a line or two each; `recap` shows the end of an earlier session.
"""

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
    completed_call,
)
from outrider.core.plan import State, fold
from outrider.core.tasks import TaskState
from outrider.core.text import duration, escape_invisible, plural
from outrider.core.types import Call, Usage

SHELL = "shell"
_MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "url", "name")
"""The arguments that best describe a call, in order of preference."""
_FAILED_OUTPUT_LINES = 3
"""Lines of output shown for a command that failed."""


def call_symbol(call: Call | None) -> str:
    return "$" if call and call.tool == SHELL and not call.broken else "⚙"


def call_line(call: Call, longest: int = 60) -> str:
    """A call in a few words, e.g. `read README.md`; for a shell call, the command alone."""
    if call.tool == "tasks":
        return sanitize_line(
            escape_invisible(f"tasks {call.args.get('action', '')} {call.args.get('task', '')}"), longest
        )
    values = [call.args[name] for name in _MAIN_ARGUMENTS if name in call.args] or list(call.args.values())
    main = next((value for value in values if isinstance(value, str | int | float) and str(value).strip()), "")
    return sanitize_line(escape_invisible(str(main) if call_symbol(call) == "$" else f"{call.tool} {main}"), longest)


def result_items(call: Call | None, result: Result) -> Sequence[DisplayItem]:
    """A call and its result; for a command that failed, also the end of its output."""
    what, mark = call_line(call) if call else "a call", call_symbol(call)
    if result.failed:
        return [ToolLine(what, sanitize_line(result.details or result.text or "failed", 160), failed=True, symbol=mark)]
    outcome = parse_command_result(result) if call and call.tool in (SHELL, "delegate") else CommandResult()
    match outcome.status:
        case "background_started":
            return [ToolLine(what, f"started as task {sanitize_line(outcome.task)}", symbol=mark)]
        case "auto_backgrounded":
            return [ToolLine(what, f"continues as task {sanitize_line(outcome.task)}", symbol=mark)]
        case _:
            line = ToolLine(what, sanitize_line(result.details, 80), symbol=mark)
            tail = last_lines(outcome.output or "", _FAILED_OUTPUT_LINES) if outcome.exit_code else ()
            return [line, OutputLines(tail)] if tail else [line]


def unfinished_call(call: Call | None, why: str) -> ToolLine:
    """A call without a result of its own."""
    return ToolLine(call_line(call) if call else "a call", why, failed=True, symbol=call_symbol(call))


def last_lines(output: str, most: int, longest: int = 200) -> tuple[str, ...]:
    """The last non-empty lines of an output, each sanitized and clipped."""
    # Text before a carriage return is overwritten in a terminal too.
    ends = [line.rstrip("\r").rpartition("\r")[2] for line in output[-most * 2_000 :].split("\n")]
    lines = [sanitize_line(line, longest) for line in ends]
    return tuple([line for line in lines if line][-most:])


_STATE_TONES: dict[TaskState, Tone] = {"succeeded": "good", "failed": "bad", "lost": "bad"}
_TONE_SYMBOLS: dict[Tone, str] = {"good": "✓", "bad": "✗"}


def task_notice_items(body: Input) -> Sequence[DisplayItem]:
    """The notice of a task: one line, and the end of its output."""
    output = body.notice.output if body.notice else ()
    lines = tuple(sanitize_line(line, 200) for line in output if line.strip())
    return [_notice_line(body), OutputLines(lines)] if lines else [_notice_line(body)]


def background_task_note(body: Input, session: str) -> Note:
    """The notice of a task of another session, in one line."""
    line, name = _notice_line(body), sanitize_line(session)
    return Note(f"{line.text}  (session {name}; /switch {name})", line.tone)


def _notice_line(body: Input) -> Note:
    notice = body.notice
    if notice is None:  # from a version that stored only the text for the model
        return Note(f"● {sanitize_line(body.text.partition(chr(10))[0], 160)}", "plain")
    has_ended = notice.event == "ended"
    tone = _STATE_TONES.get(notice.state, "warn") if has_ended else "warn"
    exit_code = "" if notice.exit_code is None else f"exit {notice.exit_code}"
    parts = [
        f"{notice.task} {notice.headline}",
        notice.description or notice.command,
        ", ".join(part for part in (exit_code, duration(notice.duration) if has_ended else "") if part),
        notice.reason,
        f"answer with /write {notice.task} TEXT" if notice.event == "stalled" else "",
        f"{plural(notice.left_out, 'more match', 'more matches')}; see /tail {notice.task}" if notice.left_out else "",
    ]
    line = " · ".join(sanitize_line(escape_invisible(part), 80) for part in parts if part)
    return Note(f"{_TONE_SYMBOLS.get(tone, '●')} {line}", tone)


def history_sent_items(before: Bound | None, now: Bound, ended: int) -> Sequence[DisplayItem]:
    """A line when another runtime receives what happened without it. `ended` is the entry that ended the last turn."""
    already_sent = before.saw if before and before.thread == now.thread else 0
    # A binding that covers no more than before was only recorded again.
    if not already_sent < ended <= now.saw:
        return []
    return [Note(f"{sanitize_line(now.runtime, 40)} received the earlier part of this session, up to #{ended}")]


StyledLine = tuple[str, str]
"""A style and a line of text."""


class ChatSessionView:
    """The state of a session on the screen: what was printed, and what is still running."""

    def __init__(self, journal: Iterable[Entry] = (), can_steer: Callable[[str], bool] = lambda runtime: False) -> None:
        """`can_steer` tells whether a runtime, by name, receives messages in the middle of a turn."""
        self._can_steer = can_steer
        self._runtime = ""
        """The runtime of the open turn."""
        self.state = State()
        self.usage = Usage()
        """Tokens of the whole session."""
        self.cost: float | None = None
        """Dollars of the whole session; None when no price is known."""
        self.model = ""
        """The model of the last reply."""
        self.started_at = 0
        """When the open turn started, in milliseconds since 1970."""
        self.queued: list[str] = []
        """Inputs that wait for the next step of the turn."""
        self.activity = ""
        self._output_tails: Mapping[str, Sequence[str]] = {}
        """The last lines of output of running calls, by call."""
        self._last_turn_end = 0
        """The entry that ended the last turn."""
        self._calls: dict[str, Call] = {}
        self._is_prompt_sent = False
        """Whether the prompt of the current step was sent: a new input then waits for the next step."""
        self._splitter = MarkdownSplitter()
        self._last_reply = ""
        """The newest reply of the turn."""
        self._printed = ""
        self._printed_before_input = ""
        """The part of the reply printed before the last steering message; after it, the reply continues or restarts."""
        self._late_text = ""
        """Text of a printed reply whose deltas may still arrive."""
        self._prints_whole_replies = False
        """Whether deltas of this turn were missed: each reply is then printed when it is complete."""
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
        """The question to answer next."""
        return next(iter(self.state.questions.values()), None)

    @property
    def running_calls(self) -> Sequence[Call]:
        """Calls that are running, not those that wait for an answer."""
        waiting = {asked.call for asked in self.state.questions.values()}
        return [call for call in self._calls.values() if call.id not in waiting]

    def apply(self, event: Event) -> Sequence[DisplayItem]:
        """The items to print for this event."""
        return self._apply_entry(event) if isinstance(event, Entry) else self._apply_delta(event)

    def live_lines(self, width: int, height: int) -> list[StyledLine]:
        """The lines above the prompt: at most `height` lines, none wider than `width`."""
        lines: list[StyledLine] = [line for call in self.running_calls for line in self._call_lines(call, width)]
        if self.is_open and self.activity and not self._calls:
            lines.append(("class:dim", sanitize_line(self.activity, width - 1)))
        lines += [("class:queued", sanitize_line(f"› {text}", width - 10) + "  (queued)") for text in self.queued]
        if self.open_question:
            asked = self.open_question
            hint = display.answer_hint(asked.choices, can_view=asked.request is not None)
            lines += [("class:ask", line) for line in wrap(sanitize(f"? your answer: {hint}"), width)]
        lines = lines[-height:]
        left = height - len(lines)
        rest = self._splitter.pending_text[-(width * (left + 1)) :] if left > 0 else ""
        partial = [("", line) for line in wrap(sanitize(rest).strip("\n"), width)][-left:] if rest.strip() else []
        return [*partial, *lines]

    def _call_lines(self, call: Call, width: int) -> Iterable[StyledLine]:
        yield "class:call", f"{call_symbol(call)} {call_line(call, width - 6)} …"
        for line in self._output_tails.get(call.id, ()):
            yield "class:dim", f"  │ {sanitize_line(line, width - 4)}"

    def set_output_tails(self, tails: Mapping[str, Sequence[str]]) -> bool:
        """Show these last lines of output below the running calls; returns whether they changed."""
        has_changed = tails != self._output_tails
        self._output_tails = tails
        return has_changed

    def mark_stalled(self) -> None:
        """Show that the turn cannot continue for now; no entry says so."""
        self._splitter, self._prints_whole_replies = MarkdownSplitter(), True
        self.activity = "stalled"

    def _apply_delta(self, delta: Delta) -> Sequence[DisplayItem]:
        if not self.is_open:
            return []  # It arrived after the end of its turn.
        match delta.kind:
            case "text":
                return self._apply_text(delta.text)
            case "reasoning":
                self.activity = "thinking …"
            case "call":
                self.activity = f"calling {delta.text} …"
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
        questions = before.questions
        match entry.body:
            case Input():
                return self._apply_input(entry.body)
            case Started(runtime=runtime):
                self.started_at, self._runtime, self._last_reply = entry.at, runtime, ""
                self._reset_reply()
            case Resumed(crashed=crashed):
                self._reset_reply()
                if self.open_question:
                    return []  # The turn resumes after the answer.
                return [
                    *self._release_queued(is_asked=True),
                    Note("Resumed after a crash" if crashed else "Resumed"),
                ]
            case Reply():
                return self._apply_reply(entry.body)
            case Result():
                return self._apply_result(entry.body)
            case Asked():
                return [] if questions else self.question_items()
            case Answered(ask=ask, answer=answer, person=person) if ask in questions:
                note = display.answer_note(answer, person)
                return [note, *self.question_items()] if ask == next(iter(questions)) else [note]
            case Compacted(usage=usage, cost=cost):
                self._add_usage(usage, cost)
                return [Note("Earlier messages were summarised")]
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
        """The question to answer next, if there is one."""
        asked = self.open_question
        return [QuestionText(asked.ask, asked.question, asked.choices, asked.request)] if asked else []

    def _apply_input(self, body: Input) -> Sequence[DisplayItem]:
        if body.source == "task":
            self._is_prompt_sent = self._is_prompt_sent or self.is_open
            return task_notice_items(body)  # Shown at once, even while the model is busy.
        if self._is_prompt_sent and self._can_steer(self._runtime):
            return [*self._flush_partial_reply(), UserText(body.text)]
        if self._is_prompt_sent:
            self.queued.append(body.text)
            return []
        self._is_prompt_sent = self.is_open
        return [UserText(body.text)]

    def _flush_partial_reply(self) -> Sequence[DisplayItem]:
        """Print the reply so far: it may continue or restart after the message."""
        if self._prints_whole_replies:
            return []
        rest = self._splitter.pending_text
        self._printed_before_input += self._printed + rest
        self._splitter, self._printed = MarkdownSplitter(), ""
        return _reply_blocks(split_blocks(rest))

    def _apply_reply(self, reply: Reply) -> Sequence[DisplayItem]:
        self._add_usage(reply.usage, reply.cost)
        self.model = reply.model or self.model
        self._last_reply = reply.text
        items = self._finish_reply(reply.text)
        if reply.cut:
            items.append(Note(f"The provider cut this reply short: {reply.cut}", "warn"))
        self._calls = {call.id: call for call in reply.calls}
        self.activity = ""
        return [*items, *([] if self._calls else self._release_queued())]

    def _apply_result(self, result: Result) -> Sequence[DisplayItem]:
        call = self._calls.pop(result.call, None)
        call = completed_call(call, result) if call else None
        is_denied = any(answered.answer == NO for answered in self.state.answers_about(result.call))
        lines = [unfinished_call(call, "not run")] if is_denied else result_items(call, result)
        if self._calls:
            return lines
        self.activity = "waiting for the model …"
        return [*lines, *self._release_queued(is_asked=True)]

    def _apply_end(self, ended: Ended, begun: Collection[str]) -> Sequence[DisplayItem]:
        items = self._finish_reply(ended.partial) if ended.outcome == "interrupted" and ended.partial else []
        self._splitter, self._printed, self._printed_before_input = MarkdownSplitter(), "", ""
        self._prints_whole_replies = False
        items += [unfinished_call(call, "interrupted") for call in self._calls.values() if call.id in begun]
        self._calls, self.activity = {}, ""
        unread = len(self.queued)
        items += self._release_queued()
        self._is_prompt_sent = False
        match ended.outcome:
            case "done":
                pass
            case "failed":
                # The words of a failed request may be the reply, which is shown already.
                reason = "" if ended.reason == self._last_reply else ended.reason
                items.append(Note(f"✗ {reason or 'The turn failed'}", "bad"))
            case "interrupted":
                reason = ended.reason or "stopped"
                items.append(Note(f"■ {reason[0].upper()}{reason[1:]}", "warn"))
        if unread and ended.outcome != "done":
            which, it = ("queued message was", "it") if unread == 1 else (f"{unread} queued messages were", "them")
            items.append(Note(f"The {which} not answered; the model reads {it} with your next message", "warn"))
        return items

    def _finish_reply(self, text: str) -> list[DisplayItem]:
        """Print the rest of a reply whose whole text is now known."""
        items: list[DisplayItem] = []
        received, printed = self._printed + self._splitter.pending_text, self._printed
        if self._printed_before_input and text.startswith(self._printed_before_input + received):
            received, printed = self._printed_before_input + received, self._printed_before_input + printed
        self._printed_before_input = ""
        is_prefix = not self._prints_whole_replies and text.startswith(received)
        self._late_text = text[len(received) :] if is_prefix else ""
        self._splitter, self._printed = MarkdownSplitter(), ""
        if not text.startswith(printed):
            items.append(Note("The reply was restarted:"))
            printed = ""
        return [*items, *_reply_blocks(split_blocks(text[len(printed) :]))]

    def _release_queued(self, *, is_asked: bool = False) -> list[DisplayItem]:
        """Print the queued messages: they are part of the next prompt."""
        items: list[DisplayItem] = [UserText(text) for text in self.queued]
        self._is_prompt_sent = is_asked or self.state.has_unseen
        if self._is_prompt_sent:
            self.activity = "waiting for the model …"
        self.queued = []
        return items

    def _add_usage(self, usage: Usage, cost: float | None) -> None:
        self.usage += usage
        self.cost = self.cost if cost is None else (self.cost or 0.0) + cost


def _reply_blocks(texts: Iterable[str]) -> list[DisplayItem]:
    return [ReplyBlock(text) for text in texts if text.strip()]


_RECAP_EXCHANGES = 2
_MAX_RECAP_BLOCK_CHARS = 1_200
_MAX_RECAP_ITEMS = 12


def recap(journal: Iterable[Entry], can_steer: Callable[[str], bool] = lambda runtime: False) -> Sequence[DisplayItem]:
    """The last messages and replies of a session, without its calls and without a pending question."""
    view, items = ChatSessionView(can_steer=can_steer), list[DisplayItem]()
    for entry in journal:
        items += view.apply(entry)
    messages = [
        _shorten(item)
        for item in _without_calls(items)
        if not (isinstance(item, QuestionText) and item.question_id in view.state.questions)
    ]
    exchanges = [index for index, item in enumerate(messages) if isinstance(item, UserText)]
    if not exchanges:
        return []
    start = exchanges[-_RECAP_EXCHANGES] if len(exchanges) >= _RECAP_EXCHANGES else exchanges[0]
    last = messages[start:]
    if len(last) > _MAX_RECAP_ITEMS:
        last = [last[0], Note("…"), *last[-(_MAX_RECAP_ITEMS - 2) :]]
    return [Note("Earlier in this session:"), *last] if start else last


def _without_calls(items: Iterable[DisplayItem]) -> Iterable[DisplayItem]:
    is_of_call = False
    for item in items:
        is_of_call = isinstance(item, ToolLine) or (is_of_call and isinstance(item, OutputLines))
        if not is_of_call:
            yield item


def _shorten(item: DisplayItem) -> DisplayItem:
    match item:
        case ReplyBlock(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return Note(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …", "plain")
        case UserText(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return UserText(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …")
        case _:
            return item
