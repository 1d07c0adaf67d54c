"""Reads notices on background tasks, and tells notices from requests where only the text says which it is."""

import re
from collections.abc import Container

from msgspec import Struct

from outrider.models.practice.outcomes import last
from outrider.models.practice.phrases import clipped, code, fenced

_HEAD = re.compile(r"\[Task (?P<task>t-\w+) (?P<what>.*)\]")
_FIELD = re.compile(
    r"(?P<name>command|description|exit code|reason|duration|output file): (?P<value>.*)"
    r"|no output|last output(?: \(cut\))?:|\| ?(?P<line>.*)|\[… and \d+ more\]|Write to it, or kill it, .*"
)
_TAIL = re.compile(r"\[Tasks running now:\]")
_TAIL_ROW = re.compile(r"- (?:t-\w+: .*|… and \d+ more)")
_OF_OTHERS = re.compile(r"(?P<how>seems to wait for input|wrote what was watched for \(.*\)): (?P<label>.*)")
_MOST_LINES = 10


class Notice(Struct, frozen=True):
    """What is told of a task."""

    task: str
    how: str
    """In the notice's words: `succeeded`, `was killed`, …"""
    command: str = ""
    exit_code: str = ""
    reason: str = ""
    lines: tuple[str, ...] = ()
    """Of its output."""

    @property
    def is_end(self) -> bool:
        return not self.how.startswith(("seems to wait", "wrote "))


def parse_notice(text: str) -> Notice | None:
    """None when this is no notice on a task."""
    first, *rest = text.split("\n")
    head = _HEAD.fullmatch(first)
    if not head:
        return None
    fields: dict[str, str] = {}
    lines: list[str] = []
    for line in rest:
        field = _FIELD.fullmatch(line)
        if field and field["line"] is not None:
            lines.append(field["line"])
        elif field and field["name"]:
            fields.setdefault(field["name"], field["value"])
    other = _OF_OTHERS.fullmatch(head["what"])
    return Notice(
        task=head["task"],
        how=other["how"] if other else head["what"],
        command=fields.get("description") or fields.get("command") or (other["label"] if other else ""),
        exit_code=fields.get("exit code", ""),
        reason=fields.get("reason", ""),
        lines=tuple(lines),
    )


def parted(text: str) -> tuple[list[str], str]:
    """The notices in a text, and the words that are left without them and without the list of what runs.

    On some wires all that is said between two replies is one text.
    """
    notices: list[list[str]] = []
    words: list[str] = []
    is_notice = is_tail = False
    for line in text.split("\n"):
        if _HEAD.fullmatch(line):
            is_notice, is_tail = True, False
            notices.append([line])
        elif is_notice and _FIELD.fullmatch(line):
            notices[-1].append(line)
        elif _TAIL.fullmatch(line) or (is_tail and _TAIL_ROW.fullmatch(line)):
            is_notice, is_tail = False, True
        else:
            is_notice = is_tail = False
            words.append(line)
    return ["\n".join(notice) for notice in notices], "\n".join(words).strip()


def told(text: str, answered: Container[str] = ()) -> str:
    """A notice in a line or two, with the end of what the task wrote. Nothing for an end that was said already."""
    notice = parse_notice(text)
    if notice is None:
        return f"Noted: {clipped(text)}"
    if notice.is_end and notice.task in answered:
        return ""
    name = code(clipped(notice.command)) if notice.command else f"Task {code(notice.task)}"
    sentence = f"{name} {_ending(notice)}"
    if not notice.lines:
        return sentence
    return f"{sentence}\n\n{fenced(last(notice.lines, _MOST_LINES))}"


def _ending(notice: Notice) -> str:
    why = f" ({clipped(notice.reason, 300)})" if notice.reason else ""
    match notice.how:
        case "succeeded":
            return f"finished: exit code {notice.exit_code}." if notice.exit_code else "finished."
        case "failed" if notice.exit_code:
            return f"failed: exit code {notice.exit_code}{why}."
        case "seems to wait for input":
            return f"seems to wait for input. To end it: `kill task {notice.task}`."
        case how if how.startswith("wrote what was watched for"):
            return f"wrote (task {code(notice.task)}):"
        case how:
            return f"{clipped(how)}{why}."
