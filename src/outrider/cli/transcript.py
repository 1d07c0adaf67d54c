"""A journal for people: as a transcript in the terminal, or as a Markdown page."""

import time
from collections.abc import Iterator, Sequence

from outrider.app.acting import last_turn
from outrider.cli.plain import one_line, printable
from outrider.cli.progress import call_line, result_line
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Bound,
    Changed,
    Compacted,
    Ended,
    Entry,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.outcome import TurnResult, turn_result
from outrider.core.parts import Call, Image, Usage
from outrider.core.ports import NATIVE, Session

_MAX_OUTPUT_CHARS = 4_000


def format_time(at: int) -> str:
    """Local time, from milliseconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def time_ago(at: int, now: int) -> str:
    """How long since, in the largest unit that fits; both in milliseconds."""
    seconds = max(0, (now - at) // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def format_usage(usage: Usage, cost: float | None) -> str:
    """Tokens and dollars, as far as they are known."""
    told = f"{usage.input:,} tokens in, {usage.output:,} out"
    return told if cost is None else f"{told}, ${cost:.4f}"


class _TranscriptState:
    """Remembers what later entries refer to: the calls, and where the turn began."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.calls: dict[str, Call] = {}
        self._turn: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self._turn.append(entry)
        if isinstance(entry.body, Reply):
            self.calls |= {call.id: call for call in entry.body.calls}

    def end_turn(self) -> TurnResult:
        outcome = turn_result(self._session.id, last_turn(self._turn))
        self._turn = []
        return outcome


def transcript_lines(session: Session, entries: Sequence[Entry]) -> Iterator[str]:
    """The entries as a transcript, calls and results in a line each."""
    turns = _TranscriptState(session)
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
        case Reply(text=text, calls=calls, cut=cut):
            yield _entry_heading(entry, entry.body.model or "reply")
            yield from _indented(text)
            yield from (f"  → {call_line(call)}" for call in calls)
            yield from [f"  [cut short: {cut}]"] if cut else []
        case Result(call=id):
            yield _entry_heading(entry, result_line(turns.calls.get(id), entry.body))
        case Ended(partial=partial):
            yield _entry_heading(entry, _turn_summary(turns.end_turn()))
            yield from _indented(partial)
            yield ""
        case _:
            if remark := _entry_note(entry):
                yield _entry_heading(entry, remark)


def _entry_heading(entry: Entry, what: str) -> str:
    return f"#{entry.seq} {format_time(entry.at)}  {what}"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())


def _turn_summary(turn: TurnResult) -> str:
    steps = f"{turn.steps} step" + "s" * (turn.steps != 1)
    told = f"{turn.outcome}: {turn.error}" if turn.error else turn.outcome
    return f"{one_line(told)} ({steps}, {format_usage(turn.usage, turn.cost)})"


def _entry_note(entry: Entry) -> str:
    """The entries that are no words, in a few."""
    match entry.body:
        case Resumed(crashed=crashed):
            return "taken up again after a crash" if crashed else "taken up again"
        case Compacted():
            return "the earlier part was summarised"
        case Changed(name=name, value=value):
            return one_line(f"{name} = {value}", 100)
        case Asked(question=question):
            return f"asked: {one_line(question, 300)}"
        case Answered(answer=answer, person=person):
            return f"answered: {one_line(answer, 100)}" + ("" if person else ", since nobody answered")
        case Started(runtime=runtime, model=model) if runtime != NATIVE:
            return one_line(f"carried by {runtime}{f', asking {model}' if model else ''}", 100)
        case Bound(runtime=runtime, thread=thread, turn=turn, saw=saw):
            knows = f", which knows the session up to #{saw}" if saw else ""
            return one_line(f"{runtime}: thread {thread}{f', turn {turn}' if turn else ''}{knows}", 200)
        case Begun() | Started() | Input() | Reply() | Result() | Ended():
            return ""


def markdown_page(session: Session, entries: Sequence[Entry]) -> str:
    """The session as a Markdown page."""
    turns = _TranscriptState(session)
    title = one_line(session.title, 80) or session.name
    parts = [f"# {title}", f"Session `{session.name}`, begun {format_time(session.created)}, in `{session.workspace}`."]
    for entry in entries:
        turns.add(entry)
        parts += _paragraphs(entry, turns)
    return "\n\n".join(parts) + "\n"


def _paragraphs(entry: Entry, turns: _TranscriptState) -> list[str]:
    match entry.body:
        case Input(text=text, source=source, images=images):
            who = "You" if source == "person" else source.capitalize()
            return [f"## {who}, {format_time(entry.at)}", text, *_image_notes(images)]
        case Reply(text=text, calls=calls):
            said = [f"## {entry.body.model or 'Reply'}, {format_time(entry.at)}", text] if text else []
            return said + [f"- `{call_line(call).replace('`', chr(39))}`" for call in calls]
        case Result(text=text, failed=failed):
            return [f"{'Failed' if failed else 'Result'}:", _fenced(text)]
        case Ended(partial=partial):
            return [*([partial] if partial else []), f"*{_turn_summary(turns.end_turn())}*"]
        case _:
            remark = _entry_note(entry)
            return [f"*{remark}*"] if remark else []


def _image_notes(images: Sequence[Image]) -> list[str]:
    return [f"*[{image.media}]*" for image in images]


def _fenced(text: str) -> str:
    if len(text) > _MAX_OUTPUT_CHARS:
        text = f"{text[:_MAX_OUTPUT_CHARS]}\n[… {len(text) - _MAX_OUTPUT_CHARS:,} characters left out …]"
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
