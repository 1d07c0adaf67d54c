"""What happened to a task, as a person reads it: made from its notice by code, without any model. Pure."""

import re
from collections.abc import Sequence

from outrider.cli.chat.clean import sanitize_line
from outrider.cli.chat.shows import DisplayItem, Note, OutputLines, Tone
from outrider.core.events import Bound

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
