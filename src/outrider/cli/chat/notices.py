"""What happened to a task, as a person reads it: made from its notice by code, without any model. Pure."""

import re
from collections.abc import Sequence

from outrider.cli.chat.clean import one_line
from outrider.cli.chat.shows import Note, Output, Show, Tone
from outrider.core.events import Bound

_HEAD = re.compile(r"\[Task (\S+) (.+?)(?:: (.*))?\]")
_OUTPUT = re.compile(r"\| |no output$|last output")
_TONES: dict[str, Tone] = {"succeeded": "good", "failed": "bad", "was lost": "bad"}
_MARKS: dict[Tone, str] = {"good": "✓", "bad": "✗"}
_SHOWN = 5
"""Lines of output that are shown."""


def told(notice: str) -> Sequence[Show]:
    """A line on the task, and the end of its output."""
    quoted = [line[2:] for line in notice.split("\n") if line.startswith("| ")]
    lines = [one_line(line, 200) for line in quoted[-_SHOWN:] if line.strip()]
    head = Note(*_head(notice))
    return [head, Output(tuple(lines))] if lines else [head]


def told_elsewhere(notice: str, session: str) -> Note:
    """The same in one line, for a task of another session."""
    text, tone = _head(notice)
    name = one_line(session)
    return Note(f"{text}  (session {name}; /switch {name})", tone)


def bound(before: Bound | None, now: Bound, ended: int) -> Sequence[Show]:
    """A line when another runtime is given what happened without it. `ended` is where the last turn ended."""
    known = before.saw if before and before.thread == now.thread else 0
    # One that knows no more than before was only written down again.
    if not known < ended <= now.saw:
        return []
    return [Note(f"{one_line(now.runtime, 40)} was given what it had not seen of this session, up to #{ended}")]


def _head(notice: str) -> tuple[str, Tone]:
    first, *rest = notice.split("\n")
    found = _HEAD.fullmatch(first)
    if found is None:
        return f"● {one_line(first, 160)}", "plain"
    task, happened, about = found[1], found[2], found[3] or ""
    fields = _fields(rest)
    tone: Tone = _TONES.get(happened, "warn")
    code = fields.get("exit code", "")
    figures = ", ".join(part for part in (f"exit {code}" if code else "", fields.get("duration", "")) if part)
    what = fields.get("description") or fields.get("command", "")
    parts = [f"{task} {happened}", about, what, figures, fields.get("reason", "")]
    if happened.startswith("seems to wait"):
        parts.append(f"/write {task} TEXT answers it")
    told = " · ".join(one_line(part, 80) for part in parts if part)
    return f"{_MARKS.get(tone, '●')} {told}", tone


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """What our own lines say. They stand before the output, which is somebody else's."""
    fields: dict[str, str] = {}
    for line in lines:
        if _OUTPUT.match(line):
            break
        name, mark, value = line.partition(": ")
        if mark:
            fields[name] = value
    return fields
