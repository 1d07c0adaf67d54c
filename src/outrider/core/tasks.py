"""Work that outlives the step that began it: what is known of a task, and what is said when something happens to it."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from outrider.core.text import clip, duration

TaskKind = Literal["command", "session"]
TaskState = Literal["queued", "running", "stalled", "succeeded", "failed", "killed", "lost", "timed_out"]
Notify = Literal["always", "failures", "never"]
OPEN_STATES: frozenset[TaskState] = frozenset({"queued", "running", "stalled"})
"""States of a task that has not ended."""
NOTICE_TAIL = 2_000
"""Characters of output shown in a notice."""


class ProcessIdentity(Struct, frozen=True):
    """Which process a task is: a pid alone may have been given to another since."""

    pid: int
    started: int
    boot: str


class TaskSpec(Struct, frozen=True, kw_only=True, rename={"is_awaited": "waited", "keeps_stdin_open": "is_open"}):
    """A task someone wants begun."""

    kind: TaskKind
    call: str
    """The call that begins it; beginning twice for one call begins once."""
    command: str
    """The command line, or what a child session is asked to do."""
    description: str = ""
    address: str = ""
    """Where its end is told."""
    notify: Notify = "never"
    """`never` where the address cannot be told anything later."""
    is_awaited: bool = False
    """Someone waits for its end and will be given it as a result: no notice then."""
    watch: str = ""
    """A regular expression; output lines that match are told while it runs."""
    ceiling: float = 86_400.0
    """Seconds after which it is ended."""
    workdir: str = ""
    """Where in the workspace it runs."""
    stdin: str | None = None
    """Text it is given to read; None for nothing. Where `is_open`, more can be written later."""
    keeps_stdin_open: bool = False
    grants: tuple[str, ...] = ()
    """What an approval allows this task beyond the sandbox, e.g. `network`."""
    model: str = ""
    """For a child session: its model, when not its parent's."""
    tools: tuple[str, ...] = ()
    """For a child session: the only tools it has; empty for all."""
    steps: int = 0
    """For a child session: its bound of steps; 0 for the usual one."""


class Task(Struct, frozen=True, kw_only=True):
    """One task as the store knows it. Execution and telling are separate facts."""

    id: str
    session: str
    person: str
    workspace: str
    spec: TaskSpec
    state: TaskState
    created: int
    process: ProcessIdentity | None = None
    child: str = ""
    """The session that is this task's body."""
    exit_code: int | None = None
    ended: int = 0
    """When, in milliseconds since 1970."""
    why: str = ""
    """What ended it, where the exit code alone does not tell."""
    is_delivered: bool = False
    """Its end was put into its session's journal, or given to whoever waited for it."""
    notices: int = 0
    """How often its watch pattern or a stall was told."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


def task_label(task: Task) -> str:
    """What people call this task: its description, else the beginning of its command."""
    return clip(task.spec.description or task.spec.command, 60)


def should_notify(task: Task, state: TaskState) -> bool:
    """Whether a task that ends like this is told in its session."""
    if task.spec.is_awaited or task.spec.notify == "never":
        return False
    return task.spec.notify == "always" or state != "succeeded"


_WORDS: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost: how it ended is not known",
    "timed_out": "was ended at its time limit",
    "stalled": "seems to wait for input",
    "queued": "waits",
    "running": "runs",
}


def ended_notice(task: Task, output: str, output_file: str) -> str:
    """What is said of a task that ended. Output is quoted line by line, so that it cannot pass for words of ours."""
    head = f"[Task {task.id} {_WORDS[task.state]}]"
    lines = [head, f"command: {clip(task.spec.command, 500)}"]
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
    """What is said, once, of a task that has gone quiet at a prompt."""
    head = f"[Task {task.id} {_WORDS['stalled']}: {task_label(task)}]"
    advice = "Write to it, or kill it, with the tasks tool."
    return "\n".join([head, advice, *quoted_tail(output, 500)])


def watch_notice(task: Task, matches: Sequence[str], left_out: int) -> str:
    """What is said of output lines that match a task's watch pattern."""
    head = f"[Task {task.id} wrote what was watched for ({clip(task.spec.watch, 80)}): {task_label(task)}]"
    more = [f"[… and {left_out} more]"] if left_out else []
    return "\n".join([head, *(f"| {clip(line, 300)}" for line in matches), *more])


def quoted_tail(output: str, longest: int = NOTICE_TAIL) -> list[str]:
    """The end of an output, each line behind a bar; nothing for an empty one."""
    text = output.strip("\n")
    if not text:
        return ["no output"]
    cut = len(text) > longest
    lines = text[-longest:].split("\n")
    return [f"last output{' (cut)' if cut else ''}:", *(f"| {line}" for line in lines)]


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


def running_summary(tasks: Sequence[Task], now: int, most: int = 10) -> str:
    """A few lines on the tasks that run now, for the tail of a prompt; empty when none does."""
    if not tasks:
        return ""
    lines = [
        f"- {task.id}: {task_label(task)} ({'stalled, ' if task.state == 'stalled' else ''}for {duration(now - task.created)})"
        for task in tasks[:most]
    ]
    if len(tasks) > most:
        lines.append(f"- … and {len(tasks) - most} more")
    return "\n".join(["[Tasks running now:]", *lines])


_PROMPTS = re.compile(
    r"(password|passphrase|\[y/n\]|\(y/n\)|\(yes/no\S*\)|continue\?|proceed\?|are you sure|press (any key|enter|return)"
    r"|login:|username|enter \w+.*:|\?)\s*[:>]?\s*$",
    re.IGNORECASE,
)


def is_prompt(output: str) -> bool:
    """Whether this output ends like a question to someone at a terminal."""
    last = output[-300:].rsplit("\n", 1)[-1].strip()
    return bool(last) and bool(_PROMPTS.search(last))
