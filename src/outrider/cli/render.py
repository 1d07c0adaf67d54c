"""Rendering of events for people: calls and answers as lines, progress on stderr, transcripts and Markdown pages."""

import shutil
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import anyio
import msgspec
from msgspec import Struct

from outrider.cli.output import format_time, one_line, printable
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
from outrider.core.ports import NATIVE
from outrider.core.store_port import Session
from outrider.core.text import escape_invisible, plural, visible_line
from outrider.core.turn_result import TurnResult, last_turn, turn_result
from outrider.core.types import Call, Usage
from outrider.system.task_groups import background_group

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class ProgressLine:
    """The progress of a turn on stderr: finished calls as lines, and below them one animated line."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._activity = "thinking"
        self._drawn_width = 0
        self._frame = 0
        self._calls: dict[str, Call] = {}
        self._questions: dict[str, Asked] = {}
        self._is_paused = False

    def show(self, event: Event) -> None:
        match event:
            case Delta():
                self._show_delta(event)
            case Entry():
                self._show_entry(event)

    def _show_delta(self, delta: Delta) -> None:
        match delta.kind:
            case "note" | "reset":
                if delta.text:
                    self._print(f"… {one_line(delta.text)}")
            case "text":
                self._activity = "writing"
            case "call":
                self._activity = f"calling {one_line(delta.text)}"
            case "reasoning":
                self._activity = "thinking"

    def _show_entry(self, entry: Entry) -> None:
        match entry.body:
            case Reply(calls=calls, text=text) if calls:
                self._calls |= {call.id: call for call in calls}
                self._activity = "running " + ", ".join(one_line(call.tool) for call in calls)
                if text:
                    self._print(printable(text))
            case Result(call=call):
                self._print(result_line(self._calls.get(call), entry.body))
                self._activity = "thinking"
            case Asked(ask=ask):
                self._questions[ask] = entry.body
                self._activity = "waiting for an answer"
            case Answered(ask=ask):
                self._print(answer_line(self._questions.get(ask), entry.body))
                self._activity = "thinking"
            case Input(text=text, source="task", notice=notice):
                line = f"{notice.task} {notice.headline}: {notice.label}" if notice else one_line(text, 100)
                self._print(f"● {one_line(line, 160)}")
            case Resumed():
                self._print("… resuming the unfinished turn")
            case Compacted():
                self._print("… earlier messages were summarised")
            case _:
                pass

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the last line of the terminal to the block."""
        self._clear_line()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    @asynccontextmanager
    async def animated(self) -> AsyncGenerator[None, None]:
        """Draw the line while the block runs, and clear it afterwards."""
        try:
            async with background_group() as group:
                group.start_soon(self._animate)
                yield
        finally:
            self._clear_line()

    async def _animate(self) -> None:
        while True:
            seconds = int(time.monotonic() - self._started_at)
            self._frame += 1
            line = f"{_FRAMES[self._frame % len(_FRAMES)]} {self._activity} {seconds} s"
            if not self._is_paused:
                self._clear_line()
                self._drawn_width = len(line)
                sys.stderr.write(line[: shutil.get_terminal_size().columns - 1])
                sys.stderr.flush()
            await anyio.sleep(0.12)

    def _clear_line(self) -> None:
        if self._drawn_width:
            sys.stderr.write("\r" + " " * min(self._drawn_width, shutil.get_terminal_size().columns - 1) + "\r")
            self._drawn_width = 0

    def _print(self, line: str) -> None:
        self._clear_line()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def call_line(call: Call, longest: int = 100) -> str:
    """A call in one line: its tool and the beginning of its arguments."""
    args = call.broken or " ".join(f"{name}={value!r}" for name, value in call.args.items())
    return visible_line(f"{call.tool} {args}", longest)


def result_line(call: Call | None, result: Result, longest: int = 100) -> str:
    """A call and its result in one line, with the id of the task that it left running."""
    text = result.details or (result.text if result.failed else "")
    command = parse_command_result(result)
    if command.status in ("background_started", "auto_backgrounded"):
        text = f"{text} as task {command.task}"
    what = call_line(completed_call(call, result), longest) if call else "a call"
    line = f"{'✗' if result.failed else '✓'} {what}"
    return f"{line} — {one_line(text, longest)}" if text else line


class CommandResult(Struct, frozen=True):
    """The result of a tool that runs commands or child sessions; empty for every other tool."""

    status: str = ""
    task: str = ""
    exit_code: int | None = None
    output: str | None = None


def parse_command_result(result: Result) -> CommandResult:
    try:
        return msgspec.json.decode(result.text, type=CommandResult)
    except (msgspec.MsgspecError, UnicodeError):  # It was cut, or another tool wrote it.
        return CommandResult()


def answer_line(asked: Asked | None, answered: Answered, longest: int = 160) -> str:
    question = one_line(asked.question, longest) if asked else "a question"
    return f"{'✗' if answered.answer == NO else '✓'} {question} — {answer_text(answered)}"


def answer_text(answered: Answered) -> str:
    return one_line(answered.answer, 100) + ("" if answered.person else " (nobody answered)")


_MAX_OUTPUT_CHARS = 4_000


def format_usage(usage: Usage, cost: float | None) -> str:
    """Tokens, and dollars where a price is known."""
    tokens = f"{usage.input:,} tokens in, {usage.output:,} out"
    return tokens if cost is None else f"{tokens}, ${cost:.4f}"


class _TranscriptState:
    """What entries refer to: the calls so far, with the arguments they really had, and the entries of the open turn."""

    def __init__(self, session: Session, entries: Sequence[Entry]) -> None:
        self._session = session
        results = [entry.body for entry in entries if isinstance(entry.body, Result)]
        self._late_args = {result.call: result for result in results if result.args is not None}
        self.calls: dict[str, Call] = {}
        self._turn: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self._turn.append(entry)
        if isinstance(entry.body, Reply):
            self.calls |= {call.id: call for call in self.calls_of(entry.body)}

    def calls_of(self, reply: Reply) -> list[Call]:
        late = self._late_args
        return [completed_call(call, late[call.id]) if call.id in late else call for call in reply.calls]

    def end_turn(self) -> TurnResult:
        result = turn_result(self._session.id, last_turn(self._turn))
        self._turn = []
        return result


def transcript_lines(session: Session, entries: Sequence[Entry]) -> Iterator[str]:
    """The entries as a transcript, with one line for each call and each result."""
    turns = _TranscriptState(session, entries)
    for entry in entries:
        turns.add(entry)
        for line in _entry_lines(entry, turns):
            yield printable(line)


def _entry_lines(entry: Entry, turns: _TranscriptState) -> Iterator[str]:
    match entry.body:
        case Input(text=text, source=source, images=images):
            yield _entry_heading(entry, "you" if source == "person" else source)
            yield from _indented(text)
            yield from (f"  [{image.media}]" for image in images)
        case Reply(text=text, cut=cut):
            yield _entry_heading(entry, entry.body.model or "reply")
            yield from _indented(text)
            yield from (f"  → {call_line(call)}" for call in turns.calls_of(entry.body))
            yield from [f"  [cut short: {cut}]"] if cut else []
        case Result(call=id):
            yield _entry_heading(entry, result_line(turns.calls.get(id), entry.body))
        case Ended(partial=partial):
            yield _entry_heading(entry, _turn_summary(turns.end_turn()))
            yield from _indented(partial)
            yield ""
        case Asked(question=question):
            yield _entry_heading(entry, "asked:")
            yield from (f"  {line}" for line in escape_invisible(question).split("\n"))
        case _:
            if note := _entry_note(entry):
                yield _entry_heading(entry, note)


def _entry_heading(entry: Entry, text: str) -> str:
    return f"#{entry.seq} {format_time(entry.at)}  {text}"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())


def _turn_summary(turn: TurnResult) -> str:
    outcome = f"{turn.outcome}: {turn.error}" if turn.error else turn.outcome
    return f"{one_line(outcome)} ({plural(turn.steps, 'step')}, {format_usage(turn.usage, turn.cost)})"


def _entry_note(entry: Entry) -> str:
    """One line for an entry that holds no message, call or result; empty where it needs none."""
    match entry.body:
        case Resumed(crashed=crashed):
            return "resumed after a crash" if crashed else "resumed"
        case Compacted():
            return "earlier messages were summarised"
        case Changed(name=name, value=value):
            return one_line(f"{name} = {value}", 100)
        case Answered():
            return f"answered: {answer_text(entry.body)}"
        case Started(runtime=runtime, model=model) if runtime != NATIVE:
            return one_line(f"run by {runtime}{f', model {model}' if model else ''}", 100)
        case Bound(runtime=runtime, thread=thread, turn=turn, saw=saw):
            seen = f", has seen the session up to #{saw}" if saw else ""
            return one_line(f"{runtime}: thread {thread}{f', turn {turn}' if turn else ''}{seen}", 200)
        case Begun() | Started() | Input() | Reply() | Result() | Asked() | Ended():
            return ""


def markdown_page(session: Session, entries: Sequence[Entry]) -> str:
    turns = _TranscriptState(session, entries)
    title = one_line(session.title, 80) or session.name
    about = f"Session `{session.name}`, started {format_time(session.created)}, in `{session.workspace}`."
    parts = [f"# {title}", about]
    for entry in entries:
        turns.add(entry)
        parts += _paragraphs(entry, turns)
    return "\n\n".join(parts) + "\n"


def _paragraphs(entry: Entry, turns: _TranscriptState) -> list[str]:
    match entry.body:
        case Input(text=text, source=source, images=images):
            author = "You" if source == "person" else source.capitalize()
            return [f"## {author}, {format_time(entry.at)}", text, *(f"*[{image.media}]*" for image in images)]
        case Reply(text=text):
            message = [f"## {entry.body.model or 'Reply'}, {format_time(entry.at)}", text] if text else []
            calls = turns.calls_of(entry.body)
            return message + [f"- `{call_line(call).replace('`', chr(39))}`" for call in calls]
        case Result(text=text, failed=failed):
            return [f"{'Failed' if failed else 'Result'}:", _fenced(text)]
        case Ended(partial=partial):
            return [*([partial] if partial else []), f"*{_turn_summary(turns.end_turn())}*"]
        case Asked(question=question):
            return ["*asked:*", _fenced(escape_invisible(question))]
        case _:
            note = _entry_note(entry)
            return [f"*{note}*"] if note else []


def _fenced(text: str) -> str:
    if len(text) > _MAX_OUTPUT_CHARS:
        text = f"{text[:_MAX_OUTPUT_CHARS]}\n[… {len(text) - _MAX_OUTPUT_CHARS:,} characters left out …]"
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
