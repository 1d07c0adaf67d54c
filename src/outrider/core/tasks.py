"""Tasks, which run on after the step that started them, and the notices about them."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

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
    """Whether its session gets a notice when it ends like this."""
    if task.spec.is_awaited or task.spec.notify == "never":
        return False
    return task.spec.notify == "always" or state != "succeeded"


_WORDS: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost: how it ended is not known",
    "timed_out": "reached its time limit",
    "stalled": "seems to wait for input",
    "queued": "waits",
    "running": "runs",
}


def ended_notice(task: Task, output: str, output_file: str) -> str:
    """The notice that a task ended. Output is quoted line by line, so that it cannot pass for ours."""
    head = f"[Task {task.id} {_WORDS[task.state]}]"
    lines = [head, f"command: {visible_line(task.spec.command, 500)}"]
    if task.spec.description:
        lines.append(f"description: {clip(task.spec.description, 200)}")
    if task.exit_code is not None:
        lines.append(f"exit code: {task.exit_code}")
    if task.why:
        lines.append(f"reason: {clip(task.why, 300)}")
    lines.append(f"duration: {duration(task.ended - task.created)}")
    if output_file:
        lines.append(f"output file: {output_file}")
    return "\n".join([*lines, *quoted_tail(output)])


def stalled_notice(task: Task, output: str) -> str:
    """The notice that a task seems to wait at a prompt."""
    head = f"[Task {task.id} {_WORDS['stalled']}: {task_label(task)}]"
    advice = "Write to it, or kill it, with the tasks tool."
    return "\n".join([head, advice, *quoted_tail(output, 500)])


def watch_notice(task: Task, matches: Sequence[str], left_out: int) -> str:
    """The notice that output lines match a task's watch pattern."""
    head = f"[Task {task.id} matched its watch pattern ({clip(task.spec.watch, 80)}): {task_label(task)}]"
    more = [f"[… and {left_out} more]"] if left_out else []
    return "\n".join([head, *(f"| {clip(line, 300)}" for line in matches), *more])


def quoted_tail(output: str, max_length: int = NOTICE_TAIL) -> list[str]:
    """The end of an output, with a bar before each line."""
    text = output.strip("\n")
    if not text:
        return ["no output"]
    lines = text[-max_length:].split("\n")
    return [f"last output{' (cut)' if len(text) > max_length else ''}:", *(f"| {line}" for line in lines)]


class TaskNotice(Struct, frozen=True, kw_only=True):
    """A notice about a task, parsed from its text in the journal."""

    task: str
    state: TaskState | None
    """None for output that matched the watch pattern."""
    event: str
    """What happened, in words."""
    label: str = ""
    command: str = ""
    description: str = ""
    exit_code: str = ""
    reason: str = ""
    duration: str = ""
    output: tuple[str, ...] = ()


def parse_notice(text: str) -> TaskNotice | None:
    """Parse the text of `ended_notice`, `stalled_notice` or `watch_notice`; None for any other text."""
    head, *lines = text.split("\n")
    if not (head.startswith("[Task ") and head.endswith("]")):
        return None
    task, _, happened = head[len("[Task ") : -1].partition(" ")
    event, _, label = (happened, "", "") if happened in _WORDS.values() else happened.partition(": ")
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(("| ", "last output")):
            break  # What follows was written by the command.
        name, _, value = line.partition(": ")
        fields[name.replace(" ", "_")] = value
    return TaskNotice(
        task=task,
        state=next((state for state, words in _WORDS.items() if words == event), None),
        event=event,
        label=label,
        output=tuple(line[2:] for line in lines if line.startswith("| ")),
        **{name: fields.get(name, "") for name in ("command", "description", "exit_code", "reason", "duration")},
    )


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
