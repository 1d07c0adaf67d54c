"""Tasks, which run on after the step that started them, and the notices about them."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.text import clip, duration, visible_line
from outrider.core.types import WorkspaceIdentity

TaskKind = Literal["command", "session"]
TaskState = Literal["queued", "running", "stalled", "succeeded", "failed", "killed", "lost", "timed_out"]
Notify = Literal["always", "failures", "never"]
OPEN_STATES: frozenset[TaskState] = frozenset({"queued", "running", "stalled"})
"""States of a task that has not ended."""
NOTICE_TAIL = 2_000
"""Characters of output in a notice."""


class ProcessIdentity(Struct, frozen=True):
    """One process, never mistaken for a later one with the same pid."""

    pid: int
    started: int
    """Ticks since boot where there is /proc, seconds since 1970 elsewhere."""
    boot: str


class TaskSpec(Struct, frozen=True, kw_only=True, rename={"is_awaited": "waited", "keeps_stdin_open": "is_open"}):
    """A task to start."""

    kind: TaskKind
    call: str
    """The call that starts it. A call starts one task, however often it is repeated."""
    command: str
    """The command line, or the message to a child session."""
    description: str = ""
    address: str = ""
    """Where the notice of its end goes."""
    notify: Notify = "never"
    """`never` where nothing can be delivered to the address later."""
    is_awaited: bool = False
    """A call waits for its end and gets it as a result, so there is no notice."""
    watch: str = ""
    """A regular expression. Output lines that match cause a notice while it runs."""
    ceiling: float = 86_400.0
    """Seconds after which it is killed."""
    workdir: str = ""
    """The folder it runs in, relative to the workspace."""
    stdin: str | None = None
    """Text for its stdin; None for an empty stdin."""
    keeps_stdin_open: bool = False
    """Whether more can be written to its stdin later."""
    grants: tuple[str, ...] = ()
    """What an approval allows this task outside its sandbox, e.g. `network`."""
    model: str = ""
    """For a child session: its model; empty for its parent's."""
    tools: tuple[str, ...] = ()
    """For a child session: the only tools it has; empty for all."""
    steps: int = 0
    """For a child session: its limit of steps; 0 for the default."""


class Task(Struct, frozen=True, kw_only=True):
    """A task as the store has it. Its end and the delivery of its end are separate facts."""

    id: str
    session: str
    person: str
    workspace: str
    identity: WorkspaceIdentity | None = None
    """Of the workspace; None before its first use."""
    spec: TaskSpec
    state: TaskState
    created: int
    process: ProcessIdentity | None = None
    child: str = ""
    """The child session that does the work."""
    exit_code: int | None = None
    ended: int = 0
    """Milliseconds since 1970."""
    why: str = ""
    """Why it ended, where the exit code alone does not say."""
    is_delivered: bool = False
    """Whether its end is in its session's journal, as a notice or a result."""
    notices: int = 0
    """The number of notices about its watch pattern or a stall."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


def task_label(task: Task) -> str:
    """A short label: its description, or the beginning of its command."""
    return visible_line(task.spec.description or task.spec.command, 60)


def should_notify(task: Task, state: TaskState) -> bool:
    """Whether its session gets a notice when it ends like this or, like a failure, when it stalls."""
    if task.spec.is_awaited or task.spec.notify == "never":
        return False
    return task.spec.notify == "always" or state != "succeeded"


def should_report(task: Task, notice: "TaskNotice") -> bool:
    """Whether its session gets this notice.

    A task has a watch pattern only where notices can be delivered, so its matches are reported whatever `notify` says.
    What a call waits for is in the result of the call.
    """
    match notice.event:
        case "matched" | "unwatched":
            return not task.spec.is_awaited
        case "ended" | "stalled":
            return should_notify(task, notice.state)


_WORDS: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost, and its outcome is unknown",
    "timed_out": "reached its time limit",
    "stalled": "seems to be waiting for input",
    "queued": "is queued",
    "running": "is running",
}


NoticeEvent = Literal["ended", "stalled", "matched", "unwatched"]


class TaskNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A notice about a task: what happened to it, and what it wrote last."""

    task: str
    event: NoticeEvent
    state: TaskState
    command: str
    description: str = ""
    exit_code: int | None = None
    reason: str = ""
    duration: int = 0
    """Milliseconds."""
    output_file: str = ""
    output: tuple[str, ...] = ()
    """The lines that matched its watch pattern, or the last lines it wrote."""
    is_cut: bool = False
    """Whether there was more output before these lines."""
    pattern: str = ""
    left_out: int = 0
    """How many more lines matched."""
    left_out_start: int | None = None
    """The byte of the output where the first of these lines begins."""
    searched: int = 0
    """The byte of the output up to which its pattern was searched for."""
    is_last: bool = False
    """Whether there will be no more notices of this kind."""

    @property
    def label(self) -> str:
        return clip(self.description or self.command, 60)

    @property
    def headline(self) -> str:
        """What happened, in words that follow the task's id."""
        match self.event:
            case "matched":
                return f"matched its watch pattern ({clip(self.pattern, 80)})"
            case "unwatched":
                return f"is no longer watched: matching {clip(self.pattern, 80)} takes too long"
            case "ended" | "stalled":
                return _WORDS[self.state]


class KeyedNotice(Struct, frozen=True):
    """A notice to write once."""

    notice: TaskNotice
    key: str


def ended_notice(task: Task, output: str, output_file: str) -> TaskNotice:
    lines, is_cut = _last_lines(output, NOTICE_TAIL)
    return replace(
        _notice(task, "ended"),
        exit_code=task.exit_code,
        reason=clip(task.why, 300),
        duration=task.ended - task.created,
        output_file=output_file,
        output=lines,
        is_cut=is_cut,
    )


def stalled_notice(task: Task, output: str, *, is_last: bool = False) -> TaskNotice:
    """The notice that a task seems to be waiting at a prompt."""
    lines, is_cut = _last_lines(output, 500)
    return replace(_notice(task, "stalled"), state="stalled", output=lines, is_cut=is_cut, is_last=is_last)


class OutputMatches(Struct, frozen=True):
    """The lines of an output that match a pattern: the first of them, and how many more there are."""

    lines: tuple[str, ...] = ()
    left_out: int = 0
    left_out_start: int | None = None
    """The byte of the output where the first line that was left out begins."""

    def extended(self, lines: Sequence[tuple[int, str]], max_lines: int) -> "OutputMatches":
        """With more lines, each after the byte where it begins."""
        room = max_lines - len(self.lines)
        first, left_out = lines[:room], lines[room:]
        start = self.left_out_start if self.left_out or not left_out else left_out[0][0]
        texts = (*self.lines, *(clip(line, 300) for _, line in first))
        return OutputMatches(texts, self.left_out + len(left_out), start)


def watch_notice(task: Task, matches: OutputMatches, searched: int, *, is_last: bool = False) -> TaskNotice:
    """The notice that output lines up to this byte match a task's watch pattern."""
    return replace(
        _notice(task, "matched"),
        output=matches.lines,
        pattern=clip(task.spec.watch, 200),
        left_out=matches.left_out,
        left_out_start=matches.left_out_start,
        searched=searched,
        is_last=is_last,
    )


def unwatched_notice(task: Task, matches: OutputMatches, searched: int) -> TaskNotice:
    """The notice that a watch pattern was given up because matching it takes too long, with the matches before that."""
    return replace(watch_notice(task, matches, searched, is_last=True), event="unwatched")


_WATCH, _SLOW = "watch/", "slow"


def watch_key(task: str, searched: int | None) -> str:
    """The key of a notice with the matches up to this byte of the output; of the one that gives it up for None."""
    return f"{_notice_keys(task)}{_WATCH}{_SLOW if searched is None else searched}"


def stall_key(task: str, size: int | None) -> str:
    """The key of the notice of a prompt at the end of this many bytes of output; None for the one key of 0.1."""
    return f"{_notice_keys(task)}stalled" + ("" if size is None else f"/{size}")


def _notice_keys(task: str) -> str:
    return f"task/{task}/"


class WatchProgress(Struct, frozen=True):
    """What the notices of a task's watch pattern have covered."""

    notices: int = 0
    searched: int = 0
    """The byte of the output up to which every match is in a notice."""
    is_given_up: bool = False


def watch_progress(task: str, keys: Sequence[str]) -> WatchProgress:
    """From the keys of all notices of a task."""
    prefix = _notice_keys(task) + _WATCH
    words = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    offsets = [int(word) for word in words if word.isdecimal()]
    return WatchProgress(len(offsets), max(offsets, default=0), _SLOW in words)


def _notice(task: Task, event: NoticeEvent) -> TaskNotice:
    command, description = visible_line(task.spec.command, 500), clip(task.spec.description, 200)
    return TaskNotice(task=task.id, event=event, state=task.state, command=command, description=description)


def _last_lines(output: str, max_length: int) -> tuple[tuple[str, ...], bool]:
    text = output.strip("\n")
    return tuple(text[-max_length:].split("\n")) if text else (), len(text) > max_length


def render_notice(notice: TaskNotice) -> str:
    """The notice as the model reads it. Output is quoted line by line, so that it cannot pass for ours."""
    head = f"[Task {notice.task} {notice.headline}: {notice.label}]"
    match notice.event:
        case "ended":
            head = f"[Task {notice.task} {notice.headline}]"
            return "\n".join([head, *_end_lines(notice), *_quoted_lines(notice.output, notice.is_cut)])
        case "stalled":
            advice = "Write to it, or kill it, with the tasks tool."
            last = ["[This was the last notice of a prompt before something is written to it.]"] * notice.is_last
            return "\n".join([head, advice, *_quoted_lines(notice.output, notice.is_cut), *last])
        case "matched":
            return "\n".join([head, *_match_lines(notice)])
        case "unwatched":
            return "\n".join([f"[Task {notice.task} {notice.headline}]", *_match_lines(notice)])


def _match_lines(notice: TaskNotice) -> list[str]:
    lines = [f"| {line}" for line in notice.output]
    read = f"tasks(action=read, task={notice.task}, start="
    if notice.left_out:
        lines.append(f"[… and {notice.left_out} more: the first of them is at {read}{notice.left_out_start or 0})]")
    if notice.event == "unwatched":
        lines.append(f"[… the output after this was not searched: {read}{notice.searched})]")
    elif notice.is_last:
        later = f"Read what follows with {read}{notice.searched})."
        lines.append(f"[This was the last notice of this pattern; it is no longer watched. {later}]")
    return lines


def _end_lines(notice: TaskNotice) -> list[str]:
    fields = {
        "command": notice.command,
        "description": notice.description,
        "exit code": "" if notice.exit_code is None else str(notice.exit_code),
        "reason": notice.reason,
        "duration": duration(notice.duration),
        "output file": notice.output_file,
    }
    return [f"{name}: {value}" for name, value in fields.items() if value]


def quoted_tail(output: str, max_length: int = NOTICE_TAIL) -> list[str]:
    """The end of an output, with a bar before each line."""
    return _quoted_lines(*_last_lines(output, max_length))


def _quoted_lines(lines: Sequence[str], is_cut: bool) -> list[str]:
    if not lines:
        return ["no output"]
    return [f"last output{' (cut)' if is_cut else ''}:", *(f"| {line}" for line in lines)]


def shortened_notice(notice: TaskNotice, max_lines: int = 5, max_length: int = 200) -> TaskNotice:
    """The notice with as much output as people are shown."""
    shown = [clip(line, max_length) for line in notice.output if line.strip()][-max_lines:]
    return replace(notice, output=tuple(shown), is_cut=notice.is_cut or len(shown) < len(notice.output))


def running_summary(tasks: Sequence[Task], now: int, max_tasks: int = 10) -> str:
    """A list of the running tasks for the tail of a prompt; empty when there are none."""
    if not tasks:
        return ""
    lines: list[str] = []
    for task in tasks[:max_tasks]:
        state = "stalled, " if task.state == "stalled" else ""
        lines.append(f"- {task.id}: {task_label(task)} ({state}for {duration(now - task.created)})")
    if len(tasks) > max_tasks:
        lines.append(f"- … and {len(tasks) - max_tasks} more")
    return "\n".join(["[Tasks running now:]", *lines])


_PROMPTS = re.compile(
    r"(password|passphrase|\[y/n\]|\(y/n\)|\(yes/no\S*\)|continue\?|proceed\?|are you sure|press (any key|enter|return)"
    r"|login:|username|enter \w+.*:|\?)\s*[:>]?\s*$",
    re.IGNORECASE,
)


def is_prompt(output: str) -> bool:
    """Whether this output ends like a prompt at a terminal."""
    last = output[-300:].rsplit("\n", 1)[-1].strip()
    return bool(last) and bool(_PROMPTS.search(last))
